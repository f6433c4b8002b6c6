"""The rules between the keys of the `deepspeed:` block, and between it and what llmtrain promises.

DeepSpeed asserts some of these after the model is built, and is silent about others. Two kinds: what DeepSpeed itself
cannot do, and what would make a promise of llmtrain's false without a sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmtrain.errors import Problem

ZERO = "deepspeed.zero_optimization"


def deepspeed_rule_problems(block: dict[str, Any]) -> list[Problem]:
    """What is wrong with a block whose keys and types are right."""
    return [*_zero_problems(block.get("zero_optimization", {})), *_master_problems(block), *_promise_problems(block)]


def _zero_problems(zero: dict[str, Any]) -> Iterator[Problem]:
    stage = zero.get("stage", 0)
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        offload = zero.get(key) or {}
        device = offload.get("device", "none")
        path = f"{ZERO}.{key}"
        if device != "none" and stage < least:
            stages = "stage 3" if least == 3 else "stage 1, 2 or 3"
            yield Problem(
                f"{path}.device", f"needs {ZERO}.{stages}, and it is {stage}", f"set {ZERO}.stage", value=device
            )
        if device == "nvme" and not offload.get("nvme_path"):
            yield Problem(f"{path}.nvme_path", "is required with device: nvme", "such as nvme_path: /local_nvme")
        if offload.get("ratio", 1.0) < 1.0 and stage != 3:
            yield Problem(f"{path}.ratio", f"below 1 needs {ZERO}.stage 3, and it is {stage}", value=offload["ratio"])
    if zero.get("zero_hpz_partition_size", 1) > 1 and stage != 3:
        value = zero["zero_hpz_partition_size"]
        yield Problem(f"{ZERO}.zero_hpz_partition_size", f"needs {ZERO}.stage 3, and it is {stage}", value=value)
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if zero.get(key) and stage != 3:
            yield Problem(f"{ZERO}.{key}", f"needs {ZERO}.stage 3, and it is {stage}", value=True)


def _master_problems(block: dict[str, Any]) -> Iterator[Problem]:
    """Master weights below fp32 exist in DeepSpeed's partitioned optimizers alone."""
    stage = block.get("zero_optimization", {}).get("stage", 0)
    for section, key in (("fp16", "fp16_master_weights_and_grads"), ("bf16", "bf16_master_weights_and_grads")):
        if block.get(section, {}).get(key) and stage == 0:
            yield Problem(f"deepspeed.{section}.{key}", f"needs {ZERO}.stage 1, 2 or 3, and it is 0", value=True)
    bf16 = block.get("bf16", {})
    if bf16.get("bf16_optimizer_states") and not bf16.get("bf16_master_weights_and_grads"):
        path = "deepspeed.bf16.bf16_optimizer_states"
        yield Problem(path, "needs deepspeed.bf16.bf16_master_weights_and_grads: true", value=True)


def _promise_problems(block: dict[str, Any]) -> Iterator[Problem]:
    refused: tuple[tuple[str, Any, str], ...] = (
        ("gradient_allreduce_op", "sum", "would multiply the gradients: llmtrain's loss counts on their average"),
        ("managed_gradient_accumulation", False, "would step at every micro-batch"),
        ("zero_optimization.compute_grad_norm", False, "would hide the gradient norm, by which bad steps are skipped"),
        (
            "zero_optimization.round_robin_gradients",
            True,
            "makes DeepSpeed's record of who holds what wrong: no checkpoint could be written on several ranks",
        ),
        ("data_efficiency.enabled", True, "has no effect: llmtrain reads and orders the data itself"),
        ("dataloader_drop_last", True, "has no effect: llmtrain reads the data itself and drops nothing"),
    )
    for path, value, rule in refused:
        if _get(block, path) == value and type(_get(block, path)) is type(value):
            yield Problem(f"deepspeed.{path}", rule, "remove it", value=value)
    for path in ("sequence_parallel_size", "tensor_parallel.autotp_size", "tensor_parallel.tensor_parallel.tp_size"):
        size = _get(block, path)
        if isinstance(size, int) and size > 1:
            rule = "is not supported: every rank reads data of its own"
            yield Problem(f"deepspeed.{path}", rule, "remove it", value=size)


def _get(block: Any, path: str) -> Any:
    for key in path.split("."):
        block = block.get(key) if isinstance(block, dict) else None
    return block
