"""The dictionary that DeepSpeed is given: the user's `deepspeed:` block, and what llmtrain owns.

Pure: a function of the configuration, the batch plan and the kind of device. `llmtrain.config` has checked the block's
keys and the rules between them; here are the rules that need the device, and what llmtrain's promises ask of DeepSpeed:

- no "auto": every number is the plan's;
- gradients accumulate in fp32, unless `data_types.grad_accum_dtype` says otherwise;
- mixed precision at stage 0 runs as stage 1. DeepSpeed's stage 0 cannot accumulate bf16 gradients in fp32 ("unsupported
  mix"), and takes an optimizer step with zero gradients when it is built. Stage 1 is the same arithmetic, with the
  optimizer's state cut in W parts: all-reduce the gradients, update fp32 masters, cast.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError, Problem


def deepspeed_config(config: Config, plan: BatchPlan, device_type: str) -> dict[str, Any]:
    """What `deepspeed.initialize` is given.

    Args:
        config: the run.
        plan: its batch plan.
        device_type: torch's name of the device, `cpu` or `cuda`.

    Raises:
        ConfigError: what the run asks for does not exist on this device, or DeepSpeed would do it wrong.
    """
    problems = list(_problems(config, device_type))
    if problems:
        raise ConfigError(problems)
    block = copy.deepcopy(config.deepspeed)
    block["train_batch_size"] = plan.global_batch_size
    block["train_micro_batch_size_per_gpu"] = plan.micro_batch_size
    block["gradient_accumulation_steps"] = plan.gradient_accumulation_steps
    block["gradient_clipping"] = config.optimizer.max_grad_norm
    block["zero_optimization"] = {**block.get("zero_optimization", {}), "stage": effective_stage(config)}
    if config.optimizer.name == "muon":
        # DeepSpeed's checks know its own two CPU optimizers, and its Muon needs whole gradients at stage 3.
        block["zero_force_ds_cpu_optimizer"] = False
        block["zero_optimization"]["reduce_scatter"] = False
    if config.precision != "fp32":
        block[config.precision] = {**block.get(config.precision, {}), "enabled": True}
        block["data_types"] = {"grad_accum_dtype": "fp32", **block.get("data_types", {})}
    return block


def effective_stage(config: Config) -> int:
    """The ZeRO stage that DeepSpeed runs: the configured one, but at least 1 in mixed precision (see the top)."""
    return max(config.zero_stage, 0 if config.precision == "fp32" else 1)


def deepspeed_notes(config: Config) -> list[str]:
    """What the user should hear at the start of the run, because it is not what he wrote."""
    notes = []
    if effective_stage(config) != config.zero_stage:
        notes.append(
            f"ZeRO stage 0 in {config.precision} runs as stage 1 (equal numbers, less memory): DeepSpeed's stage 0 "
            "cannot accumulate gradients in fp32"
        )
    if config.optimizer.name == "muon" and not _muon_sees_the_gradient_norm(config):
        notes.append("grad_norm is the norm of Muon's update here: DeepSpeed takes it after the orthogonalization")
    return notes


def _muon_sees_the_gradient_norm(config: Config) -> bool:
    """Whether DeepSpeed takes norm and clips before Muon: without ZeRO, and in its BF16_Optimizer (stage 1)."""
    stage = effective_stage(config)
    if config.precision == "fp32":
        return stage == 0
    return config.precision == "bf16" and stage == 1 and not is_optimizer_offloaded(config.deepspeed)


def _problems(config: Config, device_type: str) -> Iterator[Problem]:
    if config.precision == "fp16" and device_type == "cpu":
        rule = "is not supported on CPU"
        yield Problem("precision", rule, "use bf16 or fp32, or a machine with a GPU", value="fp16")
    if config.precision == "bf16" and config.deepspeed.get("bf16", {}).get("check_grad_overflow") is False:
        rule = "would let a gradient that is not finite into the weights"
        yield Problem("deepspeed.bf16.check_grad_overflow", rule, "remove it", value=False)
    if config.optimizer.name == "muon":
        yield from _muon_problems(config)


def _muon_problems(config: Config) -> Iterator[Problem]:
    if config.optimizer.max_grad_norm and not _muon_sees_the_gradient_norm(config):
        rule = (
            f"cannot be had with optimizer.name=muon in {config.precision} at ZeRO stage {config.zero_stage}"
            f"{' with offload_optimizer' if is_optimizer_offloaded(config.deepspeed) else ''}: DeepSpeed would clip "
            "Muon's update instead of the gradient"
        )
        remedy = "set it to 0 (Muon's update has a fixed size), or use bf16 at stage 0 or 1"
        yield Problem("optimizer.max_grad_norm", rule, remedy, value=config.optimizer.max_grad_norm)
    zero = config.deepspeed.get("zero_optimization", {})
    if zero.get("reduce_scatter"):
        rule = "cannot be had with optimizer.name=muon, which needs whole gradients"
        yield Problem("deepspeed.zero_optimization.reduce_scatter", rule, "remove it", value=True)
    if zero.get("offload_optimizer", {}).get("ratio", 1.0) < 1.0:
        rule = "below 1 cannot be had with optimizer.name=muon"
        path = "deepspeed.zero_optimization.offload_optimizer.ratio"
        yield Problem(path, rule, "remove it", value=zero["offload_optimizer"]["ratio"])


def is_optimizer_offloaded(deepspeed: dict[str, Any]) -> bool:
    """Whether a `deepspeed:` block keeps the optimizer's state on CPU or NVMe."""
    offload = deepspeed.get("zero_optimization", {}).get("offload_optimizer") or {}
    return bool(offload.get("device", "none") != "none")
