"""The batch plan: every way to give it, every way to give it wrongly, and who computes what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrain.batching import BatchPlan, default_num_lanes, divisors, plan_batches
from llmtrain.config.schema import BatchConfig
from llmtrain.errors import ConfigError


def _plan(
    total: int | None = None,
    micro: int | None = None,
    accumulation: int | None = None,
    world_size: int = 2,
    lanes: int | None = None,
) -> BatchPlan:
    batch = BatchConfig(
        global_batch_size=total, per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation
    )
    return plan_batches(batch, world_size, lanes)


@pytest.mark.parametrize(
    ("given_numbers", "expected"),
    [
        ({"total": 64}, (64, 32, 1)),
        ({"micro": 8}, (16, 8, 1)),
        ({"total": 64, "micro": 8}, (64, 8, 4)),
        ({"total": 64, "accumulation": 4}, (64, 8, 4)),
        ({"micro": 8, "accumulation": 4}, (64, 8, 4)),
        ({"total": 64, "micro": 8, "accumulation": 4}, (64, 8, 4)),
    ],
)
def test_what_is_not_given_is_derived(given_numbers: dict[str, int], expected: tuple[int, int, int]) -> None:
    plan = _plan(**given_numbers)
    assert (plan.global_batch_size, plan.micro_batch_size, plan.gradient_accumulation_steps) == expected
    assert plan.sequences_per_rank == expected[0] // 2


@pytest.mark.parametrize(
    ("given_numbers", "message"),
    [
        ({}, "batch needs global_batch_size or per_device_train_batch_size"),
        ({"accumulation": 4}, "batch needs global_batch_size or per_device_train_batch_size"),
        (
            {"total": 500, "micro": 8, "world_size": 8},
            "batch.global_batch_size=500 is not a multiple of per_device_train_batch_size 8 x world size 8 = 64; "
            "nearest: 448, 512",
        ),
        ({"total": 7}, "batch.global_batch_size=7 is not a multiple of world size 2; nearest: 6, 8"),
        ({"total": 1}, "nearest: 2"),
        (
            {"total": 60, "accumulation": 4, "world_size": 4},
            "is not a multiple of gradient_accumulation_steps 4 x world size 4 = 16; nearest: 48, 64",
        ),
        (
            {"total": 500, "micro": 8, "accumulation": 8, "world_size": 8},
            "batch.global_batch_size=500 is not per_device_train_batch_size 8 x gradient_accumulation_steps 8 x "
            "world size 8 = 512; set it to 512",
        ),
        (
            {"total": 64, "micro": 8, "accumulation": 2},
            "set it to 32, or gradient_accumulation_steps to 4, or per_device_train_batch_size to 16",
        ),
        ({"total": 64, "lanes": 24}, "data.num_lanes=24 does not divide global_batch_size 64; allowed: 2, 4, 8"),
        (
            {"total": 64, "lanes": 4, "world_size": 8},
            "data.num_lanes=4 is fewer lanes than ranks (8); allowed with these lanes: 1, 2, 4 ranks; or for a new "
            "run data.num_lanes: 8, 16, 32, 64",
        ),
        ({"total": 12, "lanes": 6, "world_size": 4}, "data.num_lanes=6 is not a multiple of the world size (4)"),
        ({"total": 1000, "world_size": 8}, "data.num_lanes=500 is not a multiple of the world size (8)"),
    ],
)
def test_what_does_not_multiply_out_is_refused(given_numbers: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _plan(**given_numbers)
    assert message in str(error.value)


@pytest.mark.parametrize(("total", "lanes"), [(1, 1), (96, 96), (512, 512), (1024, 512), (1000, 500), (521, 1)])
def test_the_default_number_of_lanes_depends_on_the_global_batch_alone(total: int, lanes: int) -> None:
    assert default_num_lanes(total) == lanes


@given(
    micro=st.integers(1, 5),
    accumulation=st.integers(1, 5),
    world_size=st.integers(1, 6),
    lane_factor=st.integers(1, 30),
)
def test_every_sequence_is_computed_once_by_the_rank_that_owns_its_lane(
    micro: int, accumulation: int, world_size: int, lane_factor: int
) -> None:
    total = micro * accumulation * world_size
    choices = [d for d in divisors(total) if d % world_size == 0]
    lanes = choices[lane_factor % len(choices)]
    plan = _plan(total=total, micro=micro, world_size=world_size, lanes=lanes)
    seen: list[int] = []
    for rank in range(world_size):
        batches = plan.micro_batches_of(rank)
        assert [len(batch) for batch in batches] == [micro] * accumulation
        sequences = [sequence for batch in batches for sequence in batch]
        assert sequences == sorted(sequences)
        assert {plan.lane_of(sequence) for sequence in sequences} == set(plan.lanes_of(rank))
        seen += sequences
    assert sorted(seen) == list(range(total))


@given(st.integers(1, 5000))
def test_divisors_are_all_of_them(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
