"""The `deepspeed:` block: every depth, stricter types than DeepSpeed's, and the keys that llmtrain decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmtrain.config.deepspeed_keys import OWNED_KEYS, check_block, load_table
from tests.unit.config.support import Loader

EVERYTHING = {
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 5e8,
        "stage3_max_live_parameters": 1e9,
        "param_persistence_threshold": 1000,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.5},
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
        "leaf_module": {"classes": ["a.B"]},
        "zenflow": {"topk_ratio": 0.1, "select_interval": "auto", "update_interval": 4},
    },
    "fp16": {"loss_scale": 0, "initial_scale_power": 12},
    "bf16": {"check_grad_overflow": True},
    "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4},
    "flops_profiler": {"enabled": True, "output_file": None},
    "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
    "aio": {"block_size": 1048576},
    "data_types": {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": "auto"},
    "checkpoint": {"tag_validation": "warn", "writer": {"type": "fast"}},
    "timers": {"throughput": {"enabled": False}},
    "tensorboard": {"enabled": True, "output_path": "logs"},
    "communication_data_type": "FP32",
    "wall_clock_breakdown": True,
    "steps_per_print": 100,
    "pipeline": {"stages": "auto"},
    "expert_parallel": {"score_func": "auto", "top_k": 2},
    "compile": {"deepcompile": False, "passes": ["z3"]},
}


def check(block: object) -> Any:
    return check_block(block, load_table())


def test_a_block_of_everything_passes_and_gets_its_types() -> None:
    checked = check(EVERYTHING)
    assert checked.problems == []
    assert checked.values == EVERYTHING
    assert type(checked.values["zero_optimization"]["reduce_bucket_size"]) is int


def sections(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every section of the table."""
    if "keys" in node:
        yield path
        for key, inner in node["keys"].items():
            yield from sections(inner, (*path, key))


@pytest.mark.parametrize("path", list(sections(load_table())), ids=".".join)
def test_an_unknown_key_is_refused_in_every_section(path: tuple[str, ...]) -> None:
    block: dict[str, Any] = {"no_such_key_xyz": 1}
    for key in reversed(path):
        block = {key: block}
    problems = check(block).problems
    assert [problem.path for problem in problems] == [".".join(["deepspeed", *path, "no_such_key_xyz"])]
    assert problems[0].rule == "is not a key that DeepSpeed reads"


@pytest.mark.parametrize(
    ("block", "meant"),
    [
        ({"zero_optimisation": {}}, "deepspeed.zero_optimization"),
        ({"zero_optimization": {"stag": 2}}, "deepspeed.zero_optimization.stage"),
        (
            {"zero_optimization": {"stage3_max_live_parameter": 2}},
            "deepspeed.zero_optimization.stage3_max_live_parameters",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}},
            "deepspeed.zero_optimization.offload_optimizer.device",
        ),
        ({"offload_param": {}}, "deepspeed.zero_optimization.offload_param"),
        ({"fp16": {"loss_scal": 0}}, "deepspeed.fp16.loss_scale"),
        (
            {"activation_checkpointing": {"partition_activation": True}},
            "deepspeed.activation_checkpointing.partition_activations",
        ),
        ({"learning_rate": 1}, "optimizer.learning_rate"),
        ({"max_grad_norm": 1}, "optimizer.max_grad_norm"),
    ],
)
def test_an_unknown_key_gets_the_one_that_was_meant(block: object, meant: str) -> None:
    assert check(block).problems[0].remedy == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("key", "wrong", "rule"),
    [
        ("stage", "2", "must be one of 0, 1, 2, 3"),
        ("stage", True, "must be one of 0, 1, 2, 3"),
        ("stage", 4, "must be one of 0, 1, 2, 3"),
        ("stage", 1.5, "must be one of 0, 1, 2, 3"),
        ("stage", None, "must not be null"),
        ("overlap_comm", "true", "must be true or false"),
        ("overlap_comm", 1, "must be true or false"),
        ("reduce_bucket_size", 0, "must be greater than 0"),
        ("reduce_bucket_size", "5e8", "must be a whole number"),
        ("reduce_bucket_size", 0.5, "must be a whole number"),
        ("sub_group_size", -1, "must be at least 0"),
        ("offload_optimizer", "cpu", "must be a section"),
        ("offload_param", [], "must be a section"),
        ("leaf_module", {"classes": "a.B"}, "must be a list"),
        ("leaf_module", {"classes": [1]}, "has an item that must be text"),
        ("offload_optimizer", {"device": "gpu"}, "must be one of none, cpu, nvme"),
        ("offload_optimizer", {"ratio": 1.5}, "must be at most 1"),
        ("zenflow", {"topk_ratio": 1.0}, "must be less than 1"),
        ("zenflow", {"select_interval": "often"}, "must be one of auto or must be a whole number"),
    ],
)
def test_types_are_stricter_than_deepspeeds(key: str, wrong: object, rule: str) -> None:
    checked = check({"zero_optimization": {"contiguous_gradients": True, key: wrong}})
    assert [problem.rule for problem in checked.problems] == [rule]
    assert checked.problems[0].path.startswith(f"deepspeed.zero_optimization.{key}")


def test_numbers_in_quotes_say_so() -> None:
    assert check({"zero_optimization": {"stage": "2"}}).problems[0].remedy == "remove the quotes"


@pytest.mark.parametrize("path", list(OWNED_KEYS))
@pytest.mark.parametrize("value", [1, "auto", True])
def test_keys_that_llmtrain_decides(path: str, value: object) -> None:
    block: Any = value
    for key in reversed(path.split(".")):
        block = {key: block}
    (problem,) = check(block).problems
    assert problem.path == f"deepspeed.{path}"
    assert problem.rule == "is decided by llmtrain"
    assert problem.remedy == f"use {OWNED_KEYS[path]}"


@pytest.mark.parametrize(
    ("wrong", "use"),
    [
        ("train_batchsize", "batch.global_batch_size"),
        ("train_micro_batch_size_per_gpus", "batch.per_device_train_batch_size"),
        ("gradient_acumulation_steps", "batch.gradient_accumulation_steps"),
        ("gradient_cliping", "optimizer.max_grad_norm"),
        ("optimiser", "optimizer.name"),
        ("schedular", "schedule.lr_scheduler_type"),
    ],
)
def test_a_misspelt_one_of_them(wrong: str, use: str) -> None:
    (problem,) = check({wrong: 1}).problems
    assert f"llmtrain decides it: use {use}" in problem.remedy


def test_misspelt_enabled_of_a_precision() -> None:
    (problem,) = check({"fp16": {"enable": True}}).problems
    assert problem.remedy == "did you mean deepspeed.fp16.enabled? llmtrain decides it: use precision: fp16"


@pytest.mark.parametrize("key", ["reduce_bucket_size", "stage3_prefetch_bucket_size", "stage", "overlap_comm"])
def test_auto_has_a_message_of_its_own(key: str) -> None:
    (problem,) = check({"zero_optimization": {key: "auto"}}).problems
    assert 'left to be filled in ("auto")' in problem.rule
    assert "leave the key out for DeepSpeed's default" in problem.remedy


REMOVED = [
    "nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue", "sparse_attention",
    "elasticity", "graph_harvesting", "curriculum_learning", "progressive_layer_drop",
]  # fmt: skip


@pytest.mark.parametrize("key", REMOVED)
def test_removed_keys_are_explained(key: str) -> None:
    (problem,) = check({key: {"enabled": True}}).problems
    assert problem.rule.startswith("is gone from DeepSpeed: ")


@pytest.mark.parametrize("key", ["mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"])
def test_removed_keys_of_zero_are_explained(key: str) -> None:
    (problem,) = check({"zero_optimization": {key: 1}}).problems
    assert problem.rule.startswith("is gone from DeepSpeed: ")


def test_old_names_and_two_names_of_one_key() -> None:
    (problem,) = check({"zero_optimization": {"cpu_offload": True}}).problems
    assert problem.remedy == "use deepspeed.zero_optimization.offload_optimizer"
    (problem,) = check({"zero_optimization": {"max_live_parameters": 1, "stage3_max_live_parameters": 2}}).problems
    assert problem.rule == "is the same key as deepspeed.zero_optimization.max_live_parameters"


@pytest.mark.parametrize("block", [3, [], True])
def test_a_block_that_is_none(block: object) -> None:
    (problem,) = check(block).problems
    assert problem.rule == "must be a mapping of DeepSpeed's keys, or the path of a ds_config JSON"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("zero_optimization: {offload_optimizer: {device: cpu}}", "zero_optimization.offload_optimizer.device"),
        ("zero_optimization: {stage: 2, offload_param: {device: cpu}}", "zero_optimization.offload_param.device"),
        ("zero_optimization: {stage: 3, offload_param: {device: nvme}}", "zero_optimization.offload_param.nvme_path"),
        ("zero_optimization: {stage: 2, offload_optimizer: {device: cpu, ratio: 0.5}}",
         "zero_optimization.offload_optimizer.ratio"),
        ("zero_optimization: {stage: 2, zero_hpz_partition_size: 8}", "zero_optimization.zero_hpz_partition_size"),
        ("zero_optimization: {stage: 2, zero_quantized_weights: true}", "zero_optimization.zero_quantized_weights"),
        ("zero_optimization: {stage: 2, compute_grad_norm: false}", "zero_optimization.compute_grad_norm"),
        ("zero_optimization: {stage: 2, round_robin_gradients: true}", "zero_optimization.round_robin_gradients"),
        ("bf16: {bf16_master_weights_and_grads: true}", "bf16.bf16_master_weights_and_grads"),
        ("zero_optimization: {stage: 1}, bf16: {bf16_optimizer_states: true}", "bf16.bf16_optimizer_states"),
        ("gradient_allreduce_op: sum", "gradient_allreduce_op"),
        ("managed_gradient_accumulation: false", "managed_gradient_accumulation"),
        ("data_efficiency: {enabled: true}", "data_efficiency.enabled"),
        ("sequence_parallel_size: 2", "sequence_parallel_size"),
        ("tensor_parallel: {autotp_size: 2}", "tensor_parallel.autotp_size"),
    ],
)  # fmt: skip
def test_rules_between_keys(loader: Loader, block: str, path: str) -> None:
    problem = loader.problem(f"deepspeed={{{block}}}")
    assert problem.path == f"deepspeed.{path}"
    assert problem.origin == "command line"


def test_what_the_rules_allow(loader: Loader) -> None:
    zero = "{stage: 3, offload_param: {device: none}, zero_hpz_partition_size: 8, compute_grad_norm: true}"
    assert (
        loader.load(f"deepspeed.zero_optimization={zero}", "deepspeed.gradient_allreduce_op=mean").config.zero_stage
        == 3
    )
