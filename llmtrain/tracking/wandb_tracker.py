"""Weights & Biases by its own SDK: rank 0 only, its files in the run folder, and never in the way of the run.

A key is looked for where the SDK looks (environment, netrc, its settings files); `WANDB_MODE` and `wandb offline` are
respected. Without a key a person at a terminal is asked once, and gets a minute; otherwise the run is recorded offline
in `<run folder>/wandb`, to be uploaded later by `wandb sync`. The run's id is llmtrain's to keep: it travels in the
checkpoint, so a resumed run goes on in the same W&B run.

All calls are made by `BackgroundTracker`'s thread, but for the question above. Of the SDK's inner parts one is used,
its service process: a service that hangs would hang the end of the run in an atexit hook (`wandb_setup`,
`service_connection.teardown`), so `abandon` ends the process and takes the hook away.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import wandb
from wandb.sdk import wandb_setup
from wandb.sdk.lib.service import service_token

from llmtrain.config.schema import TrackingConfig
from llmtrain.errors import ExitStatus
from llmtrain.tracking.base import RunInfo
from llmtrain.tracking.reports import EvalReport, StepReport
from llmtrain.tracking.run_folder import Status

Mode = Literal["online", "offline", "disabled"]
ASK_SECONDS = 60
INIT_SECONDS = 30.0
EXIT_STATUS: dict[Status, ExitStatus] = {
    "running": ExitStatus.FAILED,
    "done": ExitStatus.DONE,
    "interrupted": ExitStatus.INTERRUPTED,
    "failed": ExitStatus.FAILED,
}


def choose_mode(warn: Callable[[str], None]) -> Mode:
    """Where the figures go: what the user set, else to the service where there is a key, else to files.

    Reads the SDK's settings and key stores; no network. Asks for a key only a person who can answer.
    """
    settings = _quiet_settings()
    if settings.mode in ("disabled", "dryrun", "offline"):
        return "disabled" if settings.mode == "disabled" else "offline"
    try:
        if wandb.login(prompt=False, verify=False) or (_someone_can_answer() and _ask()):
            return "online"
    except Exception as error:  # a key that is not one, an unreadable netrc: the run does not depend on it
        warn(f"wandb: {error}; recording offline")
    return "offline"


class WandbTracker:
    """One run in W&B. The axes of all figures are `step` and `num_tokens_seen`."""

    name = "wandb"

    def __init__(
        self,
        tracking: TrackingConfig,
        folder: Path,
        *,
        mode: Mode,
        run_id: str | None,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        init_seconds: float = INIT_SECONDS,
    ) -> None:
        self.run_id = run_id or secrets.token_hex(4)
        self._tracking = tracking
        self._folder = folder
        self._mode = mode
        self._say = say
        self._warn = warn
        self._init_seconds = init_seconds
        self._run: Any = None

    def start(self, info: RunInfo) -> None:
        """Begin the run, or go on with it; offline where the service cannot be reached."""
        try:
            self._run = self._init(info, self._mode)
        except Exception as error:
            if self._mode != "online":
                raise
            self._warn(f"wandb: the service did not take the run ({' '.join(str(error).split())}); recording offline")
            self._start_over()
            self._mode = "offline"
            self._run = self._init(info, self._mode)
        for axis in ("step", "num_tokens_seen"):
            self._run.define_metric(axis, hidden=True)
        for figures in ("train/*", "eval/*"):
            self._run.define_metric(figures, step_metric="step")
        self._attach_provenance()
        self._say(self._where())

    def log_step(self, report: StepReport) -> None:
        """One point of the `train/` series."""
        self._run.log(report.figures())

    def log_eval(self, report: EvalReport) -> None:
        """One point of the `eval/` series."""
        self._run.log(report.figures())

    def finish(self, status: Status) -> None:
        """Close the run and end the SDK's process."""
        self._run.finish(exit_code=int(EXIT_STATUS[status]))
        wandb.teardown()

    def abandon(self) -> None:
        """End the SDK's process and forget its exit hook, whatever state they are in."""
        with contextlib.suppress(Exception):  # the SDK's inner parts; a version without them just keeps its hook
            connection = wandb_setup.singleton()._connection
            if connection is None or not connection.owns_service:
                return
            connection._cleanup()
            service_token.clear_service_in_env()
            connection._proc._process.kill()
            connection._proc._process.wait(5.0)

    def _start_over(self) -> None:
        """End the SDK's process: it takes no second run of the same id, though the first never began."""
        self.abandon()
        with contextlib.suppress(Exception, SystemExit):  # the process is dead, and teardown says so
            wandb.teardown()
        _quiet_settings()

    def _init(self, info: RunInfo, mode: Mode) -> Any:
        tracking = self._tracking
        return wandb.init(
            mode=mode,
            dir=str(self._folder.absolute()),
            project=tracking.project,
            entity=tracking.entity,
            name=info.name,
            id=self.run_id,
            resume="allow",
            config=dict(info.config),
            tags=list(tracking.tags),
            notes=tracking.notes,
            settings=wandb.Settings(silent=True, console="off", init_timeout=self._init_seconds),
        )

    def _attach_provenance(self) -> None:
        """A copy beside the SDK's own files: a link would break where the run folder is moved before `wandb sync`."""
        origins = self._folder / "provenance.yaml"
        if origins.is_file():
            copy = shutil.copy(origins, self._run.dir)
            self._run.save(str(copy), base_path=self._run.dir, policy="now")

    def _where(self) -> str:
        if self._mode == "online":
            return f"wandb: {self._run.url}"
        place = Path(self._run.dir).parent
        return f"wandb: recording offline; to upload: wandb sync {place}"


def _quiet_settings() -> wandb.Settings:
    """The SDK's settings as the user has them, its own messages switched off."""
    return wandb.setup(wandb.Settings(silent=True)).settings


def _someone_can_answer() -> bool:
    """A person sees the question and can type: a process in the background of a shell would be stopped by reading."""
    try:
        terminal = sys.stdin.isatty() and sys.stderr.isatty()
        return terminal and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _ask() -> bool:
    """Ask for a key, the SDK's way; False where the answer is to stay offline, or none comes in time."""
    settings = wandb_setup.singleton().settings
    wandb.termsetup(wandb.Settings(silent=False), None)
    try:
        return bool(wandb.login(timeout=ASK_SECONDS, verify=False))
    finally:
        wandb.termsetup(settings, None)
