"""Trackers that talk to a service do so from a thread of their own, so that none of them can hold up a step.

The calls go through a bounded queue. A service that refuses, is slow, hangs or dies costs figures there and one warning
here; when the run ends, it gets a bounded time to take what is left, and is then given up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from llmtrain.tracking.base import RunInfo, Tracker
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import Status

FINISH_SECONDS: Mapping[Status, float] = {"done": 60.0, "interrupted": 10.0, "failed": 5.0, "running": 5.0}
"""How long a tracker may take at the end: a run that was asked to stop, or failed, must be gone soon."""


class RemoteTracker(Tracker, Protocol):
    """A tracker that can also be given up."""

    def abandon(self) -> None:
        """End the tracker's processes and hooks at once; nothing of it may hold up the end of the process."""


class BackgroundTracker:
    """Runs `tracker` in a thread; a failure is said once by `warn`, and a failed start ends the tracker."""

    def __init__(
        self,
        tracker: RemoteTracker,
        warn: Callable[[str], None],
        *,
        finish_seconds: Mapping[Status, float] = FINISH_SECONDS,
        max_waiting: int = 1000,
    ) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._warn = warn
        self._finish_seconds = finish_seconds
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._work, name=f"tracker-{tracker.name}", daemon=True)
        self._warned = threading.Lock()
        self._dead = False

    def start(self, info: RunInfo) -> None:
        """Begin; returns at once."""
        self._calls.put_nowait(lambda: self._tracker.start(info))
        self._thread.start()

    def log_step(self, report: StepReport) -> None:
        """Hand over; never waits."""
        self._submit(lambda: self._tracker.log_step(report))

    def log_eval(self, report: EvalReport) -> None:
        """Hand over; never waits."""
        self._submit(lambda: self._tracker.log_eval(report))

    def finish(self, status: Status) -> None:
        """Give the tracker its time to take what is waiting and to close; then give it up."""
        if not self._thread.is_alive():
            return
        seconds = self._finish_seconds[status]
        deadline = time.monotonic() + seconds
        try:
            self._calls.put(lambda: self._tracker.finish(status), timeout=seconds)
            self._calls.put(None, timeout=max(0.0, deadline - time.monotonic()))
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass  # it takes nothing any more: the thread is alive, and is given up below
        if self._thread.is_alive():
            self._dead = True
            self._complain(f"did not finish within {seconds:g} s")
            self._tracker.abandon()

    def _submit(self, call: Callable[[], None]) -> None:
        if self._dead:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._complain("does not keep up")

    def _work(self) -> None:
        alive = self._attempt(self._calls.get())
        self._dead = not alive
        while (call := self._calls.get()) is not None:
            if not self._dead:
                alive = self._attempt(call)
        if not alive:
            self._tracker.abandon()

    def _attempt(self, call: Callable[[], None] | None) -> bool:
        assert call is not None, "nothing was handed over before the end"
        try:
            call()
        except BaseException as error:  # a library that ends its thread by SystemExit must not end this one
            self._complain(f"failed with {error!r}")
            return False
        return True

    def _complain(self, what: str) -> None:
        if self._warned.acquire(blocking=False):
            self._warn(
                f"{self.name} {what}; the run goes on, figures may be missing there (metrics.jsonl has them all)"
            )
