"""What the system knows about a process, and how this one is left.

A process is known by its id and its start time, so that a later process of the same id is not mistaken for it. All of
it is read from /proc; where there is none (not Linux), a process is alive when a signal could be sent to it, and
nothing is known about its parents.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """One process; `start_time` is in clock ticks since the host's start, 0 where it is unknown."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The living process with this id, None where there is none."""
        status = _read_status(pid)
        if status is None:
            return cls(pid, 0) if not _PROC.is_dir() and _can_be_signalled(pid) else None
        return None if status.has_ended else cls(pid, status.start_time)

    @classmethod
    def current(cls) -> ProcessId:
        """This process."""
        this = cls.of(os.getpid())
        assert this is not None
        return this

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs. One that has ended but was not yet waited for by its parent does not."""
        return ProcessId.of(self.pid) == self

    @property
    def parent(self) -> ProcessId | None:
        """The process that started this one, or took it over."""
        status = _read_status(self.pid)
        return None if status is None else ProcessId.of(status.parent_pid)

    @property
    def command_line(self) -> list[str]:
        """The arguments it was started with; empty where they cannot be read."""
        with contextlib.suppress(OSError):
            return _PROC.joinpath(str(self.pid), "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        return []

    @property
    def children(self) -> list[ProcessId]:
        """The living processes whose parent this is."""
        pids = [int(entry.name) for entry in _PROC.glob("[0-9]*")]
        statuses = {pid: status for pid in pids if (status := _read_status(pid)) is not None}
        return [
            ProcessId(pid, status.start_time)
            for pid, status in statuses.items()
            if status.parent_pid == self.pid and not status.has_ended
        ]


def host_id() -> str:
    """Equal for two processes exactly where they see each other's process ids: same boot, same namespace of ids."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def say(text: str) -> None:
    """The last word of a process that ends here and now, where no exception can carry it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"llmtrain: {text}\n")
        sys.stderr.flush()


def leave(exit_status: int) -> NoReturn:
    """End this process at once with everything written out.

    No destructor runs: those of process groups wait for ranks that may be dead, and can end the process by a signal.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a closed pipe must not keep the process here
            stream.flush()
    os._exit(exit_status)


@dataclass(frozen=True)
class _Status:
    state: str
    parent_pid: int
    start_time: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def _read_status(pid: int) -> _Status | None:
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    # proc(5): "pid (comm) state ppid ..."; comm may hold anything, so count from its last bracket. starttime is field
    # 22.
    fields = text.rpartition(")")[2].split()
    return _Status(fields[0], int(fields[1]), int(fields[19]))


def _can_be_signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
