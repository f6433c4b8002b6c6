"""From `tracking.report_to` to the trackers of this rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from llmtrain.config.schema import TrackingConfig
from llmtrain.errors import ConfigError, Problem
from llmtrain.tracking.background import BackgroundTracker
from llmtrain.tracking.base import MetricsFile, NullTracker, Tracker, Trackers
from llmtrain.tracking.console import Console
from llmtrain.tracking.run_folder import RunFolder

PACKAGES = {
    "wandb": ("wandb", "wandb"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "aim": ("aim", "aim"),
    "clearml": ("clearml", "clearml"),
    "dvclive": ("dvclive", "dvclive"),
    "swanlab": ("swanlab", "swanlab"),
    "trackio": ("trackio", "trackio"),
}
"""Per tracker: the module that must be there, and the package that pip installs it from."""


def tracking_problems(tracking: TrackingConfig) -> list[Problem]:
    """What keeps `tracking.report_to` from being built: packages that are not installed. Imports none of them."""
    return [
        Problem(
            f"tracking.report_to[{index}]",
            f"needs the package {PACKAGES[name][1]}, which is not installed",
            f"pip install {PACKAGES[name][1]}, or take {name} out of tracking.report_to",
            name,
        )
        for index, name in enumerate(tracking.report_to)
        if importlib.util.find_spec(PACKAGES[name][0]) is None
    ]


def build_trackers(
    tracking: TrackingConfig, folder: RunFolder, console: Console, *, is_main: bool, resume_run_id: str | None = None
) -> Trackers | NullTracker:
    """All trackers of the run as one: `metrics.jsonl`, the console, and those of `tracking.report_to`.

    Called by every rank once the run folder is there; ranks other than 0 get one that does nothing. `resume_run_id` is
    the `run_id` that a checkpoint of this run holds. W&B may ask for a key here (see `wandb_tracker`).

    Raises:
        ConfigError: A package is not installed.
    """
    problems = tracking_problems(tracking)
    if problems:
        raise ConfigError(problems)
    if not is_main:
        return NullTracker()
    trackers: list[Tracker] = [MetricsFile(folder.metrics()), console]
    run_id = resume_run_id
    for name in dict.fromkeys(tracking.report_to):
        if name == "wandb":
            tracker, run_id = _wandb(tracking, folder.path, console, resume_run_id)
            trackers += [tracker] if tracker else []
        else:
            trackers.append(_through_accelerate(name, tracking, folder.path, console.warn))
    return Trackers(trackers, console.warn, run_id)


def _wandb(
    tracking: TrackingConfig, folder: Path, console: Console, run_id: str | None
) -> tuple[Tracker | None, str | None]:
    from llmtrain.tracking.wandb_tracker import WandbTracker, choose_mode

    mode = choose_mode(console.warn)
    if mode == "disabled":
        return None, run_id
    tracker = WandbTracker(tracking, folder, mode=mode, run_id=run_id, say=console.say, warn=console.warn)
    return BackgroundTracker(tracker, console.warn), tracker.run_id


def _through_accelerate(
    name: str, tracking: TrackingConfig, folder: Path, warn: Callable[[str], None]
) -> BackgroundTracker:
    from llmtrain.tracking.accelerate_trackers import AccelerateTracker

    return BackgroundTracker(AccelerateTracker(name, tracking, folder), warn)
