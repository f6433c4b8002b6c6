"""The learning rate as a share of its peak: a function of the optimizer step alone.

Steps count from 1. The warm-up rises linearly and reaches the peak at its last step (at step 1 without a warm-up); the
decaying shapes (linear, cosine, warmup_stable_decay) are at `min_lr_rate` exactly at the last step, and stay there if
the run is longer than was foreseen. Nothing here holds state: a resumed run knows its learning rate by its step.
"""

from __future__ import annotations

import math

from llmtrain.config.schema import ScheduleConfig

INVERSE_SQRT_TIMESCALE = 10_000
"""Steps in which inverse_sqrt without a warm-up falls by sqrt(2); as in transformers' `get_inverse_sqrt_schedule`."""


def needs_total_steps(schedule: ScheduleConfig) -> bool:
    """Whether the shape cannot be drawn without knowing the last step."""
    is_share = 0 < schedule.warmup_steps < 1
    return is_share or schedule.lr_scheduler_type not in ("constant", "inverse_sqrt")


def learning_rate_factor(schedule: ScheduleConfig, step: int, total_steps: int | None) -> float:
    """The learning rate of optimizer step `step` (from 1) as a share of the peak, in [0, 1].

    Args:
        schedule: the shape.
        step: the optimizer step, skipped ones counted.
        total_steps: the last step; None is allowed where `needs_total_steps` is false.
    """
    assert step >= 1, "steps count from 1"
    assert total_steps is not None or not needs_total_steps(schedule), "the shape needs the last step"
    warmup = _steps(schedule.warmup_steps, total_steps)
    shape = schedule.lr_scheduler_type
    decays = shape not in ("constant", "inverse_sqrt")
    if decays and total_steps is not None and step >= total_steps:
        return schedule.min_lr_rate
    if step < warmup:
        return step / warmup
    if shape == "constant":
        return 1.0
    peak = max(warmup, 1)
    if shape == "inverse_sqrt":
        timescale = warmup or INVERSE_SQRT_TIMESCALE
        return math.sqrt(timescale / (step - peak + timescale))
    assert total_steps is not None
    if shape == "warmup_stable_decay":
        peak = max(peak, total_steps - _steps(schedule.decay_steps, total_steps))
    progress = max(0.0, (step - peak) / (total_steps - peak))
    fallen = 0.5 * (1.0 - math.cos(math.pi * progress)) if shape == "cosine" else progress
    return 1.0 - (1.0 - schedule.min_lr_rate) * fallen


def _steps(length: float, total_steps: int | None) -> int:
    """A length in steps: a count, or below 1 a share of the run, at least one step of it."""
    if length == 0 or length >= 1:
        return round(length)
    assert total_steps is not None
    return max(1, round(length * total_steps))
