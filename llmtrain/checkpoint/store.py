"""The checkpoints of a run: save one, find the one to resume from, load it, keep the right ones.

`CheckpointStore` is the module that the trainer talks to. All its methods but `protect_*` are called by all ranks
together, and either succeed on all or raise on all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrain.checkpoint import random_state
from llmtrain.checkpoint.agreement import Ranks, agree
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.finding import newest_complete, problems_of, refuse_path, set_right
from llmtrain.checkpoint.fragment_source import FragmentSource
from llmtrain.checkpoint.fragments import EngineState, HasDeepSpeed
from llmtrain.checkpoint.manifest import FILE_NAME, Manifest, shortened
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.retention import (
    CONDEMNED_SUFFIX,
    TEMPORARY_SUFFIX,
    folder_name,
    name_set_aside,
    step_folders,
    steps_to_remove,
    suffixed_folders,
)
from llmtrain.checkpoint.running_state import restore_counters, restore_loss_scaler
from llmtrain.checkpoint.tensorfile import TensorFile
from llmtrain.checkpoint.writing import (
    TRAINER_STATE,
    SavedState,
    random_state_name,
    rank_state_name,
    write_checkpoint,
)
from llmtrain.errors import CheckpointError

LATEST = "latest"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds besides what has been written into the engine.

    `rank_states` are in the order of the ranks that saved them, `world_size` of them.
    """

    path: Path
    step: int
    world_size: int
    trainer_state: dict[str, Any]
    rank_states: list[dict[str, Any]]


class CheckpointStore:
    """The folder `checkpoints/` of a run."""

    def __init__(
        self,
        root: Path,
        ranks: Ranks,
        *,
        save_total_limit: int | None = None,
        model_files: ModelFiles | None = None,
        say: Callable[[str], None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Args:
        root: holds the step folders; made at the first save.
        save_total_limit: how many to keep, the newest; None keeps all.
        model_files: what goes into each checkpoint so that `llmtrain export` needs nothing else.
        say: takes the remarks that a user should see (called on rank 0 alone).
        """
        self.root = root
        self._ranks = ranks
        self._save_total_limit = save_total_limit
        self._model_files = model_files or ModelFiles()
        self._say = say or logging.getLogger(__name__).warning
        self._disk = disk or Disk()
        self._best_step: int | None = None
        self._source_step: int | None = None

    # --- saving ---------------------------------------------------------------------------------------------------

    def save(self, step: int, engine: HasDeepSpeed, trainer_state: dict[str, Any], rank_state: dict[str, Any]) -> Path:
        """Save everything under the number of an optimizer step; the checkpoint's folder.

        Raises:
            CheckpointError: one rank could not write its part, or the engine's state is not what it says.
        """
        path = self.root / folder_name(step)
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        state = SavedState(trainer_state, rank_state)
        write_checkpoint(temporary, step, engine, state, self._model_files, ranks=self._ranks, disk=self._disk)
        error: Exception | None = None
        if self._ranks.rank == 0:
            try:
                self._publish(step, temporary, path)
            except OSError as failure:
                error = failure
        agree(self._ranks, error, f"the checkpoint of step {step} is written, but could not be put in its place")
        return path

    def _publish(self, step: int, temporary: Path, path: Path) -> None:
        if path.exists():
            self._set_aside(path, "a new checkpoint of the same step takes its place")
        self._disk.rename(temporary, path)
        self._disk.replace_file(self.root / LATEST, f"{path.name}\n".encode())
        try:
            self._tidy(step)
        except OSError as error:
            self._say(f"checkpoint {path.name} is saved, but older ones could not be removed: {error}")

    def _set_aside(self, path: Path, reason: str) -> None:
        target = name_set_aside(path)
        self._disk.rename(path, target)
        self._say(f"checkpoint {path.name} is now {target.name}: {reason}")

    def _tidy(self, newest: int) -> None:
        """Retention, and what earlier saves that were killed left behind."""
        for step, path in step_folders(self.root).items():
            if step > newest:
                self._set_aside(path, f"the run went back before it and is at step {newest} now")
        complete = {step: path for step, path in step_folders(self.root).items() if (path / FILE_NAME).exists()}
        spared = {step for step in (newest, self._best_step, self._source_step) if step is not None}
        for step in steps_to_remove(complete, self._save_total_limit, spared):
            # Renamed first, so that half of one is never taken for a whole.
            self._disk.rename(complete[step], complete[step].with_name(complete[step].name + CONDEMNED_SUFFIX))
        for suffix in (CONDEMNED_SUFFIX, TEMPORARY_SUFFIX):
            for leftover in suffixed_folders(self.root, suffix).values():
                self._disk.remove(leftover)

    def protect_best(self, step: int) -> None:
        """Keep the checkpoint of this step through retention, instead of the best one before it."""
        self._best_step = step

    def protect_source(self, path: Path) -> None:
        """Keep the checkpoint that the run was resumed from (`load` does this)."""
        folders = step_folders(self.root)
        self._source_step = next((step for step, own in folders.items() if own.resolve() == path.resolve()), None)

    # --- finding --------------------------------------------------------------------------------------------------

    def find(self, resume_from_checkpoint: str) -> Path | None:
        """What `run.resume_from_checkpoint` means: none, auto, or a path. Every file's content is checked.

        Returns:
            The checkpoint to load; None for a fresh start.

        Raises:
            ConfigError: the path is no checkpoint.
            CheckpointError: that checkpoint is damaged; or, with auto, all are.
        """
        if resume_from_checkpoint == "none":
            return None
        if resume_from_checkpoint != "auto":
            path = Path(resume_from_checkpoint)
            refuse_path(path, "run.resume_from_checkpoint", self._ranks)
            if problems := problems_of(path, self._ranks):
                raise CheckpointError(f"checkpoint {path} cannot be used: {shortened(problems)}")
            return path
        error: Exception | None = None
        if self._ranks.rank == 0:
            try:
                set_right(self.root, self._disk, self._say)
            except OSError as failure:
                error = failure
        agree(self._ranks, error, f"an unfinished checkpoint in {self.root} could not be completed")
        found = newest_complete(self.root, self._ranks, self._remark)
        if found is None:
            self._remark(f"no checkpoint in {self.root}: the run starts anew")
        return found

    def _remark(self, text: str) -> None:
        if self._ranks.rank == 0:
            self._say(text)

    def read_trainer_state(self, path: Path) -> dict[str, Any]:
        """What the trainer saved of itself, before anything is loaded (a run needs it to be built). Every rank reads.

        Raises:
            CheckpointError: on all ranks where one cannot read it.
        """
        state: dict[str, Any] = {}
        error: Exception | None = None
        try:
            state = json.loads((path / TRAINER_STATE).read_bytes())
        except (OSError, ValueError) as failure:
            error = failure
        agree(self._ranks, error, f"checkpoint {path} could not be read")
        return state

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, path: Path, engine: HasDeepSpeed) -> LoadedCheckpoint:
        """Write a checkpoint's weights, moments, loss scale and random states into a run of any size and stage.

        Random states are this rank's own on the same number of ranks, and derived from them on another.

        Raises:
            CheckpointError: it does not fit the model or the optimizer, or cannot be read.
        """
        manifest = _fill(path, engine, self._ranks, with_moments=True)
        restore_loss_scaler(engine.deepspeed, manifest.loss_scaler)
        restore_counters(engine.deepspeed, manifest.counters)
        error: Exception | None = None
        try:
            self._restore_random_state(path, manifest.world_size)
            trainer_state = json.loads((path / TRAINER_STATE).read_bytes())
            rank_states = [
                json.loads((path / rank_state_name(rank)).read_bytes()) for rank in range(manifest.world_size)
            ]
        except Exception as failure:  # noqa: BLE001  (all ranks must hear of it)
            error = failure
        agree(self._ranks, error, f"checkpoint {path} could not be loaded")
        self.protect_source(path)
        return LoadedCheckpoint(path, manifest.step, manifest.world_size, trainer_state, rank_states)

    def _restore_random_state(self, path: Path, saved_world_size: int) -> None:
        same_size = saved_world_size == self._ranks.world_size
        file = TensorFile(path / random_state_name(self._ranks.rank if same_size else 0))
        states = {key: file.tensor(key) for key in file.entries}
        if same_size:
            random_state.restore(states)
        else:
            random_state.derive(states, self._ranks.rank)


def load_weights_only(path: Path, engine: HasDeepSpeed, ranks: Ranks) -> None:
    """Write a checkpoint's weights into a fresh engine (`model.init_from`); moments and counters stay as they are.

    Raises:
        ConfigError: the path is no checkpoint.
        CheckpointError: it is damaged, or does not fit the model.
    """
    refuse_path(path, "model.init_from", ranks)
    if problems := problems_of(path, ranks):
        raise CheckpointError(f"checkpoint {path} cannot be used: {shortened(problems)}")
    _fill(path, engine, ranks, with_moments=False)


def _fill(path: Path, engine: HasDeepSpeed, ranks: Ranks, *, with_moments: bool) -> Manifest:
    what_failed = f"checkpoint {path} could not be loaded"
    error: Exception | None = None
    try:
        manifest = Manifest.read(path)
        state = EngineState(engine, ranks.rank, ranks.world_size)
        if problems := state.problems(manifest, with_moments=with_moments):
            raise CheckpointError("it does not fit this run: " + shortened(problems))
        state.load(manifest, FragmentSource(path, manifest), with_moments=with_moments)
    except Exception as failure:  # noqa: BLE001  (all ranks must hear of it)
        error = failure
    agree(ranks, error, what_failed)
    state.refresh_model()
    try:
        state.check_all()
    except CheckpointError as failure:
        error = failure
    agree(ranks, error, what_failed)
    return manifest
