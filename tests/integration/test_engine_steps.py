"""What happens to a step that went wrong, and what the engine shows of itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from llmtrain.batching import BatchPlan
from llmtrain.engine import Engine, StepOutcome
from tests.support.engines import Scenario, Trained, make_config, make_model, train_on_ranks, train_plainly
from tests.support.ranks import RankPool

BAD_STEP = 1
PLACES = [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]


def _assert_skipped(trained: list[Trained], oracle: Trained, tolerance: float) -> None:
    """Every rank left the bad step out, weights and moments untouched, and went on as if it had not been."""
    for rank in trained:
        assert [outcome.skipped for outcome in rank.outcomes] == [step == BAD_STEP for step in range(4)]
        assert not any(outcome.overflow for outcome in rank.outcomes)
        assert not math.isfinite(rank.outcomes[BAD_STEP].grad_norm)
        before, after = rank.moments[BAD_STEP - 1], rank.moments[BAD_STEP]
        assert len(before) == len(after) > 0
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new)
    for name, weights in trained[0].weights[BAD_STEP - 1].items():
        np.testing.assert_array_equal(trained[0].weights[BAD_STEP][name], weights, err_msg=name)
    losses = np.sum([rank.loss_sums for rank in trained], axis=0)
    np.testing.assert_allclose(losses, oracle.loss_sums, rtol=tolerance)


def _cases() -> Iterator[Any]:
    """Every place in fp32; in bf16 by default those whose code differs from the others'."""
    for precision, (stage, offload) in product(("fp32", "bf16"), PLACES):
        is_slow = precision == "bf16" and (stage, offload) not in ((1, False), (2, False), (2, True), (3, False))
        yield pytest.param(precision, stage, offload, marks=[pytest.mark.verify] if is_slow else [])


@pytest.mark.parametrize(("precision", "stage", "offload"), list(_cases()))
def test_a_bad_step_changes_nothing_and_the_next_one_is_fine(
    precision: str, stage: int, offload: bool, two_ranks: RankPool
) -> None:
    """One rank's loss is NaN. (Under offload DeepSpeed kept the NaN in its accumulated gradients for ever.)"""
    scenario = Scenario(stage=stage, offload=offload, precision=precision, accumulation=2, poison_step=BAD_STEP)
    trained = two_ranks.run(train_on_ranks, scenario)
    _assert_skipped(trained, train_plainly(scenario), 1e-5 if precision == "fp32" else 1e-3)


def test_a_bad_step_leaves_muons_momentum_alone(two_ranks: RankPool) -> None:
    base = Scenario(optimizer="muon", max_grad_norm=0.0, accumulation=2)
    for stage in (0, 2, 3):
        scenario = Scenario(**{**vars(base), "stage": stage, "poison_step": BAD_STEP})
        trained = two_ranks.run(train_on_ranks, scenario)
        losses = np.sum([rank.loss_sums for rank in trained], axis=0)
        oracle = Trained(list(losses), [], [], [], "itself")
        _assert_skipped(trained, oracle, 0.0)
        assert np.isfinite(losses).all()


def _facts() -> dict[str, Any]:
    from llmtrain.engine import construction_context, deepspeed_config

    scenario = Scenario(stage=3, zero={"stage3_param_persistence_threshold": 0})
    config = make_config(scenario)
    import deepspeed.comm

    from llmtrain.batching import plan_batches

    plan = plan_batches(config.batch, deepspeed.comm.get_world_size(), None)
    ds_config = deepspeed_config(config, plan, "cpu")
    given_config = repr(ds_config)
    with construction_context(ds_config) as context:
        model = make_model()
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    engine = Engine.create(model, config, ds_config, plan, torch.device("cpu"), context)
    del context
    facts: dict[str, Any] = {
        "stage": engine.zero_stage,
        "transformers_knows_of_zero3": is_deepspeed_zero3_enabled(),
        "partitioned": {tuple(p.shape) for p in engine.module.parameters()},
        "unchanged": repr(ds_config) == given_config,
        "device": str(engine.device),
        "loss_scale": engine.loss_scale,
        "peak_memory_bytes": engine.peak_memory_bytes(),
    }
    with engine.gathered_parameters():
        facts["gathered"] = {n: tuple(p.shape) for n, p in engine.module.named_parameters()}
    engine.train_mode()
    facts["training"] = engine.module.training
    engine.eval_mode()
    facts["evaluating"] = not engine.module.training
    engine.close()
    with construction_context({**ds_config, "zero_optimization": {"stage": 2}}):
        facts["forgotten"] = not is_deepspeed_zero3_enabled()
    return facts


def test_the_engine_shows_what_it_is(two_ranks: RankPool) -> None:
    for facts in two_ranks.run(_facts):
        assert facts["stage"] == 3
        assert facts["transformers_knows_of_zero3"]
        assert facts["forgotten"]
        assert facts["partitioned"] == {(0,)}
        assert facts["gathered"] == {n: tuple(p.shape) for n, p in make_model().named_parameters()}
        assert facts["unchanged"]
        assert (facts["device"], facts["loss_scale"]) == ("cpu", None)
        assert facts["peak_memory_bytes"] > 100e6
        assert facts["training"]
        assert facts["evaluating"]


class _OverflowingFp16:
    """DeepSpeed's engine and optimizer in fp16, as the engine sees them: every step overflows (injected fault)."""

    def __init__(self, loss_scale: float) -> None:
        self.optimizer = self
        self.loss_scale = loss_scale
        self.param_groups = [{"lr": 0.0, "lr_scale": 2.0}, {"lr": 0.0}]

    def is_gradient_accumulation_boundary(self) -> bool:
        return True

    def step(self) -> None:
        self.loss_scale = max(1.0, self.loss_scale / 2)

    def was_step_applied(self) -> bool:
        return False

    def get_global_grad_norm(self) -> float:
        return float("inf")


@pytest.mark.parametrize(
    ("loss_scale", "fp16", "overflow", "next_scale"),
    [
        (65536.0, {}, True, 32768.0),
        (2.0, {}, True, 1.0),
        (1.0, {}, False, 1.0),
        (4.0, {"min_loss_scale": 4}, False, 2.0),
        (128.0, {"loss_scale": 128}, False, 64.0),
    ],
)
def test_an_fp16_overflow_is_a_bad_step_only_when_the_loss_scale_cannot_fall(
    loss_scale: float, fp16: dict[str, Any], overflow: bool, next_scale: float
) -> None:
    ds_config = {"fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": 2}}
    deepspeed = _OverflowingFp16(loss_scale)
    engine = Engine(deepspeed, BatchPlan(8, 8, 1, 1, 8), ds_config)
    assert engine.step(0.5) == StepOutcome(float("inf"), skipped=True, overflow=overflow, loss_scale=next_scale)
    assert [group["lr"] for group in deepspeed.param_groups] == [1.0, 0.5]
