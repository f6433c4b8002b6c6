"""A run resumes from any other's checkpoint: every ZeRO stage, offload, precision, optimizer and number of ranks.

By default each setup saves once, resumes another's checkpoint once, and some resume their own; all pairs are behind the
marker `faults`. What a resumed engine saves at once must be bitwise what it loaded, weights, moments and counts; what
it then trains must be the uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.checkpoint_runs import SAVED_STEP, Outcome, Setup, differences, resume, state_of, train_and_save
from tests.support.ranks import RankPool

FP32_TOLERANCE = 2e-6
BF16_TOLERANCE = 4e-4
"""Losses of 4.6 in bf16 are apart by 1.3e-4 between one rank and two without any checkpoint."""

# Neighbours differ in world size, stage and precision: each resumes the checkpoint of the one before it.
RING = [
    Setup(0, 1),
    Setup(3, 2),
    Setup(2, 1, precision="bf16"),
    Setup(0, 2),
    Setup(1, 1, precision="bf16"),
    Setup(2, 2, offload=True),
    Setup(3, 1, precision="bf16"),
    Setup(1, 2),
    Setup(3, 1, offload=True, offload_param=True),
    Setup(2, 2, precision="bf16"),
    Setup(2, 1),
    Setup(3, 2, precision="bf16", offload=True, offload_param=True),
    Setup(1, 1),
    Setup(0, 2, precision="bf16", optimizer="torch", plain_bf16=True),
    Setup(3, 1),
    Setup(2, 2),
    Setup(0, 1, precision="bf16", optimizer="fused", plain_bf16=True),
    Setup(2, 2, optimizer="cpu_adam"),
    Setup(2, 1, offload=True, optimizer="torch"),
    Setup(1, 2, precision="bf16"),
]
SAME = [
    Setup(0, 2),
    Setup(1, 2, precision="bf16"),
    Setup(2, 2, offload=True),
    Setup(3, 2),
    Setup(3, 2, precision="bf16", offload=True, offload_param=True),
]
ALL = [
    *RING,
    Setup(1, 1, offload=True),
    Setup(3, 2, offload=True, optimizer="torch"),
    Setup(2, 1, precision="bf16", offload=True),
    Setup(1, 2, precision="bf16", offload=True),
]
MUON = [
    Setup(stage, world_size, offload=offload, precision=precision, optimizer="muon")
    for stage, world_size, offload, precision in (
        (2, 2, False, "fp32"),
        (3, 1, False, "fp32"),
        (1, 2, False, "bf16"),
        (0, 1, False, "fp32"),
        (3, 2, True, "fp32"),
        (2, 1, False, "bf16"),
        (2, 2, True, "fp32"),
    )
]

Save = Callable[[Setup], Outcome]


@pytest.fixture(scope="module")
def pools(one_rank: RankPool, two_ranks: RankPool) -> dict[int, RankPool]:
    return {1: one_rank, 2: two_ranks}


@pytest.fixture(scope="module")
def saved(pools: dict[int, RankPool], tmp_path_factory: pytest.TempPathFactory) -> Save:
    """The uninterrupted run of a setup, with a checkpoint in its middle; made once."""
    root = tmp_path_factory.mktemp("saved")

    @cache
    def save(setup: Setup) -> Outcome:
        outcome: Outcome = pools[setup.world_size].run(train_and_save, setup, root / str(setup))[0]
        return outcome

    return save


def _check(source: Setup, target: Setup, saved: Save, pools: dict[int, RankPool], root: Path) -> None:
    original = saved(source)
    assert original.path is not None
    resumed: Outcome = pools[target.world_size].run(resume, target, original.path, root)[0]
    assert resumed.path is not None
    assert differences(state_of(original.path), state_of(resumed.path)) == []
    assert resumed.trainer_state == {"step": SAVED_STEP}
    assert resumed.rank_states == [{"rank": rank, "lane": 10 * rank} for rank in range(source.world_size)]
    expected = original.losses[SAVED_STEP:]
    if source == target:
        assert resumed.losses == expected
    else:
        exact = source.precision == target.precision == "fp32"
        assert resumed.losses == pytest.approx(expected, abs=FP32_TOLERANCE if exact else BF16_TOLERANCE)


@pytest.mark.parametrize(("source", "target"), list(zip([RING[-1], *RING[:-1]], RING, strict=True)), ids=str)
def test_a_run_resumes_anothers_checkpoint(
    source: Setup, target: Setup, saved: Save, pools: dict[int, RankPool], tmp_path: Path
) -> None:
    _check(source, target, saved, pools, tmp_path)


@pytest.mark.parametrize("setup", SAME, ids=str)
def test_a_run_resumes_its_own_checkpoint_bitwise(
    setup: Setup, saved: Save, pools: dict[int, RankPool], tmp_path: Path
) -> None:
    _check(setup, setup, saved, pools, tmp_path)


@pytest.mark.parametrize(("source", "target"), list(zip(MUON[:2], MUON[1:3], strict=True)), ids=str)
def test_muons_momentum_is_found_wherever_it_is_kept(
    source: Setup, target: Setup, saved: Save, pools: dict[int, RankPool], tmp_path: Path
) -> None:
    _check(source, target, saved, pools, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("source", MUON, ids=str)
def test_muon_resumes_every_checkpoint_of_muon(
    source: Setup, saved: Save, pools: dict[int, RankPool], tmp_path: Path
) -> None:
    for target in MUON:
        _check(source, target, saved, pools, tmp_path / str(target))


@pytest.mark.faults
@pytest.mark.parametrize("source", ALL, ids=str)
def test_every_run_resumes_every_checkpoint(
    source: Setup, saved: Save, pools: dict[int, RankPool], tmp_path: Path
) -> None:
    for target in ALL:
        _check(source, target, saved, pools, tmp_path / str(target))


def test_the_setups_cover_every_kind_of_optimizer(saved: Save) -> None:
    assert {saved(setup).optimizer for setup in RING} == {
        "AdamW",
        "BF16_Optimizer",
        "DeepSpeedZeroOptimizer",
        "DeepSpeedZeroOptimizer_Stage3",
        "FP16_Optimizer",
        "FP16_UnfusedOptimizer",
    }
