"""Where the figures of a run go: the run folder, the console, W&B, and accelerate's trackers for the rest.

`reports.py` says what a figure is, `run_folder.py` what is on disk, `base.py` what a tracker is, `background.py` why
none of them can hold up or end a run, and `build.py` makes those that the configuration names. wandb and accelerate
are imported only where they are used.
"""

from __future__ import annotations

from llmtrain.tracking.base import NullTracker, RunInfo, Tracker, Trackers
from llmtrain.tracking.build import build_trackers, tracking_problems
from llmtrain.tracking.console import Console, build_console
from llmtrain.tracking.files import JsonlWriter
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import RunFolder, RunStatus

__all__ = [
    "Console",
    "EvalReport",
    "JsonlWriter",
    "NullTracker",
    "RunFolder",
    "RunInfo",
    "RunStatus",
    "StepReport",
    "Tracker",
    "Trackers",
    "build_console",
    "build_trackers",
    "tracking_problems",
]
