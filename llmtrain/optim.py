"""Which parameters are decayed, and which implementation of the optimizer updates them.

Matrices and embeddings are decayed, biases and norms are not; each parameter is in exactly one group, a tied one once.
The implementation follows from where the update runs:

| | on a GPU | on CPU | `offload_optimizer` |
|---|---|---|---|
| adamw | DeepSpeed's FusedAdam | torch's fused AdamW | DeepSpeedCPUAdam |
| lion | DeepSpeed's FusedLion | DeepSpeedCPULion | DeepSpeedCPULion |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from llmtrain.config.schema import OptimizerConfig
from llmtrain.errors import ConfigError, Problem

ParameterGroup = dict[str, Any]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """The trainable parameters in a decayed and an undecayed group; a group without parameters is left out."""
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for name, parameter in trainable_parameters(model):
        (decayed if _is_decayed(name, parameter) else undecayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters in the model's order, a tied one once under its first name."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def parameter_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """The shape as the model has it: under ZeRO-3 the parameter itself is an empty placeholder."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _is_decayed(name: str, parameter: nn.Parameter) -> bool:
    return len(parameter_shape(parameter)) >= 2 and not name.endswith("bias")


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, ds_config: dict[str, Any], device_type: str
) -> torch.optim.Optimizer:
    """The optimizer that DeepSpeed wraps.

    Raises:
        ConfigError: DeepSpeed lacks this optimizer for the device or the ZeRO stage.
    """
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise ConfigError(Problem("model", "has no parameter to train"))
    is_offloaded = is_optimizer_offloaded(ds_config)
    build = _BUILDERS[config.name]
    return build(groups, config, "cpu" if is_offloaded or device_type == "cpu" else device_type, is_offloaded)


def is_optimizer_offloaded(ds_config: dict[str, Any]) -> bool:
    """Whether the optimizer's state is on CPU or NVMe."""
    offload = ds_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    return bool(offload.get("device", "none") != "none")


def _adamw(
    groups: list[ParameterGroup], config: OptimizerConfig, device_type: str, is_offloaded: bool
) -> torch.optim.Optimizer:
    arguments: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
    }
    if is_offloaded:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return _as_optimizer(DeepSpeedCPUAdam(groups, adamw_mode=True, fp32_optimizer_states=True, **arguments))
    if device_type == "cpu":
        return torch.optim.AdamW(groups, fused=True, **arguments)
    from deepspeed.ops.adam import FusedAdam

    return _as_optimizer(FusedAdam(groups, adam_w_mode=True, **arguments))


def _lion(
    groups: list[ParameterGroup], config: OptimizerConfig, device_type: str, is_offloaded: bool
) -> torch.optim.Optimizer:
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    build = DeepSpeedCPULion if device_type == "cpu" else FusedLion
    betas = (config.adam_beta1, config.adam_beta2)
    return _as_optimizer(build(groups, lr=config.learning_rate, betas=betas))


def _as_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


_BUILDERS: dict[str, Callable[[list[ParameterGroup], OptimizerConfig, str, bool], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "lion": _lion,
}
