"""The clock of the loop: what an optimizer step takes since the last logged line, and how much of it waits for data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Means over the steps since the last reading; zeros where there was none."""

    step_seconds: float
    data_wait_seconds: float
    tokens_per_second: float


class StepMeter:
    """Runs while steps run; evaluation and saving happen while it is stopped."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started: float | None = None
        self._seconds = 0.0
        self._wait_seconds = 0.0
        self._num_tokens = 0
        self._num_steps = 0

    def start(self) -> None:
        """Go on measuring; no effect on a running meter."""
        if self._started is None:
            self._started = self._clock()

    def stop(self) -> None:
        """Leave out what follows until `start`."""
        if self._started is not None:
            self._seconds += self._clock() - self._started
            self._started = None

    def count(self, num_tokens: int, wait_seconds: float) -> None:
        """One optimizer step is done; `num_tokens` over all ranks, `wait_seconds` of this one."""
        self._num_tokens += num_tokens
        self._wait_seconds += wait_seconds
        self._num_steps += 1

    def read(self) -> Reading:
        """The means since the last reading; begins anew."""
        running = self._started is not None
        self.stop()
        steps, seconds = max(self._num_steps, 1), self._seconds
        reading = Reading(
            step_seconds=seconds / steps,
            data_wait_seconds=self._wait_seconds / steps,
            tokens_per_second=self._num_tokens / seconds if seconds > 0 else 0.0,
        )
        self._seconds = self._wait_seconds = 0.0
        self._num_tokens = self._num_steps = 0
        if running:
            self.start()
        return reading
