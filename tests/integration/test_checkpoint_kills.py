"""SIGKILL at every kind of operation on the disk during a save: a complete checkpoint is there and is found.

One rank builds an engine, then forks: each child starts the same save and kills itself a little later than the one
before.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from llmtrain.checkpoint.agreement import OneRank
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.engine import Engine
from tests.support.checkpoint_runs import Setup, build_engine, differences, state_of, train
from tests.support.ranks import RankPool


class CountingDisk(Disk):
    """Notes the operations; kills the process before operation number `fatal` (from 0)."""

    def __init__(self, fatal: int | None = None) -> None:
        self.fatal = fatal
        self.operations: list[str] = []

    def before(self, operation: str, path: Path) -> None:
        if len(self.operations) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.operations.append(f"{operation} {path.name}")


@dataclass(frozen=True)
class Death:
    """What was found after a save that was killed; `before` is the operation that it did not do any more."""

    number: int
    before: str
    found: str
    said: list[str]
    is_sound: bool


def _store(root: Path, engine: Engine, said: list[str], disk: Disk | None = None) -> CheckpointStore:
    files = ModelFiles.of(engine.module, None, torch.float32)
    return CheckpointStore(root, OneRank(), save_total_limit=1, model_files=files, say=said.append, disk=disk)


def _operations(engine: Engine, root: Path, step: int) -> list[str]:
    disk = CountingDisk()
    _store(root, engine, [], disk).save(step, engine, {"step": step}, {})
    return disk.operations


def _chosen(operations: list[str]) -> list[int]:
    """All of them, but of the many writes to one file only the first, the second and the last."""
    total, seen = Counter(operations), Counter[str]()
    chosen = []
    for number, operation in enumerate(operations):
        seen[operation] += 1
        if not operation.startswith("write") or seen[operation] in (1, 2, total[operation]):
            chosen.append(number)
    return chosen


def _die_while_saving(engine: Engine, root: Path, step: int, fatal: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            _store(root, engine, [], CountingDisk(fatal)).save(step, engine, {"step": step}, {})
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def _save_and_die(base: Path, step: int) -> tuple[list[str], list[Death]]:
    """A checkpoint of step 1; then saves of `step` that die, each on a copy of the folder: operations and deaths."""
    engine = build_engine(Setup(2))
    train(engine, 0, 1, 1)
    _store(base / "first", engine, []).save(1, engine, {"step": 1}, {})
    train(engine, 0, 2, 2)
    shutil.copytree(base / "first", base / "whole")
    operations = _operations(engine, base / "whole", step)
    deaths: list[Death] = []
    for number in _chosen(operations):
        root = base / f"{number}"
        shutil.copytree(base / "first", root)
        _die_while_saving(engine, root, step, number)
        said: list[str] = []
        found = _store(root, engine, said).find("auto")
        assert found is not None
        is_sound = number % 7 != 0 or _goes_on(engine, root, found)
        deaths.append(Death(number, operations[number], found.name, said, is_sound))
        shutil.rmtree(root)
    return operations, deaths


def _goes_on(engine: Engine, root: Path, found: Path) -> bool:
    """Load what was found, save it as a later step: equal, and nothing half-done is left."""
    state = state_of(found)
    store = _store(root, engine, [])
    again = store.save(3, engine, store.load(found, engine).trainer_state, {})
    return differences(state, state_of(again)) == [] and not list(root.glob("*.tmp")) + list(root.glob("*.removed"))


def test_a_complete_checkpoint_is_found_wherever_a_save_was_killed(one_rank: RankPool, tmp_path: Path) -> None:
    operations, deaths = one_rank.run(_save_and_die, tmp_path, 2)[0]
    written = operations.index("write manifest.json")
    renamed = operations.index("rename step-00000002.tmp")
    assert len(deaths) > 25
    for death in deaths:
        is_complete = death.number > written
        assert death.found == ("step-00000002" if is_complete else "step-00000001"), death
        recovered = "checkpoint step-00000002 was complete but for its name, and has it now"
        assert death.said == ([recovered] if is_complete and death.number <= renamed else []), death
        assert death.is_sound, death


def test_a_save_of_the_same_step_loses_nothing_when_it_is_killed(one_rank: RankPool, tmp_path: Path) -> None:
    operations, deaths = one_rank.run(_save_and_die, tmp_path, 1)[0]
    assert operations.count("rename step-00000001") == 1
    assert {death.found for death in deaths} == {"step-00000001"}
    assert all(death.is_sound for death in deaths)
