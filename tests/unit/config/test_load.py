"""Several files, overrides, and the origin of every value."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import load_config
from tests.unit.config.support import MINIMAL, Loader


def test_files_merge_left_to_right(loader: Loader) -> None:
    base = loader.write(MINIMAL + "deepspeed: {zero_optimization: {stage: 2, reduce_bucket_size: 5e8}}\n", "base.yaml")
    top = loader.write("deepspeed:\n  zero_optimization:\n    stage: 3\ndata: {train: [{path: org/set}]}\n", "top.yaml")
    loaded = load_config([base, top])
    assert loaded.config.deepspeed == {"zero_optimization": {"stage": 3, "reduce_bucket_size": 500_000_000}}
    assert [source.path for source in loaded.config.data.train] == ["org/set"]
    assert loaded.config.data.train[0].data_files is None
    assert loaded.config.run.name == "base"
    assert loaded.provenance.origin_of("deepspeed.zero_optimization.stage") == "top.yaml:3"
    assert loaded.provenance.origin_of("deepspeed.zero_optimization.reduce_bucket_size") == "base.yaml:13"
    assert loaded.provenance.origin_of("data.train[0].path") == "top.yaml:4"
    assert loaded.provenance.origin_of("data.train[0].data_files") == "default"


@pytest.mark.parametrize("dashes", ["", "--"])
def test_overrides_in_both_spellings(loader: Loader, dashes: str) -> None:
    loaded = loader.load(f"{dashes}optimizer.learning_rate=2e-4", f"{dashes}deepspeed.zero_optimization.stage=1")
    assert loaded.config.optimizer.learning_rate == 2e-4
    assert loaded.config.zero_stage == 1
    assert loaded.provenance.origin_of("optimizer.learning_rate") == "command line"
    assert loaded.provenance.origin_of("deepspeed.zero_optimization.stage") == "command line"


def test_the_last_override_wins(loader: Loader) -> None:
    assert loader.load("run.seed=1", "run.seed=2").config.run.seed == 2


@pytest.mark.parametrize("path", ["data.train.0.data_files", "data.train[0].data_files"])
def test_overrides_reach_into_lists(loader: Loader, path: str) -> None:
    loaded = loader.load(f"{path}=other-*.jsonl")
    assert loaded.config.data.train[0].data_files == "other-*.jsonl"
    assert loaded.provenance.origin_of("data.train[0].data_files") == "command line"
    assert loaded.provenance.origin_of("data.train[0].path") == "run.yaml:6"


def test_the_next_position_of_a_list_adds_an_item(loader: Loader) -> None:
    loaded = loader.load("data.train.1.path=text", "data.train.1.data_files=[a.txt, b.txt]")
    assert [source.path for source in loaded.config.data.train] == ["json", "text"]
    problem = loader.problem("data.train.3.path=text")
    assert str(problem) == (
        "data.train.3 (command line) is no position of the list data.train; its positions are 0 to 0, and 1 adds one"
    )


def test_values_of_overrides_are_yaml(loader: Loader) -> None:
    loaded = loader.load(
        "data.eval={wiki: [{path: org/wiki}]}", "tracking.tags=[a, 'b c']", "tracking.notes=x=y", "run={seed: 3}"
    )
    assert isinstance(loaded.config.data.eval, dict)
    assert list(loaded.config.data.eval) == ["wiki"]
    assert loaded.config.tracking.tags == ["a", "b c"]
    assert loaded.config.tracking.notes == "x=y"
    assert loaded.config.run.seed == 3
    assert loaded.provenance.origin_of("data.eval.wiki[0].path") == "command line"


def test_null_takes_a_value_back(loader: Loader) -> None:
    loaded = loader.load(
        "batch.global_batch_size=null", "batch.per_device_train_batch_size=4", "tokenizer.name_or_path=x"
    )
    assert loaded.config.batch.global_batch_size is None
    assert (
        loader.load("tokenizer.name_or_path=", "model.preset=", "model.name_or_path=org/m").config.model.preset is None
    )


def test_an_empty_section_of_a_file_says_nothing(loader: Loader) -> None:
    base = loader.write(MINIMAL + "run: {seed: 3}\ndeepspeed: {zero_optimization: {stage: 2}}\n", "base.yaml")
    empty = loader.write("run:\ndeepspeed:\n", "empty.yaml")
    config = load_config([base, empty]).config
    assert (config.run.seed, config.zero_stage) == (3, 2)
    taken_back = load_config([base], ["run=null", "deepspeed=null"]).config
    assert (taken_back.run.seed, taken_back.zero_stage, taken_back.run.name) == (42, 0, "base")


def test_an_empty_section_is_its_defaults(loader: Loader) -> None:
    assert loader.load(text=MINIMAL + "run:\neval:\ndeepspeed:\n").config.run.seed == 42
    assert loader.load("checkpoint=null").config.checkpoint.save_steps == 500


@pytest.mark.parametrize("override", ["run.seed", "--overwrite", "=3", "run..seed=3", "run.seed =3", "a b=3"])
def test_what_is_no_override(loader: Loader, override: str) -> None:
    problem = loader.problem(override)
    assert (problem.path, problem.rule, problem.origin) == (override, "is no override", "command line")


def test_an_override_inside_a_single_value(loader: Loader) -> None:
    assert loader.problem("precision.dtype=bf16").rule == "is not one of fp32, bf16, fp16"
    problem = loader.problem("precision=bf16", "precision.dtype=bf16")
    assert problem.rule == "cannot be set: precision is a single value there, no section"


def test_an_override_that_is_no_yaml_says_how_to_quote(loader: Loader) -> None:
    problem = loader.problem("data.train.0.data_files=*.jsonl")
    assert problem.path == "data.train.0.data_files"
    assert "not valid YAML" in problem.rule
    assert problem.remedy == "quote it, such as data.train.0.data_files='\"...\"'"
    loaded = loader.load('data.train.0.data_files="*.jsonl"')
    assert loaded.config.data.train[0].data_files == "*.jsonl"


def test_the_name_of_a_run_is_that_of_its_first_file(loader: Loader) -> None:
    first = loader.write(MINIMAL, "gpt2-small.v2.yaml")
    assert load_config([first, loader.write("run: {seed: 3}", "b.yaml")]).config.run.name == "gpt2-small.v2"
    loaded = load_config([first], ["run.name=mine"])
    assert loaded.config.run.name == "mine"
    assert loaded.provenance.origin_of("run.name") == "command line"
    assert load_config([first]).provenance.origin_of("run.name") == "default"


def test_every_leaf_has_an_origin(loader: Loader) -> None:
    loaded = loader.load("deepspeed.zero_optimization.stage=2", "model.config_overrides={n_layer: 2}")
    origins = loaded.provenance.as_dict(loaded.config.model_dump())
    assert origins["model.preset"] == "run.yaml:2"
    assert origins["optimizer.learning_rate"] == "run.yaml:10"
    assert origins["optimizer.adam_beta1"] == "default"
    assert origins["model.config_overrides.n_layer"] == "command line"
    assert origins["deepspeed.zero_optimization.stage"] == "command line"
    assert all(origins.values())
    assert loaded.provenance.origin_of("data.train[0].data_files[3]") == "run.yaml:6"


def test_a_configuration_without_a_file(loader: Loader) -> None:
    overrides = [
        "model.preset=gpt2-124m",
        "tokenizer.name_or_path=t",
        "data.train=[{path: org/x}]",
        "batch.global_batch_size=8",
    ]
    loaded = load_config([], [*overrides, "optimizer.learning_rate=1e-3", "schedule.max_steps=3"])
    assert loaded.config.run.name == "run"


def test_origins_name_files_as_they_were_given(loader: Loader) -> None:
    Path("sub").mkdir()
    loader.write(MINIMAL, "sub/run.yaml")
    assert load_config([Path("sub/run.yaml")]).provenance.origin_of("model.preset") == "sub/run.yaml:2"
