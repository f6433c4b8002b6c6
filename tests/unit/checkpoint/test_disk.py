"""Durable file operations: their records, their order, and what a reader sees when one is cut short."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from llmtrain.checkpoint.disk import Disk, FileRecord, record_of


class RecordingDisk(Disk):
    """Notes each operation; fails before the operation `fail_at`."""

    def __init__(self, fail_at: str = "") -> None:
        self.operations: list[str] = []
        self.fail_at = fail_at

    def before(self, operation: str, path: Path) -> None:
        self.operations.append(f"{operation} {path.name}")
        if self.operations[-1] == self.fail_at:
            raise OSError("no space left")


def test_a_file_is_recorded_as_it_is_written(tmp_path: Path) -> None:
    with Disk().create(tmp_path / "file") as file:
        file.write(b"one")
        file.write(memoryview(b"two"))
    expected = FileRecord(6, f"{zlib.crc32(b'onetwo'):08x}")
    assert file.record == expected
    assert record_of(tmp_path / "file") == expected
    assert Disk().adopt(tmp_path / "file") == expected


def test_a_file_is_flushed_before_its_name_changes(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.replace_file(tmp_path / "latest", b"new")
    assert disk.operations == [
        "create latest.tmp",
        "write latest.tmp",
        "flush latest.tmp",
        "rename latest.tmp",
        f"flush_folder {tmp_path.name}",
    ]


@pytest.mark.parametrize("fail_at", ["write latest.tmp", "flush latest.tmp", "rename latest.tmp"])
def test_a_replacement_that_fails_leaves_the_old_content(tmp_path: Path, fail_at: str) -> None:
    Disk().write_bytes(tmp_path / "latest", b"old")
    with pytest.raises(OSError, match="no space left"):
        RecordingDisk(fail_at).replace_file(tmp_path / "latest", b"new")
    assert (tmp_path / "latest").read_bytes() == b"old"


def test_removing_takes_files_and_folders_and_what_is_not_there(tmp_path: Path) -> None:
    Disk().make_folder(tmp_path / "folder" / "inner")
    Disk().write_bytes(tmp_path / "folder" / "inner" / "file", b"")
    for name in ("folder/inner/file", "folder", "absent"):
        Disk().remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
