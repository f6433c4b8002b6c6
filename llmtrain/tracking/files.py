"""The two ways in which a run folder's files are written.

A file that is replaced (`status.json`, `config.yaml`) goes through a temporary file, fsync and rename: a reader sees
the old content or the new, whatever is killed. A file that grows (`metrics.jsonl`, `trace.jsonl`) is opened for
appending and gets each line in one write: several processes can append, and a kill loses no line that was written.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of `path`, durably, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; file systems that cannot sync a folder do without."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


class JsonlWriter:
    """Appends lines to a file: one write a line, nothing buffered in the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._torn = self._ends_in_the_middle_of_a_line()

    def append(self, line: str) -> None:
        """Write `line` and its newline.

        Raises:
            OSError: The line could not be written whole (a full disk); the next one starts on a line of its own.
        """
        data = (("\n" if self._torn else "") + line + "\n").encode("utf-8", "backslashreplace")
        written = os.write(self._descriptor, data)
        self._torn = written != len(data)
        if self._torn:
            raise OSError(f"{self.path}: only {written} of {len(data)} bytes of a line could be written")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ends_in_the_middle_of_a_line(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
