"""What a tracker is: something that is told how a run goes, on rank 0 alone, and can never change or end it.

    start(info) -> log_step(report), log_eval(report) … -> finish(status)

`Trackers` tells several of them, in order, and keeps a failure of one from the others and from the run: it is said once
and the run goes on. Ranks other than 0 have a `NullTracker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmtrain.tracking.files import JsonlWriter
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import Status


@dataclass(frozen=True)
class RunInfo:
    """What is known when a run starts: its name, the resolved configuration, where it stands and where it ends."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    num_tokens_seen: int = 0
    max_steps: int | None = None
    max_tokens: int | None = None

    def fraction_done(self, step: int, num_tokens_seen: int) -> float | None:
        """How much of the run is behind, 0 to 1, by the end that comes first; None where no end is known."""
        ends = ((step, self.max_steps), (num_tokens_seen, self.max_tokens))
        fractions = [done / end for done, end in ends if end is not None]
        return min(1.0, max(fractions)) if fractions else None


class Tracker(Protocol):
    """Is told how the run goes."""

    name: str

    def start(self, info: RunInfo) -> None:
        """The run begins, or goes on after a resume."""

    def log_step(self, report: StepReport) -> None:
        """A logged optimizer step."""

    def log_eval(self, report: EvalReport) -> None:
        """An evaluation of one set."""

    def finish(self, status: Status) -> None:
        """The run has ended; nothing follows."""


class NullTracker:
    """Tells nobody: the tracker of the ranks other than 0."""

    name = "none"
    run_id: str | None = None

    def start(self, info: RunInfo) -> None:
        """Nothing."""

    def log_step(self, report: StepReport) -> None:
        """Nothing."""

    def log_eval(self, report: EvalReport) -> None:
        """Nothing."""

    def finish(self, status: Status) -> None:
        """Nothing."""


class MetricsFile:
    """`metrics.jsonl`: one line a report, on disk before the next step begins."""

    name = "metrics.jsonl"

    def __init__(self, writer: JsonlWriter) -> None:
        self._writer = writer

    def start(self, info: RunInfo) -> None:
        """Nothing: the file is open."""

    def log_step(self, report: StepReport) -> None:
        """Append the line."""
        self._writer.append(report.to_json_line())

    def log_eval(self, report: EvalReport) -> None:
        """Append the line."""
        self._writer.append(report.to_json_line())

    def finish(self, status: Status) -> None:
        """Close the file."""
        self._writer.close()


class Trackers:
    """Several trackers as one. A tracker that raises is named once by `warn`; the others and the run go on.

    `run_id` is W&B's id of the run, for the checkpoint; None without W&B.
    """

    name = "all"

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None], run_id: str | None = None) -> None:
        self.run_id = run_id
        self._trackers = tuple(trackers)
        self._warn = warn
        self._complained: set[str] = set()

    def start(self, info: RunInfo) -> None:
        """Start each."""
        self._tell(lambda tracker: tracker.start(info))

    def log_step(self, report: StepReport) -> None:
        """Tell each."""
        self._tell(lambda tracker: tracker.log_step(report))

    def log_eval(self, report: EvalReport) -> None:
        """Tell each."""
        self._tell(lambda tracker: tracker.log_eval(report))

    def finish(self, status: Status) -> None:
        """Finish each."""
        self._tell(lambda tracker: tracker.finish(status))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            try:
                call(tracker)
            except Exception as error:  # whatever a tracker does, the run goes on
                if tracker.name not in self._complained:
                    self._complained.add(tracker.name)
                    self._warn(f"{tracker.name}: {error!r}; the run goes on, figures may be missing there")
