"""One save: from the engine on every rank to a complete folder under a temporary name.

All ranks write their own files into `step-….tmp`, then agree; rank 0 adds the model's files, the trainer's state and,
last, the manifest. A failure anywhere is a failure everywhere, and the temporary folder goes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrain.checkpoint import random_state
from llmtrain.checkpoint.agreement import Ranks, agree
from llmtrain.checkpoint.disk import Disk, FileRecord
from llmtrain.checkpoint.fragments import EngineState, HasDeepSpeed, merge
from llmtrain.checkpoint.manifest import FILE_NAME, Manifest, ParameterRecord, coverage_problems, shortened
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.running_state import counters, loss_scaler_state, running_facts
from llmtrain.checkpoint.tensorfile import TensorEntry, aligned, write_tensor_file
from llmtrain.errors import CheckpointError

TRAINER_STATE = "trainer_state.json"
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class SavedState:
    """What the trainer wants kept beside the weights: JSON-able; `rank` is this rank's own."""

    trainer: dict[str, Any]
    rank: dict[str, Any]


@dataclass(frozen=True)
class _RankPart:
    """What one rank tells the others about its files."""

    parameters: dict[str, ParameterRecord]
    files: dict[str, FileRecord]


def fragments_name(rank: int) -> str:
    """The file of a rank's weights and moments."""
    return f"rank-{rank:05d}.safetensors"


def rank_state_name(rank: int) -> str:
    """The file of the trainer's state of a rank."""
    return f"rank-{rank:05d}.json"


def random_state_name(rank: int) -> str:
    """The file of a rank's random states."""
    return f"rank-{rank:05d}.random.safetensors"


def write_checkpoint(
    folder: Path,
    step: int,
    engine: HasDeepSpeed,
    state: SavedState,
    model_files: ModelFiles,
    *,
    ranks: Ranks,
    disk: Disk,
) -> None:
    """Fill `folder` (made anew) with a complete checkpoint. All ranks call.

    Raises:
        CheckpointError: on all ranks where one fails; the folder is removed.
    """
    what_failed = f"the checkpoint of step {step} could not be saved (earlier ones are untouched)"
    error: Exception | None = None
    try:
        _make_folder(folder, ranks, disk, what_failed)
        part, engine_state = _write_rank_files(folder, engine, state, ranks, disk, what_failed)
        parts: list[_RankPart] = ranks.all_gather_objects(part)
        if ranks.rank == 0:
            try:
                _write_rest(folder, step, parts, state, model_files, engine_state, disk)
            except Exception as failure:  # noqa: BLE001  (all ranks must hear of it)
                error = failure
        agree(ranks, error, what_failed)
    except CheckpointError:
        if ranks.rank == 0:
            _remove_quietly(folder, disk)
        raise


def _make_folder(folder: Path, ranks: Ranks, disk: Disk, what_failed: str) -> None:
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            disk.remove(folder)
            disk.make_folder(folder)
            disk.flush_folder(folder.parent)
        except OSError as failure:
            error = failure
    agree(ranks, error, what_failed)


def _write_rank_files(
    folder: Path, engine: HasDeepSpeed, state: SavedState, ranks: Ranks, disk: Disk, what_failed: str
) -> tuple[_RankPart, EngineState]:
    rank = ranks.rank
    error: Exception | None = None
    part: _RankPart | None = None
    try:
        engine_state = EngineState(engine, rank, ranks.world_size)
        parameters, record = engine_state.save(disk, folder / fragments_name(rank))
        files = {
            fragments_name(rank): record,
            rank_state_name(rank): disk.write_bytes(folder / rank_state_name(rank), _json(state.rank)),
            random_state_name(rank): _write_random_state(disk, folder / random_state_name(rank)),
        }
        part = _RankPart(parameters, files)
    except Exception as failure:  # noqa: BLE001  (all ranks must hear of it)
        error = failure
    agree(ranks, error, what_failed)
    assert part is not None
    return part, engine_state


def _write_random_state(disk: Disk, path: Path) -> FileRecord:
    states = random_state.capture()
    entries = aligned(TensorEntry(key, value.dtype, tuple(value.shape)) for key, value in states.items())
    with write_tensor_file(disk, path, entries, {}) as (writer, file):
        for entry in entries:
            if entry.numel:
                writer.append(entry.key, states[entry.key])
    return file.record


def _write_rest(
    folder: Path,
    step: int,
    parts: list[_RankPart],
    state: SavedState,
    model_files: ModelFiles,
    engine_state: EngineState,
    disk: Disk,
) -> None:
    parameters = merge([part.parameters for part in parts])
    if problems := coverage_problems(parameters):
        raise CheckpointError("the fragments do not cover the model exactly once: " + shortened(problems))
    files = {name: record for part in parts for name, record in part.files.items()}
    files[TRAINER_STATE] = disk.write_bytes(folder / TRAINER_STATE, _json(state.trainer))
    model_folder = folder / MODEL_FOLDER
    disk.make_folder(model_folder)
    model_files.write(model_folder)
    for path in sorted(path for path in model_folder.rglob("*") if path.is_file()):
        files[path.relative_to(folder).as_posix()] = disk.adopt(path)
    disk.flush_folder(model_folder)
    manifest = Manifest(
        step=step,
        world_size=len(parts),
        optimizer=engine_state.optimizer_family,
        parameters=parameters,
        fragment_files=[fragments_name(rank) for rank in range(len(parts))],
        files=files,
        loss_scaler=loss_scaler_state(engine_state.engine),
        counters=counters(engine_state.engine),
        facts=running_facts(engine_state.engine),
    )
    disk.write_bytes(folder / FILE_NAME, manifest.to_json())
    disk.flush_folder(folder)


def _remove_quietly(folder: Path, disk: Disk) -> None:
    """Best effort: the next save removes it otherwise, and without a manifest nobody takes it for a checkpoint."""
    try:
        disk.remove(folder)
    except OSError:
        return


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode()
