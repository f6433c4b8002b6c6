"""`scripts/train.py` under real launchers, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.jobs import shared_memory
from tests.support.ranks import ROOT, free_port


class TrainJob:
    """A run that was started; `marker` is in the command line of each of its processes."""

    def __init__(self, command: Sequence[str], marker: str) -> None:
        self.marker = marker
        self._shared_memory_before = shared_memory()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ranks(self) -> list[int]:
        """Process ids of the ranks, in their order."""
        found = {}
        for pid in self.processes():
            words = _command_line(pid)
            local = [word.partition("=")[2] for word in words if word.startswith("--local_rank=")]
            if any(word.endswith("scripts/train.py") for word in words[:3]) and local:
                found[int(local[0])] = pid
        return [found[rank] for rank in sorted(found)]

    def processes(self) -> list[int]:
        """Everything that runs for the job, data workers and trackers' services with the run in their arguments too."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if any(self.marker in word for word in _command_line(pid))]

    def wait_for_line(self, text: str, path: Path, timeout_seconds: float = 120.0) -> None:
        """Until `path` holds `text`."""
        deadline = time.monotonic() + timeout_seconds
        while not (path.exists() and text in path.read_text()):
            assert self.process.poll() is None, (
                f"ended before {text!r} was in {path.name}:\n{self.process.communicate()[0]}"
            )
            assert time.monotonic() < deadline, f"no {text!r} in {path.name}"
            time.sleep(0.1)

    def end(self, timeout_seconds: float) -> tuple[int, str]:
        """Wait until the job has ended; the status and all that was said."""
        output = self.process.communicate(timeout=timeout_seconds)[0]
        return self.process.returncode, output

    def assert_nothing_is_left(self, patience_seconds: float = 10.0) -> None:
        """Neither processes nor shared memory."""
        deadline = time.monotonic() + patience_seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [_command_line(pid) for pid in self.processes()] == []
        assert shared_memory() - self._shared_memory_before == set()


@contextlib.contextmanager
def train_job(
    config: Path, *overrides: str, launcher: Sequence[str] | None = None, world_size: int = 2
) -> Iterator[TrainJob]:
    """Start a run; whatever still runs at the end of the block is killed."""
    deepspeed = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(world_size)]
    start = launcher or [*deepspeed, "--master_port", str(free_port())]
    job = TrainJob([*start, "scripts/train.py", "--config", str(config), *overrides], marker=str(config.parent))
    try:
        yield job
    finally:
        for pid in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.communicate()


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
