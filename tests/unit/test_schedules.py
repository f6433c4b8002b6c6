"""The learning-rate shapes against their formulas, and what holds for all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrain.config.schema import ScheduleConfig
from llmtrain.schedules import learning_rate_factor, needs_total_steps

DECAYING = ("linear", "cosine", "warmup_stable_decay")
SHAPES = (*DECAYING, "constant", "inverse_sqrt")


def _schedule(shape: str, **keys: Any) -> ScheduleConfig:
    return ScheduleConfig.model_validate({"lr_scheduler_type": shape, "max_steps": 100, **keys})


def _factors(schedule: ScheduleConfig, total: int = 100) -> list[float]:
    return [learning_rate_factor(schedule, step, total) for step in range(1, total + 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warmup", [10, 0.1])
def test_the_warm_up_is_linear_and_ends_at_the_peak(shape: str, warmup: float) -> None:
    factors = _factors(_schedule(shape, warmup_steps=warmup))
    assert factors[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert max(factors) == factors[9] == 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_warm_up_the_first_step_is_at_the_peak(shape: str) -> None:
    assert _factors(_schedule(shape))[0] == 1.0


@pytest.mark.parametrize("shape", DECAYING)
@pytest.mark.parametrize("minimum", [0.0, 0.1, 0.3])
def test_the_last_step_is_at_the_minimum_exactly_and_what_follows_stays_there(shape: str, minimum: float) -> None:
    schedule = _schedule(shape, warmup_steps=5, min_lr_rate=minimum)
    assert learning_rate_factor(schedule, 99, 100) > minimum
    assert learning_rate_factor(schedule, 100, 100) == minimum
    assert learning_rate_factor(schedule, 250, 100) == minimum


def test_linear_is_a_line_from_the_peak_to_the_minimum() -> None:
    factors = _factors(_schedule("linear", warmup_steps=20, min_lr_rate=0.2))
    assert factors[19:] == pytest.approx([1 - 0.8 * (step - 20) / 80 for step in range(20, 101)])


def test_cosine_is_half_a_wave_from_the_peak_to_the_minimum() -> None:
    factors = _factors(_schedule("cosine", warmup_steps=20, min_lr_rate=0.2))
    wave = [0.2 + 0.8 * (1 + math.cos(math.pi * (step - 20) / 80)) / 2 for step in range(20, 101)]
    assert factors[19:] == pytest.approx(wave)
    assert factors[59] == pytest.approx(0.6)


@pytest.mark.parametrize("decay", [25, 0.25])
def test_warmup_stable_decay_is_flat_and_then_a_line(decay: float) -> None:
    factors = _factors(_schedule("warmup_stable_decay", warmup_steps=10, decay_steps=decay, min_lr_rate=0.5))
    assert set(factors[9:75]) == {1.0}
    assert factors[75:] == pytest.approx([1 - 0.5 * (step - 75) / 25 for step in range(76, 101)])


def test_inverse_sqrt_falls_as_the_root_of_the_step() -> None:
    with_warmup = _schedule("inverse_sqrt", warmup_steps=16)
    assert learning_rate_factor(with_warmup, 64, None) == 0.5
    assert learning_rate_factor(with_warmup, 1600, None) == pytest.approx(0.1)
    without = _schedule("inverse_sqrt")
    assert learning_rate_factor(without, 30_001, None) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("shape", "their_name"),
    [
        ("linear", "linear"),
        ("cosine", "cosine"),
        ("constant", "constant_with_warmup"),
        ("inverse_sqrt", "inverse_sqrt"),
    ],
)
def test_the_shape_is_that_of_transformers(shape: str, their_name: str) -> None:
    """transformers counts steps from 0: what it has after s of them is ours of step s."""
    import torch
    from transformers import get_scheduler

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = get_scheduler(their_name, optimizer, num_warmup_steps=7, num_training_steps=100)
    ours = _schedule(shape, warmup_steps=7)
    for step in range(1, 100):
        optimizer.step()
        theirs.step()
        assert theirs.get_last_lr()[0] == pytest.approx(learning_rate_factor(ours, step, 100)), step


def test_only_a_shape_that_never_ends_does_without_the_last_step() -> None:
    assert {shape for shape in SHAPES if not needs_total_steps(_schedule(shape))} == {"constant", "inverse_sqrt"}
    assert needs_total_steps(_schedule("constant", warmup_steps=0.1))
    assert not needs_total_steps(_schedule("constant", warmup_steps=10))
    assert learning_rate_factor(_schedule("constant"), 10**9, None) == 1.0


@given(
    shape=st.sampled_from(SHAPES),
    total=st.integers(1, 400),
    warmup=st.one_of(st.integers(0, 50), st.floats(0.01, 0.5)),
    decay=st.one_of(st.integers(1, 50), st.floats(0.01, 0.5)),
    minimum=st.floats(0, 1),
)
def test_every_shape_rises_once_and_falls_once_within_its_bounds(
    shape: str, total: int, warmup: float, decay: float, minimum: float
) -> None:
    schedule = _schedule(shape, warmup_steps=warmup, decay_steps=decay, min_lr_rate=minimum)
    factors = _factors(schedule, total)
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    # A warm-up below min_lr_rate may end on it: at the last step the minimum wins.
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


@given(st.integers(1, 1000), st.integers(1, 50))
def test_a_share_is_the_count_that_it_rounds_to(total: int, hundredths: int) -> None:
    share = _schedule("cosine", warmup_steps=hundredths / 100)
    count = _schedule("cosine", warmup_steps=max(1, round(hundredths / 100 * total)))
    assert _factors(share, total) == _factors(count, total)
