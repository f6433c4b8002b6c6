"""What a person sees of a run: a live bar on a terminal, one plain line a report elsewhere.

    console.say("…")      a message of the run           console.warn("…")   a message that asks for attention
    console.advance(5, n) a step is done (moves the bar)  log_step, log_eval  the figures

Only rank 0 has a console; the others have a `NullConsole`. What is written always fits the stream: characters that its
encoding does not know are escaped, and a stream that is gone (a closed pipe) ends the output, not the run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TextIO

import rich.console
from rich.progress import BarColumn, Progress, TextColumn

from llmtrain.tracking.base import NullTracker, RunInfo, Tracker
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import Status

REFRESH_SECONDS = 0.25


class Console(Tracker, Protocol):
    """A tracker that also takes messages."""

    def say(self, text: str) -> None:
        """Show a message."""

    def warn(self, text: str) -> None:
        """Show a message that asks for attention."""

    def advance(self, step: int, num_tokens_seen: int) -> None:
        """A step is done; cheap, for every step."""


def build_console(is_main: bool, stream: TextIO | None = None) -> Console:
    """The console of this rank: a bar where `stream` (default: stdout) is a terminal, lines elsewhere, else nothing."""
    if not is_main:
        return NullConsole()
    terminal = rich.console.Console(file=stream or sys.stdout)
    if terminal.is_terminal and not terminal.is_dumb_terminal:
        return BarConsole(terminal)
    return LineConsole(stream or sys.stdout)


class NullConsole(NullTracker):
    """Shows nothing: the console of the ranks other than 0."""

    def say(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""

    def advance(self, step: int, num_tokens_seen: int) -> None:
        """Nothing."""


class LineConsole:
    """One line a report, for log files."""

    name = "console"

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._pace = Pace(RunInfo(""), clock())

    def say(self, text: str) -> None:
        """Write the message on lines of its own."""
        self._write(text)

    def warn(self, text: str) -> None:
        """Write the message, marked as a warning."""
        self._write(f"warning: {text}")

    def advance(self, step: int, num_tokens_seen: int) -> None:
        """Nothing: lines come with the reports."""

    def start(self, info: RunInfo) -> None:
        """Take the time."""
        self._pace = Pace(info, self._clock())

    def log_step(self, report: StepReport) -> None:
        """Write the step's line."""
        left = self._pace.seconds_left(report.step, report.num_tokens_seen, self._clock())
        self._write(step_line(report, self._pace.info.max_steps, left))

    def log_eval(self, report: EvalReport) -> None:
        """Write the evaluation's line."""
        self._write(eval_line(report))

    def finish(self, status: Status) -> None:
        """Nothing: the run says how it ended."""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, a closed stream: nobody reads any more
            self._stream.write(fit_encoding(text, self._stream.encoding) + "\n")
            self._stream.flush()


class BarConsole:
    """A bar at the bottom of a terminal with the newest figures; evaluations and messages scroll above it."""

    name = "console"

    def __init__(self, console: rich.console.Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace(RunInfo(""), clock())
        self._figures = ""
        self._refreshed = 0.0
        columns = (BarColumn(bar_width=12), TextColumn("{task.description}", markup=False))
        # Refreshed by hand, with the steps: no thread that draws while the run is ending or has failed.
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("", total=None, start=False)

    def say(self, text: str) -> None:
        """Write the message above the bar."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Write the message above the bar, in yellow."""
        self._print(f"warning: {text}", style="yellow")

    def start(self, info: RunInfo) -> None:
        """Show the bar."""
        self._pace = Pace(info, self._clock())
        self._draw(info.step, info.num_tokens_seen)
        self._progress.start()

    def advance(self, step: int, num_tokens_seen: int) -> None:
        """Move the bar, at most a few times a second."""
        if self._clock() - self._refreshed >= REFRESH_SECONDS:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._draw(step, num_tokens_seen)

    def log_step(self, report: StepReport) -> None:
        """Show the new figures on the bar."""
        self._figures = " | ".join(step_figures(replace(report, grad_norm=None)))  # 80 columns have no room for it
        self._draw(report.step, report.num_tokens_seen)

    def log_eval(self, report: EvalReport) -> None:
        """Write the evaluation above the bar."""
        self._print(eval_line(report))

    def finish(self, status: Status) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()

    def _draw(self, step: int, num_tokens_seen: int) -> None:
        now = self._clock()
        self._refreshed = now
        info = self._pace.info
        left = self._pace.seconds_left(step, num_tokens_seen, now)
        parts = [step_of(step, info.max_steps), "" if left is None else f"{duration(left)} left", self._figures]
        fraction = info.fraction_done(step, num_tokens_seen)
        self._progress.update(
            self._task,
            description=fit_encoding(" | ".join(part for part in parts if part), self._console.encoding),
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
        )
        self._progress.refresh()

    def _print(self, text: str, style: str | None = None) -> None:
        fitted = fit_encoding(text, self._console.encoding)
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._console.print(fitted, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


class Pace:
    """How fast the run goes since it started or was resumed, and so how long it still takes."""

    def __init__(self, info: RunInfo, started: float) -> None:
        self.info = info
        self._started = started
        self._fraction_at_start = info.fraction_done(info.step, info.num_tokens_seen) or 0.0

    def seconds_left(self, step: int, num_tokens_seen: int, now: float) -> float | None:
        """Seconds to the end; None where the end, or the pace, is not known."""
        fraction = self.info.fraction_done(step, num_tokens_seen)
        if fraction is None or fraction <= self._fraction_at_start:
            return None
        return (now - self._started) * (1.0 - fraction) / (fraction - self._fraction_at_start)


def step_line(report: StepReport, max_steps: int | None, seconds_left: float | None) -> str:
    """The line of a step: `step 10/500 | loss 6.8421 | lr 3.00e-04 | … | 0:12:03 left`."""
    left = [] if seconds_left is None else [f"{duration(seconds_left)} left"]
    return " | ".join([step_of(report.step, max_steps), *step_figures(report), *left])


def step_figures(report: StepReport) -> list[str]:
    """The figures of a step that a person watches."""
    figures = [] if report.loss is None else [f"loss {report.loss:.4f}"]
    figures += [f"lr {report.learning_rate:.2e}"]
    if report.grad_norm is not None:
        figures.append(f"grad norm {report.grad_norm:.2f}")
    figures.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.model_flops_utilization is not None:
        figures.append(f"MFU {report.model_flops_utilization:.1%}")
    return figures


def eval_line(report: EvalReport) -> str:
    """The line of an evaluation: `eval at step 100 | loss 5.1234 | perplexity 167.9 | 12,345 tokens`."""
    where = (
        f"eval at step {report.step}" if report.eval_set is None else f"eval {report.eval_set} at step {report.step}"
    )
    figures = f"loss {report.eval_loss:.4f} | perplexity {report.eval_perplexity:,.1f}"
    return f"{where} | {figures} | {report.num_supervised_tokens:,} tokens"


def step_of(step: int, max_steps: int | None) -> str:
    """`step 10/500`, or `step 10` where the end is not counted in steps."""
    return f"step {step}" if max_steps is None else f"step {step}/{max_steps}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: `1:02:03`; from a day on `2d 3:04:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{days}d {clock}" if days else clock


def fit_encoding(text: str, encoding: str | None) -> str:
    """`text` with everything escaped that `encoding` cannot write, lone surrogates among it."""
    name = encoding or "ascii"
    return text.encode(name, "backslashreplace").decode(name)
