"""The held-out loss of one set: the sum of its token losses over its supervised tokens.

The sum is over tokens, so it does not depend on how sequences fall into batches or onto ranks. Ranks agree before each
batch whether any of them has one, because under ZeRO-3 a forward pass needs all ranks: one that has run out evaluates
empty batches until the last is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llmtrain.tracking.reports import EvalReport


class EvalBatch(Protocol):
    """One batch of one rank; empty where the rank has run out (`has_sequence` false, no supervised token)."""

    @property
    def batch(self) -> dict[str, torch.Tensor]: ...

    @property
    def has_sequence(self) -> bool: ...


@dataclass(frozen=True)
class Agreed:
    """What all ranks know before a batch."""

    any_sequence: bool
    stop_requested: bool


@dataclass(frozen=True)
class SetLoss:
    """The result over all ranks; `stopped` where a stop was requested before the set was through."""

    loss: float
    num_supervised_tokens: int
    stopped: bool = False


def evaluate_set(
    batches: Iterable[EvalBatch],
    token_losses: Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]],
    *,
    agree: Callable[[bool], Agreed],
    sum_over_ranks: Callable[[list[float]], list[float]],
    max_batches: int | None = None,
) -> SetLoss:
    """Evaluate one set.

    Args:
        batches: this rank's; goes on with empty ones for ever after its last.
        token_losses: a batch to (sum of the token losses, number of supervised tokens), scalars.
        agree: whether this rank has a sequence, to what all ranks know.
        sum_over_ranks: adds up each figure over the ranks.
        max_batches: stop after so many batches.
    """
    loss_sum, num_tokens = 0.0, 0.0
    stopped = False
    with torch.no_grad():
        for index, rank_batch in enumerate(batches):
            agreed = agree(rank_batch.has_sequence and index != max_batches)
            stopped = agreed.stop_requested
            if stopped or not agreed.any_sequence:
                break
            batch_sum, batch_tokens = token_losses(rank_batch.batch)
            loss_sum += float(batch_sum)
            num_tokens += float(batch_tokens)
    loss_sum, num_tokens = sum_over_ranks([loss_sum, num_tokens])
    loss = loss_sum / num_tokens if num_tokens else math.nan
    return SetLoss(loss, int(num_tokens), stopped)


class HasLoss(Protocol):
    """What `token_losses_of` needs of a task (`llmtrain.tasks.base.Task`)."""

    def loss(self, model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> Any:
        """The batch's `loss_sum` and `num_supervised_tokens`."""


def token_losses_of(
    task: HasLoss, model: Callable[..., Any], device: torch.device
) -> Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """A batch, wherever it is, to the sum of its token losses and the number of its supervised tokens."""

    def token_losses(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        output = task.loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
        return output.loss_sum, output.num_supervised_tokens

    return token_losses


@dataclass(frozen=True)
class Evaluation:
    """Every held-out set of a run, ready to be evaluated at any step.

    `sets` maps a set's name ("" where there is one without a name) to a function that starts its batches anew.
    """

    module: torch.nn.Module
    sets: Mapping[str, Callable[[], Iterable[EvalBatch]]]
    token_losses: Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
    agree: Callable[[bool], Agreed]
    sum_over_ranks: Callable[[list[float]], list[float]]
    max_batches: int | None = None

    def run(self, step: int, num_tokens_seen: int | None = None) -> list[EvalReport] | None:
        """One report a set, or None where a stop was requested before all were through."""
        reports = []
        with evaluating(self.module):
            for name, batches in self.sets.items():
                result = evaluate_set(
                    batches(),
                    self.token_losses,
                    agree=self.agree,
                    sum_over_ranks=self.sum_over_ranks,
                    max_batches=self.max_batches,
                )
                if result.stopped:
                    return None
                reports.append(
                    EvalReport(
                        step=step,
                        eval_loss=result.loss,
                        num_supervised_tokens=result.num_supervised_tokens,
                        eval_set=name or None,
                        num_tokens_seen=num_tokens_seen,
                    )
                )
        return reports


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """`module` is in evaluation mode in the block; its mode and torch's random state come back after it."""
    was_training = module.training
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        module.eval()
        try:
            yield
        finally:
            module.train(was_training)


def metric_values(reports: Sequence[EvalReport]) -> dict[str, float]:
    """What `eval.metric_for_best_model` may name: of the first set without its name, of each named set with it."""
    values = {"eval_loss": reports[0].eval_loss, "eval_perplexity": reports[0].eval_perplexity}
    for report in reports:
        values.update(report.metrics())
    return values
