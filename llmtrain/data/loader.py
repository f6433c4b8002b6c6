"""The training loader of one rank: a step's micro-batches, made ahead in a thread.

Sequence j of a step comes from lane j mod L, and this rank takes the sequences of its own lanes in ascending order
(`BatchPlan.micro_batches_of`). Each step carries the states of its lanes as they are after it: what a checkpoint
saves is what was trained on, whatever the thread has read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from llmtrain.data.feed import ReadCounts
from llmtrain.data.fingerprint import check_fingerprint
from llmtrain.data.lanes import Lane, LaneState, TraceRow
from llmtrain.data.packing import Sequence
from llmtrain.data.prefetch import Prefetcher
from llmtrain.data.training_data import TrainingData

STEPS_AHEAD = 2
Batch = dict[str, torch.Tensor]


class TaskEncoder(Protocol):
    """What the loaders need of a task (`llmtrain.tasks.base.Task`)."""

    def encode(self, sequence: Sequence) -> Any:
        """An example, which has `num_supervised_tokens`."""

    def collate(self, examples: SequenceOf[Any]) -> Batch:
        """A batch of one row an example; None is a row of padding."""


@dataclass(frozen=True)
class RankStep:
    """One rank's part of an optimizer step.

    Attributes:
        micro_batches: one a micro-batch of the plan; rows of padding where lanes have ended.
        num_tokens: tokens, padding not counted.
        has_sequence: false where none of the rank's lanes has a sequence.
        lane_states: of this rank's lanes after this step; JSON-able.
        trace: the documents whose first token is in this step.
        wait_seconds: how long `next_step` waited for it.
    """

    epoch: int
    micro_batches: list[Batch]
    num_supervised_tokens: int
    num_tokens: int
    has_sequence: bool
    lane_states: dict[int, dict[str, Any]]
    trace: list[TraceRow] = field(default_factory=list)
    wait_seconds: float = 0.0


class TrainLoader:
    """Steps of one rank, from a saved state or from the beginning.

    Args:
        config: the run's.
        tokenizer: by `load_tokenizer`.
        task: encodes and collates.
        plan: the batch plan, which says which sequences of a step are this rank's.
        rank: this rank.
        state: None, or `lanes` (states by lane, of all lanes) and `fingerprint` of a checkpoint.

    Raises:
        ConfigError: the sources cannot be used, or the checkpoint was made with other data.
        BadRecordError: one of the first records cannot be used, and `data.on_bad_record` is error.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        task: TaskEncoder,
        plan: BatchPlan,
        rank: int,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._task = task
        self._plan = plan
        self._rank = rank
        self._data = TrainingData(config, tokenizer, plan)
        self.fingerprint = self._data.fingerprint
        lanes = plan.lanes_of(rank)
        states = self._data.start_states(lanes, epoch=0)
        if state is not None:
            check_fingerprint(state["fingerprint"], self.fingerprint)
            saved = {int(lane): lane_state for lane, lane_state in state["lanes"].items()}
            states = {lane: LaneState.from_dict(saved[lane]) for lane in lanes}
        self._open(states)

    def next_step(self) -> RankStep:
        """The next step, waiting for it. After the epoch's last it is a step without a sequence, again and again.

        Raises:
            DataError: a source cannot be read, or one of its records cannot be used.
        """
        started = time.perf_counter()
        try:
            step = self._prefetcher.get()
        except StopIteration:
            step = self._empty_step()
        self.lane_states = step.lane_states
        return replace(step, wait_seconds=time.perf_counter() - started)

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch: the lanes of all ranks have ended. (Where sources have weights they never do.)"""
        self.close()
        self._open(self._data.start_states(self._plan.lanes_of(self._rank), epoch))

    def close(self) -> None:
        """End the thread."""
        self._prefetcher.close()

    @property
    def counts(self) -> ReadCounts:
        """What this rank's lanes have read of their epoch, up to the last step that was taken."""
        states = (LaneState.from_dict(state) for state in self.lane_states.values())
        return sum((state.counts for state in states), ReadCounts())

    def _open(self, states: Mapping[int, LaneState]) -> None:
        self._epoch = next(iter(states.values())).epoch
        self.lane_states = {lane: state.to_dict() for lane, state in states.items()}
        self._prefetcher: Prefetcher[RankStep] = Prefetcher(self._steps(states), STEPS_AHEAD)

    def _steps(self, states: Mapping[int, LaneState]) -> Iterator[RankStep]:
        """The steps of an epoch, the first one without a sequence included: it has the lanes' last states."""
        lanes = {lane.number: lane for lane in self._data.open_lanes(states)}
        while True:
            step = self._make_step(lanes)
            yield step
            if not step.has_sequence:
                return

    def _make_step(self, lanes: Mapping[int, Lane]) -> RankStep:
        batches: list[Batch] = []
        trace: list[TraceRow] = []
        num_supervised_tokens = num_tokens = 0
        has_sequence = False
        for micro_batch in self._plan.micro_batches_of(self._rank):
            examples: list[Any] = []
            for index in micro_batch:
                given = lanes[self._plan.lane_of(index)].next_sequence()
                trace += given.trace
                examples.append(None if given.sequence is None else self._task.encode(given.sequence))
                if given.sequence is not None:
                    has_sequence = True
                    num_tokens += len(given.sequence.input_ids)
                    num_supervised_tokens += examples[-1].num_supervised_tokens
            batches.append(self._task.collate(examples))
        lane_states = {number: lane.state().to_dict() for number, lane in lanes.items()}
        return RankStep(self._epoch, batches, num_supervised_tokens, num_tokens, has_sequence, lane_states, trace)

    def _empty_step(self) -> RankStep:
        micro_batches = self._plan.micro_batches_of(self._rank)
        batches = [self._task.collate([None] * len(micro_batch)) for micro_batch in micro_batches]
        return RankStep(self._epoch, batches, 0, 0, has_sequence=False, lane_states=self.lane_states)
