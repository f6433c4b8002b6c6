"""What a person sees: plain lines, the bar on a terminal, and nothing that breaks on a poor stream."""

from __future__ import annotations

import io
import math
import os
import pty
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import rich.console

from llmtrain.tracking import EvalReport, RunInfo, build_console
from llmtrain.tracking.console import BarConsole, LineConsole, NullConsole, duration, fit_encoding
from tests.unit.tracking.test_reports import STEP

INFO = RunInfo("demo", max_steps=100)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines_of(talk: Callable[[LineConsole, Clock], None]) -> list[str]:
    """What a LineConsole writes while `talk` talks to it."""
    stream, clock = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), Clock()
    talk(LineConsole(stream, clock), clock)
    stream.seek(0)
    return stream.read().splitlines()


def test_a_step_is_one_readable_line_with_the_time_left() -> None:
    def talk(console: LineConsole, clock: Clock) -> None:
        console.start(INFO)
        clock.now += 60
        console.log_step(replace(STEP, step=10, tokens_per_second=12345.6))

    assert lines_of(talk) == [
        "step 10/100 | loss 2.5000 | lr 3.00e-04 | grad norm 0.75 | 12,346 tokens/s | MFU 41.0% | 0:09:00 left"
    ]


def test_what_is_unknown_is_left_out() -> None:
    def talk(console: LineConsole, clock: Clock) -> None:
        console.start(RunInfo("demo"))
        clock.now += 60
        console.log_step(replace(STEP, grad_norm=None, model_flops_utilization=None, loss=math.nan))

        console.log_step(replace(STEP, grad_norm=None, model_flops_utilization=None, loss=None))

    assert lines_of(talk) == ["step 7 | loss nan | lr 3.00e-04 | 512 tokens/s", "step 7 | lr 3.00e-04 | 512 tokens/s"]


def test_the_pace_of_a_resumed_run_is_its_own() -> None:
    def talk(console: LineConsole, clock: Clock) -> None:
        console.start(replace(INFO, step=90))
        clock.now += 5
        console.log_step(replace(STEP, step=95))

    assert lines_of(talk)[0].endswith("| 0:00:05 left")


def test_the_end_that_comes_first_counts() -> None:
    info = RunInfo("demo", max_steps=100, max_tokens=1000)
    assert info.fraction_done(10, 500) == 0.5
    assert info.fraction_done(10, 5000) == 1.0
    assert RunInfo("demo").fraction_done(10, 500) is None


def test_evaluations_and_messages_are_lines_of_their_own() -> None:
    def talk(console: LineConsole, clock: Clock) -> None:
        console.say("two ranks")
        console.warn("slow disk")
        console.log_eval(EvalReport(5, 1.0, 12345))
        console.log_eval(EvalReport(5, 1000.0, 12345, eval_set="books"))

    assert lines_of(talk) == [
        "two ranks",
        "warning: slow disk",
        "eval at step 5 | loss 1.0000 | perplexity 2.7 | 12,345 tokens",
        "eval books at step 5 | loss 1000.0000 | perplexity inf | 12,345 tokens",
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_is_garbled_or_raises(encoding: str) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    LineConsole(stream).say("Größe → 5, caf\udce9")
    text = buffer.getvalue().decode(encoding)
    assert text.startswith({"ascii": "Gr\\xf6\\xdfe \\u2192", "latin-1": "Größe \\u2192", "utf-8": "Größe →"}[encoding])
    assert text.endswith("caf\\udce9\n")


def test_a_stream_that_is_gone_ends_the_output_not_the_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as stream:
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        console = LineConsole(stream)
        console.say("nobody reads this")
        console.log_step(STEP)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # so that the interpreter's own close is quiet
    console.say("closed")


def test_other_ranks_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console = build_console(is_main=False)
    assert isinstance(console, NullConsole)
    console.start(INFO)
    console.say("hello")
    console.log_step(STEP)
    assert capsys.readouterr().out == ""


def test_a_file_gets_lines_and_a_terminal_the_bar() -> None:
    assert isinstance(build_console(is_main=True, stream=io.StringIO()), LineConsole)
    master, slave = pty.openpty()
    with open(slave, "w") as terminal:
        assert isinstance(build_console(is_main=True, stream=terminal), BarConsole)
    os.close(master)


def bar_output(encoding: str, width: int = 160) -> str:
    """What a terminal of `encoding` receives during a short run."""
    buffer, clock = io.BytesIO(), Clock()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    terminal = rich.console.Console(file=stream, force_terminal=True, width=width, _environ={"TERM": "xterm"})
    console = BarConsole(terminal, clock)
    console.start(INFO)
    console.say("[bold]Größe[/bold] :smile:")
    for step in range(1, 11):
        clock.now += 1
        console.advance(step, step)
    console.log_step(replace(STEP, step=10))
    console.log_eval(EvalReport(10, 1.0, 12345))
    console.finish("done")
    stream.flush()
    return buffer.getvalue().decode(encoding)


def test_the_bar_shows_the_newest_figures_and_messages_scroll_above() -> None:
    text = bar_output("utf-8")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "step 10/100 | 0:01:30 left | loss 2.5000 | lr 3.00e-04 | 512 tokens/s | MFU 41.0%" in plain
    assert "step 5/100" in plain
    assert "[bold]Größe[/bold] :smile:" in plain, "a message is text, not markup"
    assert "eval at step 10 | loss 1.0000" in plain


def test_eighty_columns_hold_what_matters_and_no_line_wraps() -> None:
    text = bar_output("utf-8", width=80)
    drawn = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part) for part in re.split(r"[\r\n]", text)]
    assert max(map(len, drawn)) <= 80
    assert any("0:01:30 left | loss 2.5000 | lr 3.00e-04 | 512 tokens/s" in part for part in drawn)


def test_the_bar_fits_a_terminal_that_knows_ascii_alone() -> None:
    assert "Gr\\xf6\\xdfe" in bar_output("ascii")


def test_the_bar_moves_a_few_times_a_second_at_most() -> None:
    clock = Clock()
    stream = io.StringIO()
    terminal = rich.console.Console(file=stream, force_terminal=True, width=160, _environ={"TERM": "xterm"})
    console = BarConsole(terminal, clock)
    console.start(INFO)
    before = len(stream.getvalue())
    for step in range(100):
        console.advance(step, step)
    assert len(stream.getvalue()) == before
    clock.now += 1
    console.advance(100, 100)
    assert len(stream.getvalue()) > before
    console.finish("done")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (59.6, "0:01:00"), (3723, "1:02:03"), (2 * 86400 + 11045, "2d 3:04:05")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_unknown_encoding_is_taken_for_ascii() -> None:
    assert fit_encoding("é", None) == "\\xe9"
