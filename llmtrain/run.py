"""A run as a process: it starts, trains, and ends with a status that tells how.

Whatever happens, three places say the same: the exit status, `status.json` in the run folder, and one line on the
console. Ranks that another rank's failure ends stay quiet; the lowest of them writes `status.json` where rank 0 has
gone.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmtrain.callbacks import Callback
from llmtrain.config import LoadedConfig
from llmtrain.config.schema import Config
from llmtrain.construction import ModelBuilder, Parts, build_parts, check_start
from llmtrain.dist.facts import RankFacts
from llmtrain.dist.processes import leave
from llmtrain.dist.runtime import Dist
from llmtrain.dist.signals import StopRequest
from llmtrain.errors import ConfigError, ExitStatus, Interrupted, LlmtrainError
from llmtrain.models import build_model
from llmtrain.tracking import Console, RunFolder, build_console
from llmtrain.tracking.run_folder import Status
from llmtrain.trainer import Trainer


def run(
    loaded: LoadedConfig,
    facts: RankFacts,
    stop: StopRequest,
    callbacks: Sequence[Callback] = (),
    model_builder: ModelBuilder = build_model,
) -> ExitStatus:
    """Train as the configuration says, on this rank; how it ended.

    `callbacks` and `model_builder` are where a user's own code joins.

    A failure does not return: the process ends here, because what is left of torch's process groups may wait for ranks
    that are gone.
    """
    console = build_console(facts.rank == 0)
    session = Session(loaded, console, callbacks, model_builder)
    try:
        dist = Dist.start(
            facts,
            timeout_seconds=loaded.config.fault.stall_timeout,
            on_failure=session.record_failure,
            stop=stop,
        )
    except Interrupted as error:
        console.say(str(error))
        return ExitStatus.INTERRUPTED
    try:
        ending = session.train(dist, stop)
        dist.close()
    except BaseException as error:  # noqa: BLE001  (every rank must hear of it, and none may wait in a destructor)
        failure = dist.fail(error)
        if failure.rank == dist.rank:
            _say_failure(error, failure.reason)
        leave(failure.exit_status)
    return ending.exit_status


@dataclass(frozen=True)
class Ending:
    """How a run ended that has not failed."""

    status: Status
    reason: str
    exit_status: ExitStatus


class Session:
    """What is known of the run so far; `record_failure` may be called at any moment, from another thread."""

    def __init__(
        self,
        loaded: LoadedConfig,
        console: Console,
        callbacks: Sequence[Callback] = (),
        model_builder: ModelBuilder = build_model,
    ) -> None:
        self.loaded = loaded
        self.callbacks = callbacks
        self.model_builder = model_builder
        self.config: Config = loaded.config
        self.console = console
        self.folder = RunFolder.of(self.config.run)
        self.parts: Parts | None = None
        self._is_claimed = False

    def train(self, dist: Dist, stop: StopRequest) -> Ending:
        """Build and fit; write down how it ended, unless it failed.

        Raises:
            LlmtrainError: it failed; a ConfigError names the origin of each key.
        """
        try:
            return self._train(dist, stop)
        except ConfigError as error:
            raise error.with_origins(self.loaded.provenance.origin_of) from error

    def _train(self, dist: Dist, stop: StopRequest) -> Ending:
        check_start(self.config, dist)
        needed = [Path(self.config.model.init_from)] if self.config.model.init_from else []
        self.folder.prepare(self.config.run, rank=dist.rank, all_gather=dist.all_gather_objects, needed=needed)
        if reason := self._reason_of_end(dist):
            self.console.say(f"nothing to train: {reason}")
            return Ending("done", reason, ExitStatus.DONE)
        self._is_claimed = True
        self.parts = build_parts(self.loaded, dist, self.folder, self.console, self.model_builder)
        try:
            reason = Trainer(self.parts, stop, self.callbacks).fit()
        except Interrupted as error:
            ending = Ending("interrupted", str(error), ExitStatus.INTERRUPTED)
        else:
            ending = Ending("done", reason, ExitStatus.DONE)
        self.parts.close(ending.status, ending.reason, ending.exit_status)
        self.console.say(f"{ending.status}: {ending.reason}")
        return ending

    def _reason_of_end(self, dist: Dist) -> str | None:
        """Why a run that is to be resumed is at its end, where it kept no checkpoint that tells; a collective."""
        reason = None
        if dist.is_main and self.config.run.resume_from_checkpoint == "auto" and not self.folder.checkpoints.exists():
            status = self.folder.read_status()
            reason = status.reason if status is not None and status.status == "done" else None
        agreed: str | None = dist.broadcast_object(reason)
        return agreed

    def record_failure(self, reason: str) -> None:
        """The lowest surviving rank: write down that the run has failed, or leave no trace where nothing had begun."""
        if not self._is_claimed:
            return
        if self.parts is None or not self.parts.has_begun:
            self.folder.discard_if_unused()
            return
        self.folder.write_status("failed", self.parts.progress.step, reason, ExitStatus.FAILED)
        self.parts.tracker.finish("failed")


def _say_failure(error: BaseException, reason: str) -> None:
    if not isinstance(error, LlmtrainError):
        traceback.print_exception(error)
    print(f"llmtrain: {reason}", file=sys.stderr, flush=True)
