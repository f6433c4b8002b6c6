"""The loop of a run, from its first step to its exported model. `construction.py` makes the parts that it moves.

A step goes through these stages:

1. `_next_step` awaits what all ranks agreed on: the supervised tokens N of the step, whether any rank has a sequence,
   whether one asked to stop, whether one failed. The agreement travels while the step before is computed.
2. `_train_step` runs the micro-batches forward and backward, each scaled to its share of N, and updates the weights.
3. `_conclude` evaluates and saves where that is due.

Data, checkpoints and numbers are exact because what decides them is a function of the step (`Progress`, the learning
rate) or travels with the data (`RankStep.lane_states`): a checkpoint holds what was trained on, whatever has been read
ahead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from llmtrain.callbacks import Callback
from llmtrain.config import parse_duration
from llmtrain.construction import Parts
from llmtrain.data.loader import RankStep
from llmtrain.dist.signals import StopRequest
from llmtrain.engine import StepOutcome
from llmtrain.errors import Interrupted, TrainingError
from llmtrain.evaluation import metric_values
from llmtrain.meter import StepMeter
from llmtrain.progress import best_metric_name, end_reason, evaluation_is_due, save_is_due, total_steps
from llmtrain.schedules import learning_rate_factor
from llmtrain.tracking.reports import EvalReport, StepReport


@dataclass(frozen=True)
class Step:
    """An optimizer step that all ranks are about to take: this rank's data and the counts over all ranks."""

    data: RankStep
    num_supervised_tokens: int
    num_tokens: int


@dataclass(frozen=True)
class StepResult:
    """What a step left behind on this rank; `loss_sum` stays on the device until a report needs it."""

    loss_sum: torch.Tensor
    num_supervised_tokens: int
    learning_rate: float
    outcome: StepOutcome | None


class Trainer:
    """One run on one rank. `fit` trains it to its end; `run.py` adds how a process starts and ends."""

    def __init__(self, parts: Parts, stop: StopRequest, callbacks: Sequence[Callback] = ()) -> None:
        self.parts = parts
        self.config = parts.config
        self.dist = parts.dist
        self.progress = parts.progress
        self.engine = parts.engine
        self.stop = stop
        self.callbacks = callbacks
        self._started = time.monotonic()
        self._time_limit = parse_duration(self.config.run.time_limit) if self.config.run.time_limit else None
        self._agreement = self.dist.agreement()
        self._meter = StepMeter()
        self._total_steps = total_steps(
            self.config.schedule, self.parts.plan.global_batch_size, self.config.data.seq_length
        )
        self._upcoming: RankStep | None = None
        self._fetch_error: Exception | None = None
        self._last: StepResult | None = None
        self._last_logged_step = self.progress.step

    def fit(self) -> str:
        """Train until the run is at its end; why it is at its end.

        Raises:
            Interrupted: a stop was requested; a checkpoint has been saved.
            TrainingError: too many bad steps in a row.
            RankFailedError: another rank failed.
        """
        end = end_reason(self.config, self.progress)
        if end and self.parts.is_done:
            self.parts.console.say(f"nothing to train: {end}")
            return end
        self.parts.begin()
        if self.progress.step:
            # What the interrupted run still owed for its last step: an evaluation, or the end.
            end = self._conclude(epoch_ended=self.progress.is_between_epochs, end=end)
        while not end:
            step = self._next_step()
            if step:
                self._train_step(step)
            else:
                self.parts.check_epoch(self.progress.epoch)
                self.progress.end_epoch()
            end = end_reason(self.config, self.progress)
            end = self._conclude(epoch_ended=step is None, end=end)
            if step is None and not end:
                self.parts.loader.start_epoch(self.progress.epoch)
        self._finish(end)
        return end

    # --- one step -----------------------------------------------------------------------------------------------

    def _next_step(self) -> Step | None:
        """The next step, or None where the epoch has no sequence left on any rank."""
        stop_at_step = self.config.run.stop_at_step
        if stop_at_step and self.progress.step >= stop_at_step:
            self._interrupt(f"run.stop_at_step={stop_at_step} reached")
        self._meter.start()
        if not self._agreement.is_posted:
            self._fetch_and_post()
        agreed = self._agreement.wait()
        if agreed.any_failed:
            self._end_on_failed_fetch()
        if agreed.stop_requested:
            self._interrupt(self._stop_reason())
        if not agreed.any_sequence:
            return None
        assert self._upcoming is not None
        return Step(self._upcoming, agreed.num_supervised_tokens, agreed.num_tokens)

    def _fetch_and_post(self) -> None:
        """Take the next step's data and tell the other ranks about it; whatever goes wrong is told too."""
        try:
            self._upcoming, self._fetch_error = self.parts.loader.next_step(), None
        except Exception as error:  # noqa: BLE001  (raised by _end_on_failed_fetch, once all ranks know)
            self._upcoming, self._fetch_error = None, error
        data = self._upcoming
        self._agreement.post(
            num_supervised_tokens=data.num_supervised_tokens if data else 0,
            num_tokens=data.num_tokens if data else 0,
            has_sequence=data is not None and data.has_sequence,
            stop_requested=self._wants_to_stop(),
            failed=data is None,
        )

    def _train_step(self, step: Step) -> None:
        progress = self.progress
        progress.begin_step(step.num_tokens)
        is_last = end_reason(self.config, progress) is not None
        learning_rate = self.config.optimizer.learning_rate * learning_rate_factor(
            self.config.schedule, progress.step, self._total_steps
        )
        loss_sum, outcome = self._compute(step, learning_rate, fetch_next=not is_last)
        self.parts.lane_states = {**self.parts.lane_states, **step.data.lane_states}
        self._last = StepResult(loss_sum, step.num_supervised_tokens, learning_rate, outcome)
        self._meter.count(step.num_tokens, step.data.wait_seconds)
        self.parts.trace(progress.step, step.data)
        self.parts.console.advance(progress.step, progress.num_tokens_seen)
        self._count_bad_step(outcome)
        if progress.step % self.config.tracking.logging_steps == 0 or progress.step == 1 or is_last or self.callbacks:
            self._report_step()

    def _compute(
        self, step: Step, learning_rate: float, *, fetch_next: bool
    ) -> tuple[torch.Tensor, StepOutcome | None]:
        """Forward, backward and update; the sum of this rank's token losses, and what became of the update."""
        loss_sum = torch.zeros((), device=self.dist.device)
        outcome: StepOutcome | None = None
        micro_batches = step.data.micro_batches if step.num_supervised_tokens else []
        for index, batch in enumerate(micro_batches):
            output = self.parts.task.loss(self.engine.forward_model, self._to_device(batch))
            loss_sum += output.loss_sum.detach()
            if fetch_next and index == len(micro_batches) - 1:
                self._fetch_and_post()
            self.engine.backward(output.loss_sum, step.num_supervised_tokens)
            outcome = self.engine.step(learning_rate)
        if not micro_batches:
            self.progress.num_unsupervised_steps += 1
            self.parts.console.say(f"step {self.progress.step} skipped: none of its tokens is supervised")
        return loss_sum, outcome

    def _count_bad_step(self, outcome: StepOutcome | None) -> None:
        progress, limit = self.progress, self.config.fault.max_bad_steps
        if outcome is None or outcome.overflow:
            return
        if not outcome.skipped:
            progress.bad_steps_in_a_row = 0
            return
        progress.num_bad_steps += 1
        progress.bad_steps_in_a_row += 1
        self.parts.console.say(f"step {progress.step} skipped: its gradient norm is {outcome.grad_norm}")
        if progress.bad_steps_in_a_row >= limit:
            self._report_step()
            raise TrainingError(
                f"{limit} steps in a row had no finite loss and gradient (fault.max_bad_steps), the last one step "
                f"{progress.step}: lower optimizer.learning_rate, lengthen schedule.warmup_steps, or look at the data; "
                f"the last checkpoint is from before them (step {progress.last_saved_step})"
            )

    def _to_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.dist.device, non_blocking=True) for name, tensor in batch.items()}

    # --- what follows a step ------------------------------------------------------------------------------------

    def _conclude(self, *, epoch_ended: bool, end: str | None) -> str | None:
        """Evaluate and save where it is due; why the run is at its end after that."""
        due = {"epoch_ended": epoch_ended}
        is_best = False
        if evaluation_is_due(self.config, self.progress, run_ended=bool(end), **due):
            is_best = self._evaluate()
            end = end or end_reason(self.config, self.progress)
        if save_is_due(self.config, self.progress, run_ended=bool(end), is_best=is_best, **due):
            self._save()
        return end

    def _evaluate(self) -> bool:
        """Evaluate every set; whether the metric for the best model is the best so far."""
        self._meter.stop()
        reports = self.parts.evaluation.run(self.progress.step, self.progress.num_tokens_seen)
        if reports is None:
            self._interrupt(self._stop_reason())
        self.progress.last_evaluated_step = self.progress.step
        for report in reports:
            self.parts.tracker.log_eval(report)
        for callback in self.callbacks:
            callback.on_evaluate(reports)
        return self._record_best(reports)

    def _record_best(self, reports: Sequence[EvalReport]) -> bool:
        name = best_metric_name(self.config.eval)
        if name is None:
            return False
        value = metric_values(reports)[name]
        is_best = self.progress.record_metric(value, greater_is_better=self.config.eval.greater_is_better)
        if is_best:
            self.parts.store.protect_best(self.progress.step)
        return is_best

    def _save(self) -> None:
        """Save the step that was just done, unless it is saved already."""
        if self.progress.last_saved_step == self.progress.step:
            return
        self._meter.stop()
        if self.progress.bad_steps_in_a_row and not self.parts.weights_are_finite():
            raise TrainingError(f"the weights are not finite after step {self.progress.step}: nothing of it was saved")
        self.progress.last_saved_step = self.progress.step
        path = self.parts.save()
        for callback in self.callbacks:
            callback.on_save(path)

    def _report_step(self) -> None:
        """Bring the figures of the last step together and log them."""
        last, progress = self._last, self.progress
        if last is None or self._last_logged_step == progress.step:
            return
        self._last_logged_step = progress.step
        figures = self.dist.all_gather_objects(
            (float(last.loss_sum), self._meter.read(), self.engine.peak_memory_bytes())
        )
        readings = [reading for _, reading, _ in figures]
        report = StepReport(
            step=progress.step,
            epoch=progress.epoch,
            loss=sum(loss for loss, _, _ in figures) / last.num_supervised_tokens
            if last.num_supervised_tokens
            else None,
            learning_rate=last.learning_rate,
            grad_norm=last.outcome.grad_norm if last.outcome else None,
            num_supervised_tokens=last.num_supervised_tokens,
            num_tokens_seen=progress.num_tokens_seen,
            tokens_per_second=readings[0].tokens_per_second,
            model_flops_utilization=self.parts.utilization(readings[0].tokens_per_second),
            step_seconds=readings[0].step_seconds,
            data_wait_seconds=max(reading.data_wait_seconds for reading in readings),
            peak_memory_bytes=max(memory for _, _, memory in figures),
        )
        self.parts.tracker.log_step(report)
        for callback in self.callbacks:
            callback.on_step_end(report)

    # --- how it ends --------------------------------------------------------------------------------------------

    def _finish(self, end: str) -> None:
        self._report_step()
        if self._agreement.is_posted:
            self._agreement.wait()
        for callback in self.callbacks:
            callback.on_end(end)
        self.parts.export_final()

    def _wants_to_stop(self) -> bool:
        if self._time_limit is not None and time.monotonic() - self._started >= self._time_limit:
            self.stop.request(f"run.time_limit={self.config.run.time_limit} reached")
        return self.stop.requested is not None

    def _stop_reason(self) -> str:
        reason = self.dist.stop_reason()
        assert reason is not None, "a stop was agreed on, and no rank has a reason"
        return reason

    def _interrupt(self, reason: str) -> NoReturn:
        """Save what was trained since the last checkpoint and leave; never returns."""
        self._report_step()
        if self._agreement.is_posted:
            self._agreement.wait()
        self._save()
        raise Interrupted(f"interrupted after step {self.progress.step}: {reason}")

    def _end_on_failed_fetch(self) -> NoReturn:
        """All ranks are between two steps: keep the work, then fail. Never returns."""
        if self.config.checkpoint.save_strategy != "no":
            self._save()
        if self._fetch_error is not None:
            raise self._fetch_error
        self.dist.wait_for_failure()
