"""A ds_config JSON: what llmtrain owns is carried over, the rest is the block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtrain.config import load_config
from llmtrain.errors import ConfigError
from tests.unit.config.support import MINIMAL, Loader

BARE = """\
model: {preset: gpt2-124m}
tokenizer: {name_or_path: t}
data: {train: [{path: org/x}]}
"""
"""A run that leaves batch, optimizer, schedule and precision to the ds_config."""

WHOLE: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "fp16": {"enabled": True, "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupCosineLR",
        "params": {"total_num_steps": 500, "warmup_num_steps": 20, "warmup_type": "linear", "cos_min_ratio": 0.1},
    },
    "zero_optimization": {"stage": 2},
    "steps_per_print": 100,
}

OF_THE_TRAINER: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
"""The example of Hugging Face's documentation, in short."""


def test_owned_keys_are_carried_over_with_their_origin(loader: Loader) -> None:
    loaded = loader.load(text=BARE, ds_config=WHOLE)
    config = loaded.config
    assert (config.batch.global_batch_size, config.batch.per_device_train_batch_size) == (32, 4)
    assert config.batch.gradient_accumulation_steps == 2
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == ("adamw", 3e-5, 0.1)
    assert (optimizer.adam_beta1, optimizer.adam_beta2, optimizer.adam_epsilon) == (0.8, 0.95, 1e-6)
    assert optimizer.max_grad_norm == 0.5
    schedule = config.schedule
    assert (schedule.lr_scheduler_type, schedule.warmup_steps, schedule.max_steps) == ("cosine", 20, 500)
    assert schedule.min_lr_rate == 0.1
    assert config.precision == "fp16"
    assert config.deepspeed == {"fp16": {"loss_scale": 0}, "zero_optimization": {"stage": 2}, "steps_per_print": 100}
    for path in ("batch.global_batch_size", "optimizer.adam_beta2", "precision", "deepspeed.zero_optimization.stage"):
        assert loaded.provenance.origin_of(path) == "ds_config.json"


def test_a_file_of_the_trainers_is_accepted_and_its_autos_are_dropped(loader: Loader) -> None:
    loaded = loader.load("schedule.lr_scheduler_type=constant", ds_config=OF_THE_TRAINER)
    assert loaded.config.precision == "bf16"
    assert loaded.config.optimizer.learning_rate == 1e-3
    assert loaded.config.deepspeed == {
        "fp16": {"loss_scale": 0, "loss_scale_window": 1000},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": True},
    }
    assert [note.split()[0] for note in loaded.notes] == [
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
    ]


def test_a_section_that_was_taken_back_is_filled_from_the_file(loader: Loader) -> None:
    config = loader.load("optimizer=null", "batch=null", "schedule=null", ds_config=WHOLE).config
    assert (config.optimizer.learning_rate, config.batch.global_batch_size, config.schedule.max_steps) == (
        3e-5,
        32,
        500,
    )


def test_a_value_that_both_set_alike_is_fine(loader: Loader) -> None:
    ds_config = {"train_batch_size": 16, "optimizer": {"type": "Adam", "params": {"lr": 0.001}}}
    assert loader.load("batch.global_batch_size='16'", ds_config=ds_config).config.batch.global_batch_size == 16


@pytest.mark.parametrize(
    ("ds_config", "path", "source"),
    [
        ({"train_batch_size": 32}, "batch.global_batch_size", "train_batch_size gives 32"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, "optimizer.learning_rate", "optimizer.params.lr"),
        ({"optimizer": {"type": "Lion"}}, "optimizer.name", "optimizer.type gives lion"),
        ({"fp16": {"enabled": True}}, "precision", "fp16.enabled gives fp16"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "precision", "gives fp32"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}}, "schedule.lr_scheduler_type",
         "scheduler.type gives constant"),
    ],
)  # fmt: skip
def test_a_value_that_both_set_differently_is_an_error(
    loader: Loader, ds_config: object, path: str, source: str
) -> None:
    text = MINIMAL + "precision: bf16\n"
    text = text.replace("  max_steps", "  lr_scheduler_type: cosine\n  max_steps").replace(
        "  learning", "  name: adamw\n  learning"
    )
    problem = loader.problem(text=text, ds_config=ds_config)
    assert problem.path == path
    assert "is set differently in ds_config.json" in problem.rule
    assert source in problem.rule
    assert problem.origin.startswith("run.yaml:")


def test_precisions(loader: Loader) -> None:
    def precision(ds_config: object, *overrides: str) -> str:
        return loader.load(*overrides, ds_config=ds_config).config.precision

    assert precision({"bf16": {"enabled": True}, "fp16": {"enabled": False}}) == "bf16"
    assert precision({"bfloat16": {"enabled": True}}) == "bf16"
    assert precision({"fp16": {"enabled": False}}) == "fp32"
    assert precision({"fp16": {"enabled": False}}, "precision=bf16") == "bf16"
    assert precision({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}) == "bf16"
    assert loader.problem("precision=fp16", ds_config={"fp16": {"enabled": False}}).path == "precision"
    both = loader.problem(ds_config={"fp16": {"enabled": True}, "bf16": {"enabled": True}})
    assert (both.path, both.origin) == ("deepspeed.fp16.enabled", "ds_config.json")
    assert loader.problem(ds_config={"fp16": {"enabled": "yes"}}).rule == "must be true or false"


@pytest.mark.parametrize(
    ("section", "path", "rule"),
    [
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type", "is none that llmtrain has"),
        ({"optimizer": {"params": {}}}, "optimizer.type", "is none that llmtrain has"),
        ({"optimizer": {"type": "AdamW", "params": {"rate": 1}}}, "optimizer.params.rate", "is not a parameter"),
        ({"optimizer": {"type": "AdamW", "params": {"beta": [1, 2]}}}, "optimizer.params.beta", "is not a parameter"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": 0.9}}}, "optimizer.params.betas", "must be a list of two"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer.params.adam_w_mode", "no equal"),
        ({"optimizer": {"type": "AdamW", "param": {}}}, "optimizer.param", "is not a known key"),
        ({"optimizer": "AdamW"}, "optimizer", "must hold type and params"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type", "is none that llmtrain has"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}, "scheduler.params.warmup_type",
         "is a logarithmic warm-up"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0, "warmup_min_lr": 1e-5}}},
         "scheduler.params.warmup_min_lr", "has no equal"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 0}}}, "scheduler.params.warmup_max_lr",
         "is missing"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0, "warmup_step": 1}}},
         "scheduler.params.warmup_step", "is not a parameter"),
    ],
)  # fmt: skip
def test_what_has_no_equal_here(loader: Loader, section: object, path: str, rule: str) -> None:
    problem = loader.problem(ds_config=section)
    assert problem.path == f"deepspeed.{path}"
    assert rule in problem.rule
    assert problem.origin == "ds_config.json"


def test_schedules(loader: Loader) -> None:
    text = BARE + "batch: {global_batch_size: 8}\noptimizer: {learning_rate: 1e-3}\n"

    def schedule(kind: str, **params: object) -> Any:
        section = {"scheduler": {"type": kind, "params": {"warmup_type": "linear", **params}}}
        return loader.load("schedule.max_steps=5000", text=text, ds_config=section).config.schedule

    constant = schedule("WarmupLR", warmup_max_lr=1e-3, warmup_num_steps=7)
    assert (constant.lr_scheduler_type, constant.warmup_steps) == ("constant", 7)
    linear = schedule("WarmupDecayLR", warmup_max_lr=1e-3, total_num_steps=5000)
    assert (linear.lr_scheduler_type, linear.warmup_steps, linear.min_lr_rate) == ("linear", 1000, 0.0)
    cosine = schedule("WarmupCosineLR", total_num_steps=5000, warmup_num_steps=0)
    assert (cosine.lr_scheduler_type, cosine.warmup_steps, cosine.min_lr_rate) == ("cosine", 0, 0.0001)


def test_the_betas_of_deepspeeds_lion(loader: Loader) -> None:
    lion = {"optimizer": {"type": "Lion", "params": {"lr": 0.001}}}
    assert loader.load(ds_config=lion).config.optimizer.adam_beta2 == 0.99
    assert loader.load("optimizer.adam_beta2=0.98", ds_config=lion).config.optimizer.adam_beta2 == 0.98


def test_the_rest_of_the_file_is_checked_like_a_block(loader: Loader) -> None:
    ds_config = {"zero_optimization": {"stag": 2}, "elasticity": {}, "aio": {"block_size": "1"}}
    problems = loader.problems(ds_config=ds_config)
    assert [(problem.path, problem.origin) for problem in problems] == [
        ("deepspeed.zero_optimization.stag", "ds_config.json"),
        ("deepspeed.elasticity", "ds_config.json"),
        ("deepspeed.aio.block_size", "ds_config.json"),
    ]


def test_the_path_of_a_file_in_the_block(loader: Loader) -> None:
    loader.write('{"zero_optimization": {"stage": 3}}', "z3.json")
    loader.write('{"zero_optimization": {"overlap_comm": true}, "gradient_clipping": 0.3}', "other.json")
    base = loader.write(MINIMAL + "deepspeed: z3.json\n", "base.yaml")
    assert load_config([base]).config.deepspeed == {"zero_optimization": {"stage": 3}}
    keys = loader.write("deepspeed: {zero_optimization: {overlap_comm: true}}", "keys.yaml")
    assert load_config([base, keys]).config.deepspeed == {"zero_optimization": {"stage": 3, "overlap_comm": True}}
    overridden = load_config([base], ["deepspeed.zero_optimization.stage=1"])
    assert overridden.config.zero_stage == 1
    replaced = load_config([base], ["deepspeed=other.json"])
    assert replaced.config.deepspeed == {"zero_optimization": {"overlap_comm": True}}
    assert replaced.config.optimizer.max_grad_norm == 0.3
    assert "deepspeed.zero_optimization.stage" not in replaced.provenance.as_dict()
    assert load_config([base], deepspeed_file=Path("other.json")).config.deepspeed == replaced.config.deepspeed
    assert load_config([base], ["deepspeed=other.json", "deepspeed=null"]).config.optimizer.max_grad_norm == 1.0
    second = loader.write("deepspeed: other.json\n", "second.yaml")
    assert load_config([base, second]).config.deepspeed == replaced.config.deepspeed


def test_files_that_are_none(loader: Loader) -> None:
    loader.write("{", "bad.json")
    loader.write('{"a": 1, "a": 2}', "twice.json")
    loader.write('{"fp16": {"loss_scale": NaN}}', "nan.json")
    loader.write("[]", "list.json")
    loader.write("deepspeed: {}", "block.yaml")
    words = {
        "bad.json": "bad.json:1 is not valid JSON",
        "twice.json": "twice.json sets a twice",
        "nan.json": "nan.json holds NaN",
        "list.json": "list.json does not hold a JSON object",
        "gone.json": "gone.json does not exist",
        "block.yaml": "pass it with --config block.yaml",
    }
    for name, text in words.items():
        with pytest.raises(ConfigError, match=text):
            load_config([loader.write(MINIMAL)], deepspeed_file=Path(name))
