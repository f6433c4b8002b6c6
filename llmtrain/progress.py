"""How far a run has come, and what that means: when it ends, when it evaluates and saves, which result is the best.

Pure: functions of the configuration and of a `Progress`, which is the trainer's part of a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmtrain.config.schema import Config, EvalConfig, ScheduleConfig


@dataclass
class Progress:
    """What a run has done. All counts are over all ranks; `step` counts optimizer steps, skipped ones too."""

    step: int = 0
    epoch: int = 0
    """The epoch that is being read, from 0."""
    is_between_epochs: bool = False
    """The last of an epoch's sequences is trained on, and none of the next epoch, which `epoch` names already."""
    num_tokens_seen: int = 0
    """Tokens trained on, padding not counted."""
    bad_steps_in_a_row: int = 0
    num_bad_steps: int = 0
    """Steps that were skipped because the gradient was not finite."""
    num_unsupervised_steps: int = 0
    """Steps that were skipped because no token of the global batch was supervised."""
    last_evaluated_step: int = 0
    last_saved_step: int = 0
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Progress:
        """The inverse of `to_dict`."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})

    def begin_step(self, num_tokens: int) -> None:
        """Count an optimizer step that trains on `num_tokens` tokens over all ranks."""
        self.step += 1
        self.num_tokens_seen += num_tokens
        self.is_between_epochs = False

    def end_epoch(self) -> None:
        """No rank has a sequence of this epoch left."""
        self.epoch += 1
        self.is_between_epochs = True

    def record_metric(self, value: float, *, greater_is_better: bool) -> bool:
        """Count an evaluation of the metric for the best model; whether it is the best so far."""
        better = self.best_metric is None or (
            value > self.best_metric if greater_is_better else value < self.best_metric
        )
        if better and math.isfinite(value):
            self.best_metric, self.best_step = value, self.step
            self.evaluations_without_improvement = 0
            return True
        self.evaluations_without_improvement += 1
        return False


def total_steps(schedule: ScheduleConfig, global_batch_size: int, seq_length: int) -> int | None:
    """The optimizer step at which the schedule is at its end; None where only the epochs end the run.

    `max_tokens` counts as full sequences: a run with padded ones takes more steps, at the minimum learning rate.
    """
    ends = [schedule.max_steps] if schedule.max_steps else []
    if schedule.max_tokens:
        ends.append(math.ceil(schedule.max_tokens / (global_batch_size * seq_length)))
    return min(ends, default=None)


def end_reason(config: Config, progress: Progress) -> str | None:
    """Why the run is at its end, or None where it is not."""
    schedule = config.schedule
    patience = config.eval.early_stopping_patience
    if schedule.max_steps and progress.step >= schedule.max_steps:
        return f"schedule.max_steps={schedule.max_steps} reached"
    if schedule.max_tokens and progress.num_tokens_seen >= schedule.max_tokens:
        return f"schedule.max_tokens={schedule.max_tokens} reached"
    if schedule.num_train_epochs and progress.epoch >= schedule.num_train_epochs:
        return f"schedule.num_train_epochs={schedule.num_train_epochs} reached"
    if patience and progress.evaluations_without_improvement >= patience:
        return f"early stopping: {patience} evaluations in a row without a better {best_metric_name(config.eval)}"
    return None


def best_metric_name(evaluation: EvalConfig) -> str | None:
    """The metric that decides which checkpoint is the best, None where nothing asks for one."""
    if evaluation.metric_for_best_model is None and evaluation.early_stopping_patience:
        return "eval_loss"
    return evaluation.metric_for_best_model


def evaluation_is_due(config: Config, progress: Progress, *, epoch_ended: bool, run_ended: bool) -> bool:
    """Whether the step that was just done is to be evaluated."""
    strategy = config.eval.eval_strategy
    if strategy == "no" or progress.last_evaluated_step == progress.step:
        return False
    by_steps = strategy == "steps" and progress.step % (config.eval.eval_steps or 1) == 0
    return run_ended or by_steps or (strategy == "epoch" and epoch_ended)


def save_is_due(config: Config, progress: Progress, *, epoch_ended: bool, run_ended: bool, is_best: bool) -> bool:
    """Whether the step that was just done is to be saved.

    A run that saves nothing by itself still saves its end where it was interrupted before: its newest checkpoint is
    then its end, and resuming it trains nothing. While steps are bad nothing is saved but the end; a save by steps that
    was due meanwhile follows after the next good step.
    """
    strategy, last = config.checkpoint.save_strategy, progress.last_saved_step
    if last == progress.step or (progress.bad_steps_in_a_row and not run_ended):
        return False
    if strategy == "no":
        return run_ended and last > 0
    every = config.checkpoint.save_steps
    by_steps = strategy == "steps" and progress.step // every > last // every
    return run_ended or is_best or by_steps or (strategy == "epoch" and epoch_ended)
