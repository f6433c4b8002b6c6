"""Where a user's own code joins a run; nothing of llmtrain's is built on it.

Pass objects of a `Callback` subclass to `Trainer` (or `llmtrain.trainer.run`). Every rank calls them, at the same
places and in the order given. A callback that raises fails the run, as any other code of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmtrain.tracking.reports import EvalReport, StepReport


class Callback:
    """Does nothing; override what is needed."""

    def on_step_end(self, report: StepReport) -> None:
        """After each optimizer step, with its figures over all ranks."""

    def on_evaluate(self, reports: Sequence[EvalReport]) -> None:
        """After each evaluation, with one report a set."""

    def on_save(self, checkpoint: Path) -> None:
        """After a checkpoint is complete."""

    def on_end(self, reason: str) -> None:
        """Once, when training has reached its end, before `final/` is written."""
