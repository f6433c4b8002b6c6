"""What a user gets wrong is one error each, before any training: the key or file, the value, the remedy; exit 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.ranks import ROOT, RankPool
from tests.support.training import Outcome, documents, tiny_tokenizer, train, write_config, write_documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that works, and things that do not."""
    folder = tmp_path_factory.mktemp("bad-input")
    write_documents(folder / "train.jsonl", documents(60))
    (folder / "blank.jsonl").write_text("\n\n")
    (folder / "other.jsonl").write_text('{"title": "a", "body": "b"}\n')
    tiny_tokenizer(folder)
    _write_tokenizer_without_special_tokens(folder)
    (folder / "runs" / "used").mkdir(parents=True)
    (folder / "runs" / "used" / "config.yaml").write_text("x: 1\n")
    write_config(
        folder / "tiny.yaml",
        run={"output_dir": str(folder / "runs")},
        tokenizer={"name_or_path": str(folder / "tokenizer-causal_lm")},
        data={"train": [{"path": "json", "data_files": str(folder / "train.jsonl")}], "seq_length": 32},
        schedule={"lr_scheduler_type": "constant", "warmup_steps": 0, "max_steps": 1},
    )
    return folder


def _write_tokenizer_without_special_tokens(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer-causal_lm")
    tokenizer.save_pretrained(folder / "bare")
    path = folder / "bare" / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if not key.endswith("_token")}
    path.write_text(json.dumps(settings))
    for extra in ("special_tokens_map.json",):
        (folder / "bare" / extra).unlink(missing_ok=True)


CASES: dict[str, tuple[Sequence[str], str]] = {
    "missing file": (["data.train.0.data_files={folder}/no.jsonl"], r"data\.train\[0\]\.data_files='.*no\.jsonl'"),
    "glob without match": (["data.train.0.data_files={folder}/no-*.jsonl"], r"data\.train\[0\]\.data_files.*no-\*"),
    "source without any row": (["data.train.0.data_files={folder}/blank.jsonl"], r"data\.train\[0\].*row"),
    "no text column": (
        ["data.train.0.data_files={folder}/other.jsonl"],
        r"data\.train\[0\]\.text_column='text'.*title.*body|data\.train\[0\]\.text_column='text'.*body.*title",
    ),
    "missing tokenizer folder": (["tokenizer.name_or_path={folder}/no-tokenizer"], r"tokenizer\.name_or_path"),
    "missing model folder": (
        ["model.architecture=null", "model.config_overrides={{}}", "model.name_or_path={folder}/no-model"],
        r"model\.name_or_path='.*no-model'",
    ),
    "hub name without network": (
        ["tokenizer.name_or_path=nobody/nothing-of-this-name"],
        r"tokenizer\.name_or_path.*hub",
    ),
    "tokenizer without eos": (
        ["tokenizer.name_or_path={folder}/bare"],
        r"tokenizer\.name_or_path.*has no end-of-sequence token",
    ),
    "tokenizer without mask": (
        [
            "model.task=masked_lm",
            "model.architecture=bert",
            "model.config_overrides={{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2}}",
        ],
        r"tokenizer\.name_or_path.*mask",
    ),
    "fp16 on CPU": (["precision=fp16"], r"precision='fp16'.*CPU"),
    "run folder in use": (["run.name=used"], r"run\.name='used'.*in use.*overwrite"),
    "more ranks than lanes": (
        ["data.num_lanes=1", "batch.per_device_train_batch_size=1"],
        r"data\.num_lanes=1 \(command line\) is fewer lanes than ranks \(2\)",
    ),
    "batch numbers that do not multiply out": (
        ["batch.per_device_train_batch_size=3"],
        r"batch\.global_batch_size=8.*per_device_train_batch_size 3; nearest: 6, 9",
    ),
    "batch numbers that the ranks do not divide": (
        ["batch.per_device_train_batch_size=8"],
        r"batch\.global_batch_size=8.*per_device_train_batch_size 8 x world size 2 = 16; nearest: 16",
    ),
    "sequences beyond the positions": (["data.seq_length=64"], r"data\.seq_length=64.*32"),
    "another number of ranks": (["run.expected_world_size=4"], r"run\.expected_world_size=4.*2"),
    "tracker that is not installed": (["tracking.report_to=[aim]"], r"tracking\.report_to\[0\]='aim'.*pip install"),
    "unknown preset": (["model.architecture=null", "model.preset=gpt2-124"], r"model\.preset='gpt2-124'.*gpt2-124m"),
}


def _train_all(config: Path, runs: Sequence[Sequence[str]]) -> list[Outcome]:
    return [_train_or_refuse(config, [f"run.name=bad-{index}", *overrides]) for index, overrides in enumerate(runs)]


def _train_or_refuse(config: Path, overrides: Sequence[str]) -> Outcome:
    from llmtrain.errors import ConfigError

    try:
        return train(config, overrides)
    except ConfigError as error:  # of the configuration alone, before a run begins
        return Outcome(str(error), type(error).__name__)


def test_bad_input_is_one_error_with_its_key(folder: Path, two_ranks: RankPool) -> None:
    runs = [[override.format(folder=folder) for override in overrides] for overrides, _ in CASES.values()]
    wrong = []
    for name, (_, pattern), outcome in zip(
        CASES, CASES.values(), two_ranks.run(_train_all, folder / "tiny.yaml", runs)[0], strict=True
    ):
        is_right = outcome.error in ("ConfigError", "HubUnreachableError") and re.search(
            pattern, outcome.reason, re.DOTALL
        )
        if not is_right or not re.search(r" \((command line|default|.*tiny\.yaml:\d+)\)", outcome.reason):
            wrong.append(f"{name}: {outcome}")
    assert not wrong, "\n".join(wrong)
    # Nothing is left of a run that could not begin, so that its name is free once the mistake is mended.
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["used"]


def _start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/train.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model.atn_implementation=sdpa"], r"model\.atn_implementation.*\(command line\).*attn_implementation"),
        (["--optimizer.learning_rate=fast"], r"optimizer\.learning_rate='fast' \(command line\)"),
        (["deepspeed.zero_optimisation.stage=2"], r"deepspeed\.zero_optimisation.*zero_optimization"),
        (["--config", "no-such.yaml"], r"no-such\.yaml"),
        (["--world-size", "2"], r"--world-size"),
        (["epochs"], r"epochs"),
    ],
)
def test_a_wrong_command_line_ends_with_2(folder: Path, arguments: list[str], expected: str) -> None:
    ended = _start("--config", str(folder / "tiny.yaml"), *arguments)
    assert ended.returncode == 2, ended.stderr
    assert re.search(expected, ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
