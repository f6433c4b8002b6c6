"""What a user reads who wrote something wrong."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmtrain.config import load_config
from llmtrain.config.provenance import leaves
from llmtrain.config.schema_paths import all_paths, field_at, section_at
from llmtrain.config.suggest import nearest
from llmtrain.errors import ConfigError
from tests.unit.config.support import MINIMAL, Loader

MANY_MISTAKES = """\
run:
  nme: x
model: {preset: gpt2-124m, architecture: gpt2}
tokenizer:
dta:
  train: [{path: json, data_files: a, wight: 2}]
batch: {global_batch_size: 10, per_device_train_batch_size: 4}
optimizer:
  learning_rat: 1e-3
  weight_decay: -1
schedule: {lr_scheduler_type: cosin, max_steps: 12:30}
precision: bf61
tracking: {report_to: wandb}
deepspeed: {zero_optimization: {stag: 2}, fp16: {enabled: true}}
"""


def test_all_problems_come_at_once_with_their_lines(loader: Loader) -> None:
    found = {problem.path: problem.origin for problem in loader.problems(text=MANY_MISTAKES)}
    assert found == {
        "run.nme": "run.yaml:2",
        "model.architecture": "run.yaml:3",
        "tokenizer.name_or_path": "run.yaml:4",
        "dta": "run.yaml:5",
        "data.train[0].wight": "run.yaml:6",
        "batch.global_batch_size": "run.yaml:7",
        "optimizer.learning_rat": "run.yaml:9",
        "optimizer.weight_decay": "run.yaml:10",
        "schedule.lr_scheduler_type": "run.yaml:11",
        "schedule.max_steps": "run.yaml:11",
        "precision": "run.yaml:12",
        "tracking.report_to": "run.yaml:13",
        "deepspeed.zero_optimization.stag": "run.yaml:14",
        "deepspeed.fp16.enabled": "run.yaml:14",
    }


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("optimzer.learning_rate=1", "optimizer"),
        ("optimizer.lerning_rate=1", "optimizer.learning_rate"),
        ("learning_rate=1e-3", "optimizer.learning_rate"),
        ("data.batch_size=3", "batch.global_batch_size"),
        ("data.global_batch_size=3", "batch.global_batch_size"),
        ("optimizer.lr=3", "optimizer.learning_rate"),
        ("schedule.warmup_ratio=0.1", "schedule.warmup_steps (below 1 it is a share of the run)"),
        ("bf16=true", "precision: bf16"),
        ("output_dir=x", "run.output_dir"),
        ("zero_optimization.stage=2", "deepspeed.zero_optimization"),
        ("data.train.0.data_file=x", "data.train[0].data_files"),
        ("data.packing.isolate_docs=true", "data.packing.isolate_documents"),
        ("kernels.gelo=true", "kernels.gelu"),
        ("Run.seed=3", "run"),
        ("checkpoint.save-steps=3", "checkpoint.save_steps"),
        ("eval.split=3", "data.train[].split or data.eval[].split"),
    ],
)
def test_an_unknown_key_gets_the_one_that_was_meant(loader: Loader, override: str, meant: str) -> None:
    problem = loader.problems(override)[0]
    assert problem.rule == "is not a known key"
    assert problem.remedy == f"did you mean {meant}?"
    assert problem.origin == "command line"


def test_a_key_like_no_other_gets_those_that_there_are(loader: Loader) -> None:
    assert loader.problem("batch.zzz=3").remedy == (
        "the keys here are global_batch_size, per_device_train_batch_size, gradient_accumulation_steps"
    )
    assert loader.problem("model.n_layer=3").remedy.endswith("sizes of the model go under model.config_overrides")


def test_a_misspelt_key_is_not_missed_as_well(loader: Loader) -> None:
    text = MINIMAL.replace("learning_rate", "learnin_rate").replace("schedule:", "shedule:")
    problems = loader.problems("shedule.max_steps=-1", text=text)
    assert [problem.path for problem in problems] == ["optimizer.learnin_rate", "shedule", "schedule.max_steps"]


def test_keys_that_are_missing_come_with_an_example(loader: Loader) -> None:
    texts = {str(problem) for problem in loader.problems(text="run: {seed: 3}\n")}
    assert texts == {
        "data.train is required; such as data.train: [{path: json, data_files: data/*.jsonl}]",
        "optimizer.learning_rate is required; such as optimizer.learning_rate: 0.0003",
        "model needs one of preset, architecture and name_or_path; such as model.preset: gpt2-124m; "
        "llmtrain config schema lists all keys",
        "tokenizer.name_or_path is required where model.name_or_path is not set; a hub name such as "
        "openai-community/gpt2, or a folder",
        "batch needs global_batch_size or per_device_train_batch_size; set batch.global_batch_size, such as 64",
        "schedule needs one of max_steps, num_train_epochs and max_tokens; such as schedule.max_steps: 10000",
    }


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("optimizer.learning_rate=0", "optimizer.learning_rate=0 (command line) must be greater than 0"),
        ("optimizer.adam_beta1=1", "optimizer.adam_beta1=1 (command line) must be less than 1"),
        ("schedule.min_lr_rate=1.5", "schedule.min_lr_rate=1.5 (command line) must be at most 1"),
        ("batch.global_batch_size=0", "batch.global_batch_size=0 (command line) must be at least 1"),
        ("data.packing=true", "data.packing=True (command line) must be false, or the keys of the section; such as "
         "data.packing: {isolate_documents: true}"),
        ("data.packing=[1]", "data.packing=[1] (command line) must be false, or the packing's keys"),
        ("data.train=[]", "data.train=[] (command line) must not be empty; such as data.train: [{path: json, "
         "data_files: data/*.jsonl}]"),
        ("data.eval=wiki", "data.eval='wiki' (command line) must be a list of sources, "
         "or names with a list of sources each"),
        ("run.name=''", "run.name='' (command line) must not be empty"),
        ("kernels=fast", "kernels='fast' (command line) is not one of auto, off"),
        ("data.train.0.data_files=3", "data.train[0].data_files=3 (command line) must be text; put it in quotes"),
        ("data.train=json", "data.train='json' (command line) must be a list; write [json]"),
        ("run=x", "run='x' (command line) must be a section; its keys are name, output_dir, seed, deterministic, "
         "resume_from_checkpoint, overwrite, stop_at_step, time_limit, expected_world_size"),
        ("tracking.report_to=[wandb, tensorbord]", "tracking.report_to[1]='tensorbord' (command line) is not one of "
         "wandb, tensorboard, mlflow, comet_ml, aim, clearml, dvclive, swanlab, trackio; did you mean tensorboard?"),
        ("schedule.num_train_epochs=0.5", "schedule.num_train_epochs=0.5 (command line) must be a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_value(loader: Loader, override: str, text: str) -> None:
    assert str(loader.problem(override)) == text


def test_rules_are_checked_beside_wrong_values_that_they_do_not_read(loader: Loader) -> None:
    problems = loader.problems("precision=fp8", "data.train.0.data_files=null", "schedule.max_steps=x")
    assert [problem.path for problem in problems] == ["schedule.max_steps", "precision", "data.train[0].data_files"]


def test_paths_of_the_schema() -> None:
    paths = list(all_paths())
    assert {
        "optimizer.learning_rate",
        "data.train[].path",
        "data.eval[].weight",
        "data.packing.isolate_documents",
    } <= set(paths)
    section = section_at("data.eval.wiki[0]")
    assert section is not None
    assert "data_files" in section.model_fields
    assert section_at("optimizer.nothing") is None
    assert field_at("precision") is not None


@pytest.fixture(scope="module")
def known_paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every leaf of a whole configuration, the deepspeed block too."""
    text = (
        MINIMAL
        + "deepspeed: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}, aio: {queue_depth: 8}}\n"
    )
    file = tmp_path_factory.mktemp("known") / "run.yaml"
    file.write_text(text)
    return [
        path for path, _ in leaves(load_config([file]).config.model_dump()) if "[" not in path and path != "deepspeed"
    ]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_misspelling_at_any_depth_is_refused_by_its_path(
    loader: Loader, known_paths: list[str], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(known_paths))
    keys = path.split(".")
    depth = data.draw(st.integers(0, len(keys) - 1))
    position = data.draw(st.integers(0, len(keys[depth]) - 1))
    letter = data.draw(st.sampled_from("qxz7_"))
    wrong = keys[depth][:position] + letter + keys[depth][position + 1 :]
    if wrong == keys[depth]:
        return
    misspelt = ".".join([*keys[: depth + 1][:-1], wrong])
    with pytest.raises(ConfigError) as caught:
        loader.load(".".join([misspelt, *keys[depth + 1 :]]) + "=1")
    found = {problem.path: problem for problem in caught.value.problems}
    assert misspelt in found
    assert found[misspelt].origin == "command line"
    assert "did you mean" in found[misspelt].remedy or "keys here are" in found[misspelt].remedy


def test_nearest_is_deaf_to_case_and_dashes() -> None:
    assert nearest("Global-Batch-Size", ["global_batch_size", "seed"]) == "global_batch_size"
    assert nearest("zzz", ["global_batch_size", "seed"]) is None
