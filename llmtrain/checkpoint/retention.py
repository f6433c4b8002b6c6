"""The folders of a run's checkpoints: their names, their order, which may go. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

_STEP_FOLDER = re.compile(r"step-(\d+)")
TEMPORARY_SUFFIX = ".tmp"
CONDEMNED_SUFFIX = ".removed"


def folder_name(step: int) -> str:
    """Of the checkpoint of an optimizer step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step of a checkpoint's folder, None for any other name."""
    match = _STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


def step_folders(root: Path) -> dict[int, Path]:
    """The checkpoints' folders (complete or not) by step, in numeric order."""
    found = {step_of(path): path for path in (root.iterdir() if root.is_dir() else ()) if path.is_dir()}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def suffixed_folders(root: Path, suffix: str) -> dict[int, Path]:
    """What unfinished saves (`.tmp`) or removals (`.removed`) left behind, by step, in numeric order."""
    found = {}
    for path in root.iterdir() if root.is_dir() else ():
        step = step_of(path.with_suffix("")) if path.suffix == suffix and path.is_dir() else None
        if step is not None:
            found[step] = path
    return dict(sorted(found.items()))


def steps_to_remove(steps: Iterable[int], limit: int | None, spared: Collection[int]) -> list[int]:
    """Those beyond the `limit` newest, oldest first, without the spared ones."""
    if limit is None:
        return []
    newest = set(sorted(steps)[-limit:])
    return [step for step in sorted(steps) if step not in newest and step not in spared]


def name_set_aside(path: Path) -> Path:
    """A free name beside `path` for what must make way; it is never taken for a checkpoint again by itself."""
    number = 1
    while (candidate := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    return candidate
