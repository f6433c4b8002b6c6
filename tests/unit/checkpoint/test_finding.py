"""Which checkpoint a run resumes from, on folders that hold no model: one rank, real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.checkpoint.agreement import OneRank
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.manifest import FILE_NAME, Manifest
from llmtrain.checkpoint.retention import folder_name
from llmtrain.checkpoint.store import CheckpointStore
from llmtrain.errors import CheckpointError, ConfigError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "name" / "checkpoints"


@pytest.fixture
def said() -> list[str]:
    return []


def _make(root: Path, step: int, *, suffix: str = "") -> Path:
    folder = root / (folder_name(step) + suffix)
    folder.mkdir(parents=True)
    files = {name: Disk().write_bytes(folder / name, f"{name} of {step}".encode()) for name in ("one", "two")}
    manifest = Manifest(step, 1, "adam", {}, [], files, {}, {}, {})
    Disk().write_bytes(folder / FILE_NAME, manifest.to_json())
    return folder


def _store(root: Path, said: list[str]) -> CheckpointStore:
    return CheckpointStore(root, OneRank(), say=said.append)


def test_none_is_a_fresh_start_whatever_there_is(root: Path, said: list[str]) -> None:
    _make(root, 1)
    assert _store(root, said).find("none") is None
    assert said == []


def test_auto_without_any_checkpoint_is_a_fresh_start_said_aloud(root: Path, said: list[str]) -> None:
    assert _store(root, said).find("auto") is None
    assert said == [f"no checkpoint in {root}: the run starts anew"]


def test_auto_takes_the_newest_by_number(root: Path, said: list[str]) -> None:
    for step in (9, 10, 100):
        _make(root, step)
    assert _store(root, said).find("auto") == root / "step-00000100"
    assert said == []


@pytest.mark.parametrize("damage", ["content", "size", "missing", "manifest", "no manifest"])
def test_auto_passes_over_a_damaged_one_aloud(root: Path, said: list[str], damage: str) -> None:
    _make(root, 1)
    newest = _make(root, 2)
    victim = newest / (FILE_NAME if "manifest" in damage else "two")
    if damage in ("missing", "no manifest"):
        victim.unlink()
    else:
        content = victim.read_bytes()
        victim.write_bytes(content[:-1] if damage == "size" else b"X" + content[1:])
    assert _store(root, said).find("auto") == root / "step-00000001"
    assert len(said) == 1
    assert said[0].startswith("checkpoint step-00000002 is passed over: ")
    assert (victim.name if damage != "no manifest" else "it has no manifest.json") in said[0]


def test_auto_refuses_where_all_are_damaged_and_names_each(root: Path, said: list[str]) -> None:
    for step in (1, 2):
        (_make(root, step) / "one").write_bytes(b"short")
    with pytest.raises(CheckpointError) as raised:
        _store(root, said).find("auto")
    assert "no checkpoint in" in str(raised.value)
    assert all(f"step-0000000{step}: " in str(raised.value) for step in (1, 2))
    assert "run.overwrite=true" in str(raised.value)


def test_auto_completes_what_lacks_only_its_name(root: Path, said: list[str]) -> None:
    _make(root, 1)
    _make(root, 2, suffix=".tmp")
    (root / "step-00000003.tmp").mkdir()
    (_make(root, 4, suffix=".tmp") / FILE_NAME).write_bytes(b"{")
    (_make(root, 5, suffix=".tmp") / "one").unlink()
    assert _store(root, said).find("auto") == root / "step-00000002"
    assert said == ["checkpoint step-00000002 was complete but for its name, and has it now"]


def test_auto_completes_in_place_of_a_folder_without_a_manifest(root: Path, said: list[str]) -> None:
    (_make(root, 2) / FILE_NAME).unlink()
    _make(root, 2, suffix=".tmp")
    assert _store(root, said).find("auto") == root / "step-00000002"
    assert (root / "step-00000002.aside-1").is_dir()


def test_a_path_takes_that_one(root: Path, said: list[str]) -> None:
    _make(root, 2)
    assert _store(root, said).find(str(_make(root, 1))) == root / "step-00000001"


def test_a_damaged_path_is_refused_with_the_file_named(root: Path, said: list[str]) -> None:
    _make(root, 1)
    path = _make(root, 2)
    (path / "two").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"step-00000002 cannot be used: .*step-00000002/two has 1 bytes"):
        _store(root, said).find(str(path))


@pytest.mark.parametrize("meant", ["", "..", "step-00000007"])
def test_a_path_that_is_no_checkpoint_names_those_there_are(root: Path, said: list[str], meant: str) -> None:
    _make(root, 5)
    with pytest.raises(ConfigError, match=r"run\.resume_from_checkpoint=.*there are .*step-00000005") as raised:
        _store(root, said).find(str(root / meant))
    assert raised.value.exit_status == 2


def test_a_path_with_nothing_near_says_what_to_name(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; name the folder of a checkpoint"):
        _store(tmp_path, said).find(str(tmp_path / "absent" / "deeper"))
