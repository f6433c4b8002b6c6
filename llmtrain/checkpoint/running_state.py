"""What a DeepSpeed engine keeps besides weights and optimizer state: the fp16 loss scaler and its counters."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")


def loss_scaler_state(engine: Any) -> dict[str, float]:
    """Of the dynamic loss scaler; empty where none is in use."""
    scaler = _dynamic_scaler(engine)
    return {name: getattr(scaler, name) for name in _SCALER_FIELDS if hasattr(scaler, name)} if scaler else {}


def restore_loss_scaler(engine: Any, state: dict[str, float]) -> None:
    """The inverse; a run in another precision ignores it."""
    scaler = _dynamic_scaler(engine)
    for name, value in state.items():
        if scaler is not None and hasattr(scaler, name):
            setattr(scaler, name, value)


def counters(engine: Any) -> dict[str, int]:
    """What DeepSpeed counts by itself (its profiler and data schedules go by it)."""
    return {name: int(getattr(engine, name)) for name in _COUNTERS}


def restore_counters(engine: Any, state: dict[str, int]) -> None:
    """The inverse of `counters`."""
    for name, value in state.items():
        setattr(engine, name, value)


def running_facts(engine: Any) -> dict[str, Any]:
    """For a reader of the manifest; nothing depends on them."""
    basic = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return {
        "zero_stage": int(engine.zero_optimization_stage()),
        "model_dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "deepspeed_optimizer": type(engine.optimizer).__name__,
        "torch_optimizer": type(basic).__name__,
        "model": type(engine.module).__name__,
        **{package: version(package) for package in ("llmtrain", "deepspeed", "torch", "transformers")},
    }


def _dynamic_scaler(engine: Any) -> Any | None:
    """ZeRO has an object for it, the wrappers of stage 0 a configuration."""
    optimizer = engine.optimizer
    scaler = getattr(optimizer, "loss_scaler", None)
    if scaler is not None and getattr(scaler, "dynamic", False):
        return scaler
    config = getattr(optimizer, "loss_scale_config", None)
    return config if config is not None and config.dynamic_loss_scale else None
