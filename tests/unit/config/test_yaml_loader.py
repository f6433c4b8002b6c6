"""Files as YAML: lines, repeated keys, anchors, and what is no YAML at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import load_config
from llmtrain.config.yaml_loader import load_yaml
from llmtrain.errors import ConfigError
from tests.unit.config.support import MINIMAL, Loader


def test_every_value_has_its_line() -> None:
    document = load_yaml("a:\n  b: 1\n  c:\n  - x: 2\n    y: {z: 3}\n  - 4\n", "f.yaml")
    assert document.data == {"a": {"b": 1, "c": [{"x": 2, "y": {"z": 3}}, 4]}}
    assert document.origins["a.b"] == "f.yaml:2"
    assert document.origins["a.c[0].x"] == "f.yaml:4"
    assert document.origins["a.c[0].y.z"] == "f.yaml:5"
    assert document.origins["a.c[1]"] == "f.yaml:6"


def test_a_repeated_key_is_an_error_with_both_lines(loader: Loader) -> None:
    problem = loader.problem(text=MINIMAL + "run:\n  seed: 1\n  name: x\n  seed: 2\n")
    assert problem.path == "run.seed"
    assert problem.rule == "is set twice, in line 14 and in line 16"
    assert problem.origin == "run.yaml:16"


def test_a_repeated_section_and_other_problems_come_together(loader: Loader) -> None:
    problems = loader.problems(text=MINIMAL + "model:\n  preset: x\nprecision: fp8\n")
    assert {problem.path for problem in problems} == {"model", "precision"}


def test_repeated_keys_in_flow_style_and_in_overrides(loader: Loader) -> None:
    assert loader.problem("run={seed: 1, seed: 2}").path == "run.seed"


def test_anchors_and_merge_keys(loader: Loader) -> None:
    text = MINIMAL.replace("train: [{path: json", "train: [&source {path: json") + "  # end\n"
    text = text.replace(
        "train.jsonl}]", "train.jsonl}]\n  eval:\n  - <<: *source\n    data_files: eval.jsonl\n  - *source"
    )
    sources = loader.load(text=text).config.data.eval
    assert isinstance(sources, list)
    assert [source.data_files for source in sources] == ["eval.jsonl", "train.jsonl"]
    assert [source.path for source in sources] == ["json", "json"]


def test_an_alias_of_itself_is_refused() -> None:
    problems = load_yaml("a: &x\n  b: *x\n", "f.yaml").problems
    assert [(problem.path, problem.rule) for problem in problems] == [("a.b", "holds itself through an alias")]
    assert load_yaml("a: &x\n  <<: *x\n  c: 1\n", "f.yaml").problems[0].origin == "f.yaml:1"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [1\nb: 2\n", "run.yaml:2"),
        ("a: b: c\n", "run.yaml:1"),
        ("a:\n\t- 1\n", "run.yaml:2"),
        ("a: *b\n", "run.yaml:1"),
    ],
)
def test_a_syntax_error_names_file_and_line(loader: Loader, text: str, where: str) -> None:
    problem = loader.problem(text=text)
    assert problem.path == where
    assert problem.rule.startswith("is not valid YAML")


def test_all_files_are_read_before_the_first_complaint(loader: Loader) -> None:
    first, second = loader.write("a: [", "a.yaml"), loader.write("b: }", "b.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config([first, Path("missing.yaml"), second])
    assert [problem.path for problem in caught.value.problems] == ["a.yaml:1", "missing.yaml", "b.yaml:1"]


def test_files_that_cannot_be_read(loader: Loader) -> None:
    Path("folder.yaml").mkdir()
    Path("latin.yaml").write_bytes("a: é".encode("latin-1"))
    for name, words in (
        ("folder.yaml", "is a folder"),
        ("latin.yaml", "is not UTF-8"),
        ("gone.yaml", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=f"{name} {words}"):
            load_config([Path(name)])


def test_a_file_that_holds_no_mapping(loader: Loader) -> None:
    assert loader.problem(text="- a\n").rule == "does not hold a mapping of keys to values"


def test_keys_that_are_no_text_and_unknown_tags(loader: Loader) -> None:
    rules = [problem.rule for problem in loader.problems(text=MINIMAL + "run: {1: x}\nkernels: !mine auto\n")]
    assert rules == ["has a key that is no text: 1", "has the tag !mine, which is not known here"]
    assert "object" in loader.problem(text=MINIMAL + "run: {name: !!python/object:os.system x}\n").rule


def test_a_byte_order_mark_and_an_empty_second_file(loader: Loader) -> None:
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    empty = loader.write("# nothing\n", "empty.yaml")
    assert load_config([Path("bom.yaml"), empty]).config.model.preset == "gpt2-124m"
