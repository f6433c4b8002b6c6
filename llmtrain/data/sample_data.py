"""Real text that every Python has: the standard library's sources and the language reference, as JSON Lines.

One document a module (`lib/json/decoder.py`) or topic of the reference (`topics/assignment`), in the order of their
names. A hash of the name decides which are held out, so that the split does not change with what else there is. The
same Python writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

TRAIN_FILE, EVAL_FILE = "train.jsonl", "eval.jsonl"
ONE_IN_HELD_OUT = 20
LEFT_OUT_FOLDERS = {
    "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__",
    "lib2to3", "turtledemo", "pydoc_data", "config",
}  # fmt: skip
"""Tests, other people's packages, and pydoc_data, whose one module is the topics once more."""
LEFT_OUT_PREFIXES = ("config-", "_sysconfigdata")
"""Depend on the machine that built Python."""


def write_sample_data(folder: str | Path) -> list[Path]:
    """Write `train.jsonl` and `eval.jsonl`, lines of {"name", "text"}, unless they are there already; the two paths."""
    folder = Path(folder)
    paths = [folder / TRAIN_FILE, folder / EVAL_FILE]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    partial = [path.with_suffix(".partial") for path in paths]
    with partial[0].open("w", encoding="utf-8") as train, partial[1].open("w", encoding="utf-8") as held_out:
        for name, text in _documents():
            line = json.dumps({"name": name, "text": text}, ensure_ascii=False)
            (held_out if is_held_out(name) else train).write(line + "\n")
    # Renamed at the end: a run that is cut short leaves nothing that looks complete.
    for source, target in zip(partial, paths, strict=True):
        os.replace(source, target)
    return paths


def is_held_out(name: str) -> bool:
    """Whether a document belongs to the held-out split."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % ONE_IN_HELD_OUT == 0


def _documents() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(_module_files(root), key=lambda path: path.relative_to(root).as_posix()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield f"lib/{path.relative_to(root).as_posix()}", text
    for name in sorted(topics):
        yield f"topics/{name}", topics[name]


def _module_files(root: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS and not _is_left_out(name)]
        yield from (Path(directory) / name for name in files if name.endswith(".py") and not _is_left_out(name))


def _is_left_out(name: str) -> bool:
    return name.startswith(LEFT_OUT_PREFIXES)
