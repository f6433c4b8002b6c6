"""The manifest: what it says survives the disk, what is damaged is named, what is not covered once is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.manifest import (
    FILE_NAME,
    Cut,
    Manifest,
    ParameterRecord,
    coverage_problems,
    file_problems,
    shortened,
)
from llmtrain.errors import CheckpointError


def _record(*cuts: tuple[int, int, int], shape: tuple[int, ...] = (2, 5)) -> ParameterRecord:
    return ParameterRecord(list(shape), "trained", "F32", ["exp_avg"], {"step": 3}, [Cut(*cut) for cut in cuts])


def _manifest(folder: Path) -> Manifest:
    manifest = Manifest(
        step=3,
        world_size=2,
        optimizer="adam",
        parameters={"a.weight": _record((0, 0, 6), (1, 6, 4)), "b": _record((0, 0, 1), shape=())},
        fragment_files=["rank-00000.safetensors", "rank-00001.safetensors"],
        files={"rank-00000.safetensors": Disk().write_bytes(folder / "rank-00000.safetensors", b"content")},
        loss_scaler={"cur_scale": 1024.0},
        counters={"global_steps": 3},
        facts={"zero_stage": 2},
    )
    Disk().write_bytes(folder / FILE_NAME, manifest.to_json())
    return manifest


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = _manifest(tmp_path)
    assert Manifest.read(tmp_path) == written


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"step": 3', b'"step": 4', "is damaged: its checksum is"),
        (b'"format_version": 1', b'"format_version": 9', "has format version 9, this llmtrain reads 1"),
        (b"}\n", b"", "is damaged"),
        (b'"checksum"', b'"checksun"', "is damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    _manifest(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(CheckpointError, match=message):
        Manifest.read(tmp_path)


def test_a_folder_without_a_manifest_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a complete checkpoint: it has no manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("cuts", "problem"),
    [
        ([(0, 0, 10)], None),
        ([(1, 6, 4), (0, 0, 6)], None),
        ([(0, 0, 5), (1, 6, 4)], "a: elements 5 to 6 are missing"),
        ([(0, 0, 7), (1, 6, 4)], "a: elements 6 to 7 are covered twice"),
        ([(0, 0, 6), (1, 6, 3)], "a: elements 9 to 10 are missing"),
        ([(0, 0, 6), (1, 6, 5)], "a: elements 10 to 11 are too many"),
        ([(0, 0, 10), (1, 0, 10)], "a: elements 0 to 10 are covered twice"),
        ([], "a: elements 0 to 10 are missing"),
    ],
)
def test_each_element_is_covered_exactly_once(cuts: list[tuple[int, int, int]], problem: str | None) -> None:
    assert coverage_problems({"a": _record(*cuts)}) == ([problem] if problem else [])


def test_files_are_compared_by_size_and_by_content(tmp_path: Path) -> None:
    files = _manifest(tmp_path).files
    name = "rank-00000.safetensors"
    assert file_problems(tmp_path, files, [name], content=True) == []
    (tmp_path / name).write_bytes(b"Content")
    assert file_problems(tmp_path, files, [name], content=False) == []
    assert "is damaged: its checksum" in file_problems(tmp_path, files, [name], content=True)[0]
    (tmp_path / name).write_bytes(b"conten")
    assert file_problems(tmp_path, files, [name], content=False) == [f"{tmp_path / name} has 6 bytes instead of 7"]
    (tmp_path / name).unlink()
    assert file_problems(tmp_path, files, [name], content=False) == [
        f"{tmp_path / name} cannot be read: No such file or directory"
    ]


def test_many_problems_are_shortened() -> None:
    assert shortened(["a", "b"]) == "a; b"
    assert shortened([str(n) for n in range(8)]) == "0; 1; 2; 3; 4 (and 3 more)"
