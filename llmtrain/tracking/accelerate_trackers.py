"""Every tracker but W&B, through accelerate's tracker classes: one path for all, one row of arguments each.

Only rank 0 has one, so accelerate need not know about ranks. Its own state (`PartialState`) is left unmade: it would
set the device and the number of threads, and refuses some GPUs. Two things in accelerate.tracking ask for it, the
`main_process_only` decorator and the module's logger, and both are told not to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import accelerate.tracking

from llmtrain.config.schema import TrackingConfig
from llmtrain.tracking.base import RunInfo
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import Status


class AccelerateTracker:
    """One of accelerate's trackers, by its name in `tracking.report_to`."""

    def __init__(self, name: str, tracking: TrackingConfig, folder: Path) -> None:
        self.name = name
        self._tracking = tracking
        self._folder = folder
        self._tracker: Any = None

    def start(self, info: RunInfo) -> None:
        """Make the tracker and give it the configuration, flattened to dotted keys."""
        accelerate.tracking.logger = _StatelessLogger(accelerate.tracking.__name__)
        arguments = tracker_arguments(self.name, self._tracking, self._folder, info.name)
        tracker = accelerate.tracking.LOGGER_TYPE_TO_CLASS[self.name](**arguments)
        tracker.main_process_only = False
        tracker.start()
        self._tracker = tracker
        tracker.store_init_configuration(flatten(info.config))

    def log_step(self, report: StepReport) -> None:
        """One point of the `train/` series."""
        self._log(report)

    def log_eval(self, report: EvalReport) -> None:
        """One point of the `eval/` series."""
        self._log(report)

    def finish(self, status: Status) -> None:
        """Flush and close."""
        self._tracker.finish()

    def abandon(self) -> None:
        """Nothing to end: these trackers have no process of their own."""

    def _log(self, report: StepReport | EvalReport) -> None:
        figures = {name: value for name, value in report.figures().items() if name != "step"}
        self._tracker.log(figures, step=report.step)


def tracker_arguments(name: str, tracking: TrackingConfig, folder: Path, run_name: str) -> dict[str, Any]:
    """What accelerate's class for `name` is made with; local files go to the run folder, but for aim's repository."""
    rows: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": str(folder)},
        "aim": {"run_name": run_name, "logging_dir": str(folder.parent), "experiment": tracking.project},
        "mlflow": {
            "experiment_name": tracking.project,
            "run_name": run_name,
            "tags": dict.fromkeys(tracking.tags, "true"),
            "description": tracking.notes,
        },
        "comet_ml": {"run_name": tracking.project},
        "clearml": {
            "run_name": run_name,
            "project_name": tracking.project,
            "task_name": run_name,
            "tags": list(tracking.tags),
        },
        "dvclive": {"dir": str(folder / "dvclive")},
        "swanlab": {"run_name": tracking.project, "experiment_name": run_name, "logdir": str(folder / "swanlab")},
        "trackio": {"run_name": tracking.project, "name": run_name},
    }
    return rows[name]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Nested keys as dotted ones, with the values that every tracker takes; lists as JSON, null as an empty string."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{path}."))
        elif isinstance(value, bool | int | float | str):
            flat[path] = value
        else:
            flat[path] = "" if value is None else json.dumps(value, default=str)
    return flat


class _StatelessLogger(logging.Logger):
    """Stands in for accelerate's logger, which asks for the state of its ranks on each call."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.ERROR)

    def warning_once(self, *args: object, **kwargs: object) -> None:
        """What accelerate's logger has beside the standard methods."""
