"""Which parameters are decayed, and which implementation of the optimizer updates them.

Matrices and embeddings are decayed, biases and norms are not; each parameter is in exactly one group, a tied one once.
The implementation follows from where the update runs:

| | on a GPU | on CPU | `offload_optimizer` |
|---|---|---|---|
| adamw | torch's fused AdamW | torch's fused AdamW | DeepSpeedCPUAdam |
| lion | FusedLion | DeepSpeedCPULion | DeepSpeedCPULion |
| muon | MuonWithAuxAdam, with the adamw of the column for what is not a hidden matrix | | |

torch's AdamW needs no building (DeepSpeed's FusedAdam would need the CUDA toolkit and a minute); the other names are
DeepSpeed's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import nn

from llmtrain.config.schema import OptimizerConfig
from llmtrain.errors import ConfigError, Problem

ParameterGroup = dict[str, Any]
Place = Literal["gpu", "cpu", "offload"]
"""Where the update runs."""


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
        ConfigError: the model has nothing to train, or DeepSpeed cannot build the optimizer on this machine.
    """
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise ConfigError(Problem("model", "has no parameter to train"))
    offload = ds_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    is_offloaded = offload.get("device", "none") != "none"
    place: Place = "offload" if is_offloaded else "cpu" if device_type == "cpu" else "gpu"
    try:
        if config.name == "muon":
            return _muon(model, config, place)
        build = _adamw_class(place) if config.name == "adamw" else _lion_class(place)
        return build(groups, lr=config.learning_rate, **_arguments(config))
    except (RuntimeError, ImportError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        remedy = "it needs a C++ compiler and ninja" + (", and the CUDA toolkit" if place == "gpu" else "")
        rule = f"needs an extension that DeepSpeed could not build or load here ({reason})"
        raise ConfigError(Problem("optimizer.name", rule, remedy, value=config.name)) from error


def _arguments(config: OptimizerConfig) -> dict[str, Any]:
    betas = (config.adam_beta1, config.adam_beta2)
    return {"betas": betas} if config.name == "lion" else {"betas": betas, "eps": config.adam_epsilon}


def _adamw_class(place: Place) -> Callable[..., torch.optim.Optimizer]:
    if place != "offload":
        return partial(torch.optim.AdamW, fused=True)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return partial(DeepSpeedCPUAdam, adamw_mode=True, fp32_optimizer_states=True)


def _lion_class(place: Place) -> Callable[..., torch.optim.Optimizer]:
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    return cast(Callable[..., torch.optim.Optimizer], FusedLion if place == "gpu" else DeepSpeedCPULion)


def _muon(model: nn.Module, config: OptimizerConfig, place: Place) -> torch.optim.Optimizer:
    """Muon for the hidden matrices, AdamW for embeddings, heads, biases and norms, at one learning rate.

    The update of a matrix is orthogonal, so its size has nothing to do with AdamW's. It is scaled to AdamW's usual root
    mean square, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, arXiv 2502.16982, section 2.2): a learning rate and a
    weight decay that suit AdamW suit both halves.
    """
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    hidden = hidden_matrices(model)
    by_scale: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trainable_parameters(model):
        # DeepSpeed reads this attribute of the parameter wherever it reduces or partitions.
        parameter.use_muon = name in hidden  # type: ignore[attr-defined]
        if name in hidden:
            by_scale.setdefault(muon_scale(*parameter_shape(parameter)), []).append(parameter)
    groups: list[ParameterGroup] = [
        {"params": p, "use_muon": True, "lr": config.learning_rate * scale, "weight_decay": config.weight_decay / scale}
        for scale, p in by_scale.items()
    ]
    for group in parameter_groups(model, config.weight_decay):
        rest = [parameter for parameter in group["params"] if not parameter.use_muon]
        if rest:
            group = {**group, "params": rest, "use_muon": False, "lr": config.learning_rate, **_arguments(config)}
            groups.append(group)
    optimizer = MuonWithAuxAdam(groups, adam_optimizer=_adamw_class(place), adam_w_mode=True)
    for group, scale in zip(optimizer.param_groups, by_scale, strict=False):
        group["lr_scale"] = scale
    return cast(torch.optim.Optimizer, optimizer)


def hidden_matrices(model: nn.Module) -> set[str]:
    """The names of the matrices that neither are embeddings nor make logits."""
    of_vocabulary = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    find_head = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    if head is not None:
        of_vocabulary.add(id(head.weight))
    return {
        name
        for name, parameter in trainable_parameters(model)
        if len(parameter_shape(parameter)) == 2 and id(parameter) not in of_vocabulary
    }


def muon_scale(rows: int, columns: int) -> float:
    """What the learning rate of a matrix is multiplied with; DeepSpeed has its own sqrt(max(1, rows / columns))."""
    return 0.2 * math.sqrt(max(rows, columns)) / math.sqrt(max(1.0, rows / columns))
