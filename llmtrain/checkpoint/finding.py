"""Which checkpoint a run resumes from: the newest whose files are all what the manifest says.

A checkpoint's content is read once to compare checksums, each rank a share of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmtrain.checkpoint.agreement import Ranks
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.manifest import FILE_NAME, Manifest, coverage_problems, file_problems, shortened
from llmtrain.checkpoint.retention import (
    TEMPORARY_SUFFIX,
    folder_name,
    name_set_aside,
    step_folders,
    suffixed_folders,
)
from llmtrain.errors import CheckpointError, ConfigError, Problem


def newest_complete(root: Path, ranks: Ranks, remark: Callable[[str], None]) -> Path | None:
    """The newest usable checkpoint of a run, None where there is none at all. All ranks call.

    Raises:
        CheckpointError: there are some, and none can be used; names each.
    """
    candidates: list[Path] = ranks.all_gather_objects(list(step_folders(root).values())[::-1])[0]
    damaged = []
    for path in candidates:
        problems = problems_of(path, ranks)
        if not problems:
            return path
        damaged.append(f"{path.name}: {shortened(problems)}")
        remark(f"checkpoint {path.name} is passed over: {shortened(problems)}")
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {root} can be used ({'; '.join(damaged)}): mend one, or start anew with "
            "run.overwrite=true, or in another run.name"
        )
    return None


def problems_of(path: Path, ranks: Ranks) -> list[str]:
    """What is wrong with a checkpoint, alike on all ranks; each rank reads its share of the files."""
    problems: list[str] = []
    try:
        manifest = Manifest.read(path)
        names = sorted(manifest.files)
        problems = file_problems(path, manifest.files, names[ranks.rank :: ranks.world_size], content=True)
        problems += coverage_problems(manifest.parameters)
    except CheckpointError as error:
        problems = [str(error)]
    found = ranks.all_gather_objects(problems)
    return list(dict.fromkeys(problem for of_rank in found for problem in of_rank))


def set_right(root: Path, disk: Disk, say: Callable[[str], None]) -> None:
    """Finish what a kill between the manifest and the rename left: complete, under a temporary name. Rank 0 alone."""
    for step, temporary in suffixed_folders(root, TEMPORARY_SUFFIX).items():
        final = root / folder_name(step)
        if _is_whole(temporary) and not (final / FILE_NAME).exists():
            if final.exists():
                disk.rename(final, name_set_aside(final))
            disk.rename(temporary, final)
            say(f"checkpoint {final.name} was complete but for its name, and has it now")


def _is_whole(path: Path) -> bool:
    """By the manifest and the files' sizes."""
    try:
        manifest = Manifest.read(path)
    except CheckpointError:
        return False
    return not file_problems(path, manifest.files, manifest.files, content=False)


def refuse_path(path: Path, key: str, ranks: Ranks) -> None:
    """Check that a path that the user wrote is a checkpoint's folder.

    Raises:
        ConfigError: it is not; names what was perhaps meant.
    """
    rule = None
    if ranks.rank == 0 and not (path / FILE_NAME).is_file():
        rule = "does not exist" if not path.exists() else f"is no complete checkpoint: it holds no {FILE_NAME}"
    rule = ranks.all_gather_objects(rule)[0]
    if rule is not None:
        raise ConfigError(Problem(key, rule, _meant(path), value=str(path)))


def _meant(path: Path) -> str:
    for root in (path, path / "checkpoints", path.parent):
        if found := list(step_folders(root).values()):
            return "there are " + ", ".join(str(folder) for folder in found[-5:])
    return "name the folder of a checkpoint, such as runs/NAME/checkpoints/step-00000500"
