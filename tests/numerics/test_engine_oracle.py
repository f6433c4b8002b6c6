"""The engine against a plain PyTorch loop: losses, gradient norms and weights, however batch and state are split.

The oracle is one process with whole batches and torch's AdamW. A few combinations run by default, all of them under the
marker `verify`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support.engines import Scenario, Trained, train_on_ranks, train_plainly
from tests.support.ranks import RankPool

PLACES = [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]
"""ZeRO stage, optimizer offload."""
DEFAULT = [
    *((stage, offload, 2, 2) for stage, offload in PLACES),
    *((stage, offload, 1, 4) for stage, offload in ((0, False), (2, False), (3, False), (2, True))),
    *((stage, False, 2, 1) for stage in (0, 2, 3)),
]
"""ZeRO stage, optimizer offload, ranks, accumulation."""
ALL = [(stage, offload, ranks, acc) for (stage, offload), ranks, acc in product(PLACES, (1, 2), (1, 2, 4))]
FP32_TOLERANCE = 1e-5


@cache
def _oracle(labels: str = "uneven", max_grad_norm: float = 1.0) -> Trained:
    return train_plainly(Scenario(labels=labels, max_grad_norm=max_grad_norm))


def _pool(ranks: int, one_rank: RankPool, two_ranks: RankPool) -> RankPool:
    return one_rank if ranks == 1 else two_ranks


def _assert_equal(trained: list[Trained], oracle: Trained, tolerance: float = FP32_TOLERANCE) -> None:
    losses = np.sum([rank.loss_sums for rank in trained], axis=0)
    np.testing.assert_allclose(losses, oracle.loss_sums, rtol=tolerance)
    for rank in trained:
        norms = [outcome.grad_norm for outcome in rank.outcomes]
        np.testing.assert_allclose(norms, [outcome.grad_norm for outcome in oracle.outcomes], rtol=tolerance)
        assert not any(outcome.skipped or outcome.overflow for outcome in rank.outcomes)
    for name, weights in oracle.weights[-1].items():
        np.testing.assert_allclose(trained[0].weights[-1][name], weights, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("stage", "offload", "ranks", "accumulation"), DEFAULT)
def test_a_run_is_the_plain_loop(
    stage: int, offload: bool, ranks: int, accumulation: int, one_rank: RankPool, two_ranks: RankPool
) -> None:
    scenario = Scenario(stage=stage, offload=offload, accumulation=accumulation)
    _assert_equal(_pool(ranks, one_rank, two_ranks).run(train_on_ranks, scenario), _oracle())


@pytest.mark.verify
@pytest.mark.parametrize(("stage", "offload", "ranks", "accumulation"), [case for case in ALL if case not in DEFAULT])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
@pytest.mark.parametrize("labels", ["uneven", "all"])
def test_every_run_is_the_plain_loop(
    stage: int,
    offload: bool,
    ranks: int,
    accumulation: int,
    max_grad_norm: float,
    labels: str,
    one_rank: RankPool,
    two_ranks: RankPool,
) -> None:
    scenario = Scenario(
        stage=stage, offload=offload, accumulation=accumulation, max_grad_norm=max_grad_norm, labels=labels
    )
    _assert_equal(_pool(ranks, one_rank, two_ranks).run(train_on_ranks, scenario), _oracle(labels, max_grad_norm))


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("labels", ["one", "none_on_last"])
def test_a_token_counts_the_same_on_a_rank_that_has_few_of_them(stage: int, labels: str, two_ranks: RankPool) -> None:
    """Rank 0 has one label and rank 1 all of its own; or rank 1 has none."""
    scenario = Scenario(stage=stage, labels=labels, accumulation=2)
    _assert_equal(two_ranks.run(train_on_ranks, scenario), _oracle(labels))


@pytest.mark.parametrize(("stage", "offload"), [(0, False), (1, False), (2, True), (3, False)])
def test_clipping_switched_off_leaves_the_gradient_alone(stage: int, offload: bool, two_ranks: RankPool) -> None:
    assert _oracle().outcomes[0].grad_norm > 1.0, "the oracle must clip, or nothing is tested"
    scenario = Scenario(stage=stage, offload=offload, max_grad_norm=0.0)
    _assert_equal(two_ranks.run(train_on_ranks, scenario), _oracle("uneven", 0.0))


@pytest.mark.parametrize(("stage", "offload"), [(0, False), (2, False), (2, True), (3, False)])
def test_bf16_follows_the_plain_loop_within_its_rounding(stage: int, offload: bool, two_ranks: RankPool) -> None:
    scenario = Scenario(stage=stage, offload=offload, precision="bf16", accumulation=2)
    trained = two_ranks.run(train_on_ranks, scenario)
    losses = np.sum([rank.loss_sums for rank in trained], axis=0)
    np.testing.assert_allclose(losses, _oracle().loss_sums, rtol=1e-3)
    norms = [outcome.grad_norm for outcome in trained[0].outcomes]
    np.testing.assert_allclose(norms, [outcome.grad_norm for outcome in _oracle().outcomes], rtol=1e-2)


def test_stage_0_in_bf16_is_stage_1(two_ranks: RankPool) -> None:
    zero, one = (
        two_ranks.run(train_on_ranks, Scenario(stage=stage, precision="bf16", accumulation=2)) for stage in (0, 1)
    )
    assert zero[0].loss_sums == one[0].loss_sums
    assert zero[0].outcomes == one[0].outcomes
    for name, weights in one[0].weights[-1].items():
        np.testing.assert_array_equal(zero[0].weights[-1][name], weights)


def test_bf16_gradients_accumulate_in_fp32(one_rank: RankPool) -> None:
    """One micro-batch a sequence: in bf16 the sum of the eight would be rounded seven times."""
    whole, split = (
        one_rank.run(train_on_ranks, Scenario(stage=2, precision="bf16", accumulation=accumulation, num_steps=1))[0]
        for accumulation in (1, 8)
    )
    in_bf16 = one_rank.run(
        train_on_ranks,
        Scenario(
            stage=2,
            precision="bf16",
            accumulation=8,
            num_steps=1,
            deepspeed={"data_types": {"grad_accum_dtype": "bf16"}},
        ),
    )[0]
    exact = _oracle().outcomes[0].grad_norm
    error_of = {
        name: abs(run.outcomes[0].grad_norm / exact - 1)
        for name, run in (("whole", whole), ("split", split), ("in_bf16", in_bf16))
    }
    assert error_of["split"] < 3e-3, error_of
    assert split.outcomes[0].grad_norm != in_bf16.outcomes[0].grad_norm, error_of


@pytest.mark.parametrize(("optimizer", "max_grad_norm"), [("adamw", 1.0), ("muon", 0.0)])
def test_a_model_that_was_built_in_pieces_trains_as_a_whole_one(
    optimizer: str, max_grad_norm: float, two_ranks: RankPool
) -> None:
    """ZeRO-3's construction, where a parameter is an empty placeholder while the optimizer's groups are made."""
    whole = Scenario(stage=3, optimizer=optimizer, max_grad_norm=max_grad_norm, num_steps=2)
    expected = two_ranks.run(train_on_ranks, whole)
    trained = two_ranks.run(train_on_ranks, replace(whole, is_built_in_pieces=True))
    for rank, expected_of_rank in zip(trained, expected, strict=True):
        np.testing.assert_allclose(rank.loss_sums, expected_of_rank.loss_sums, rtol=FP32_TOLERANCE)
    for name, weights in expected[0].weights[-1].items():
        np.testing.assert_allclose(trained[0].weights[-1][name], weights, atol=FP32_TOLERANCE, err_msg=name)


@pytest.mark.parametrize(("optimizer", "max_grad_norm"), [("lion", 1.0), ("muon", 0.0)])
def test_other_optimizers_do_the_same_at_every_stage(
    optimizer: str, max_grad_norm: float, one_rank: RankPool, two_ranks: RankPool
) -> None:
    base = Scenario(optimizer=optimizer, max_grad_norm=max_grad_norm, num_steps=3)
    reference = one_rank.run(train_on_ranks, base)[0]
    assert reference.loss_sums[-1] < reference.loss_sums[0]
    for stage, offload in ((0, False), (1, False), (2, True), (3, False)):
        trained = two_ranks.run(train_on_ranks, replace(base, stage=stage, offload=offload, accumulation=2))
        losses = np.sum([rank.loss_sums for rank in trained], axis=0)
        np.testing.assert_allclose(losses, reference.loss_sums, rtol=FP32_TOLERANCE, err_msg=f"stage {stage}")


@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 1)])
def test_muon_clips_the_gradient_where_it_may_be_clipped(precision: str, stage: int, two_ranks: RankPool) -> None:
    """The norm that is reported is the gradient's, as with AdamW."""
    trained = two_ranks.run(train_on_ranks, Scenario(optimizer="muon", precision=precision, stage=stage, num_steps=1))[
        0
    ]
    assert trained.outcomes[0].grad_norm == pytest.approx(_oracle().outcomes[0].grad_norm, rel=5e-3)
