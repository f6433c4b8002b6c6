"""A tracker can neither change nor end a run: failures, slowness and hanging are said once and passed over."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from llmtrain.config.schema import TrackingConfig
from llmtrain.errors import ConfigError
from llmtrain.tracking import (
    EvalReport,
    NullTracker,
    RunFolder,
    RunInfo,
    StepReport,
    Trackers,
    build_console,
    build_trackers,
    tracking_problems,
)
from llmtrain.tracking import build as build_module
from llmtrain.tracking.background import BackgroundTracker
from llmtrain.tracking.base import MetricsFile
from llmtrain.tracking.files import JsonlWriter
from llmtrain.tracking.run_folder import Status
from tests.unit.tracking.test_reports import STEP

EVAL = EvalReport(7, 2.0, 10)
QUICK: dict[Status, float] = {"done": 0.3, "interrupted": 0.3, "failed": 0.3}


class Recorder:
    """A tracker that notes what it is told, and fails or hangs where it is asked to."""

    name = "recorder"

    def __init__(self, fail_in: tuple[str, ...] = (), hang_in: str = "") -> None:
        self.calls: list[str] = []
        self.abandoned = 0
        self.release = threading.Event()
        self._fail_in = fail_in
        self._hang_in = hang_in

    def start(self, info: RunInfo) -> None:
        """Note it."""
        self._note("start", info.name)

    def log_step(self, report: StepReport) -> None:
        """Note it."""
        self._note("step", str(report.step))

    def log_eval(self, report: EvalReport) -> None:
        """Note it."""
        self._note("eval", str(report.step))

    def finish(self, status: Status) -> None:
        """Note it."""
        self._note("finish", status)

    def abandon(self) -> None:
        """Note it."""
        self.abandoned += 1

    def _note(self, what: str, detail: str) -> None:
        if what == self._hang_in:
            self.release.wait(20)
        if what in self._fail_in:
            raise SystemExit(3) if what == "finish" else RuntimeError(f"{what} is broken")
        self.calls.append(f"{what} {detail}")


def run_through(tracker: Trackers | BackgroundTracker) -> None:
    """A short run."""
    tracker.start(RunInfo("demo"))
    tracker.log_step(STEP)
    tracker.log_eval(EVAL)
    tracker.log_step(STEP)
    tracker.finish("done")


WHOLE_RUN = ["start demo", "step 7", "eval 7", "step 7", "finish done"]


def test_a_failure_of_one_is_said_once_and_the_others_hear_everything(tmp_path: Path) -> None:
    warnings: list[str] = []
    broken, sound = Recorder(fail_in=("step",)), Recorder()
    metrics = MetricsFile(JsonlWriter(tmp_path / "metrics.jsonl"))
    run_through(Trackers([broken, metrics, sound], warnings.append))
    assert len(warnings) == 1
    assert "recorder" in warnings[0]
    assert "step is broken" in warnings[0]
    assert broken.calls == ["start demo", "eval 7", "finish done"]
    assert sound.calls == WHOLE_RUN
    assert (tmp_path / "metrics.jsonl").read_text() == (
        f"{STEP.to_json_line()}\n{EVAL.to_json_line()}\n{STEP.to_json_line()}\n"
    )


def test_the_background_thread_keeps_the_order_and_finishes() -> None:
    warnings: list[str] = []
    recorder = Recorder()
    run_through(BackgroundTracker(recorder, warnings.append))
    assert recorder.calls == WHOLE_RUN
    assert warnings == []
    assert recorder.abandoned == 0


def test_a_failing_line_costs_that_line_and_one_warning() -> None:
    warnings: list[str] = []
    recorder = Recorder(fail_in=("step",))
    run_through(BackgroundTracker(recorder, warnings.append))
    assert recorder.calls == ["start demo", "eval 7", "finish done"]
    assert len(warnings) == 1
    assert "metrics.jsonl" in warnings[0]
    assert recorder.abandoned == 0


def test_a_failed_start_ends_the_tracker() -> None:
    warnings: list[str] = []
    recorder = Recorder(fail_in=("start", "step"))
    run_through(BackgroundTracker(recorder, warnings.append))
    assert recorder.calls == []
    assert len(warnings) == 1
    assert recorder.abandoned == 1


def test_a_library_that_ends_its_thread_does_not_end_ours() -> None:
    warnings: list[str] = []
    recorder = Recorder(fail_in=("finish",))
    run_through(BackgroundTracker(recorder, warnings.append))
    assert warnings == [
        "recorder failed with SystemExit(3); the run goes on, figures may be missing there (metrics.jsonl has them all)"
    ]
    assert recorder.abandoned == 1


@pytest.mark.parametrize("where", ["start", "step", "finish"])
def test_one_that_hangs_holds_up_no_step_and_the_end_only_so_long(where: str) -> None:
    warnings: list[str] = []
    recorder = Recorder(hang_in=where)
    tracker = BackgroundTracker(recorder, warnings.append, finish_seconds=QUICK)
    begun = time.monotonic()
    tracker.start(RunInfo("demo"))
    for _ in range(10):
        tracker.log_step(STEP)
    assert time.monotonic() - begun < 0.2
    tracker.finish("done")
    assert 0.25 < time.monotonic() - begun < 2.0
    assert recorder.abandoned == 1
    assert len(warnings) == 1
    assert "did not finish within 0.3 s" in warnings[0]
    recorder.release.set()


def test_one_that_does_not_keep_up_loses_figures_and_says_so_once() -> None:
    warnings: list[str] = []
    recorder = Recorder(hang_in="start")
    tracker = BackgroundTracker(recorder, warnings.append, finish_seconds=QUICK, max_waiting=3)
    tracker.start(RunInfo("demo"))
    for _ in range(50):
        tracker.log_step(STEP)
    assert len(warnings) == 1
    assert "does not keep up" in warnings[0]
    tracker.finish("failed")
    assert len(warnings) == 1
    assert recorder.abandoned == 1
    recorder.release.set()


def test_finishing_what_never_started_is_nothing() -> None:
    recorder = Recorder()
    BackgroundTracker(recorder, pytest.fail).finish("failed")
    assert recorder.calls == []


def test_packages_that_are_not_installed_are_all_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = build_module.importlib.util.find_spec
    missing = ("comet_ml", "mlflow")
    monkeypatch.setattr(
        build_module.importlib.util, "find_spec", lambda name: None if name in missing else installed(name)
    )
    tracking = TrackingConfig(report_to=["tensorboard", "comet_ml", "mlflow"])
    problems = tracking_problems(tracking)
    assert [problem.path for problem in problems] == ["tracking.report_to[1]", "tracking.report_to[2]"]
    assert "pip install comet-ml" in problems[0].remedy
    with pytest.raises(ConfigError, match="pip install mlflow"):
        build_trackers(tracking, RunFolder(tmp_path), build_console(is_main=False), is_main=False)


def test_ranks_other_than_0_write_nothing(tmp_path: Path) -> None:
    tracking = TrackingConfig(report_to=["wandb", "tensorboard"])
    trackers = build_trackers(tracking, RunFolder(tmp_path), build_console(is_main=False), is_main=False)
    assert isinstance(trackers, NullTracker)
    assert trackers.run_id is None
    trackers.start(RunInfo("demo"))
    trackers.log_step(STEP)
    trackers.log_eval(EVAL)
    trackers.finish("done")
    assert list(tmp_path.iterdir()) == []
