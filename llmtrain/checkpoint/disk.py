"""How checkpoints and exports change the file system: every file flushed to the disk, every rename too.

A subclass that overrides `before` sees each operation just before it happens: tests kill the process there.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class FileRecord:
    """What a file must be: its size in bytes and the CRC-32 of its content, eight hexadecimal digits."""

    size: int
    crc32: str


class OutputFile:
    """A file being written; counts and checksums what goes through it."""

    def __init__(self, disk: Disk, path: Path, stream: BinaryIO) -> None:
        self._disk, self._path, self._stream = disk, path, stream
        self._size, self._crc32 = 0, 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self._disk.before("write", self._path)
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._size += view.nbytes
        self._crc32 = zlib.crc32(view, self._crc32)

    @property
    def record(self) -> FileRecord:
        """Of what has been written so far."""
        return FileRecord(self._size, f"{self._crc32:08x}")


class Disk:
    """Durable file operations: each has reached the disk when it returns."""

    def before(self, operation: str, path: Path) -> None:
        """Called before each operation; does nothing."""

    @contextmanager
    def create(self, path: Path) -> Iterator[OutputFile]:
        """A new file, flushed to the disk at the end of the block."""
        self.before("create", path)
        with path.open("wb", buffering=0) as stream:
            yield OutputFile(self, path, stream)
            self.before("flush", path)
            os.fsync(stream.fileno())

    def write_bytes(self, path: Path, content: bytes) -> FileRecord:
        """Write a whole file."""
        with self.create(path) as file:
            file.write(content)
        return file.record

    def replace_file(self, path: Path, content: bytes) -> None:
        """Write a whole file so that a reader sees the old content or the new, never a part."""
        temporary = path.with_name(f"{path.name}.tmp")
        self.write_bytes(temporary, content)
        self.rename(temporary, path)

    def adopt(self, path: Path) -> FileRecord:
        """Flush and record a file that another library has written."""
        self.before("flush", path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return record_of(path)

    def make_folder(self, path: Path) -> None:
        """A folder, with its parents; fine where it is already there."""
        self.before("make_folder", path)
        path.mkdir(parents=True, exist_ok=True)

    def flush_folder(self, path: Path) -> None:
        """The names in a folder, as the files themselves, survive a loss of power only once flushed."""
        self.before("flush_folder", path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder its new name, at once."""
        self.before("rename", source)
        source.replace(target)
        self.flush_folder(target.parent)

    def remove(self, path: Path) -> None:
        """A file, or a folder with all that it holds; fine where it is not there."""
        self.before("remove", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def record_of(path: Path) -> FileRecord:
    """Size and checksum of a file as it is now."""
    size, crc32 = 0, 0
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK_BYTES):
            size += len(block)
            crc32 = zlib.crc32(block, crc32)
    return FileRecord(size, f"{crc32:08x}")
