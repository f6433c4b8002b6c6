"""Jobs for tests: real ranks under a real launcher, to be killed, and what is left of them afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from llmtrain.dist.processes import ProcessId
from tests.support.ranks import ROOT, free_port, rank_environment

WORKER = ROOT / "tests" / "support" / "dist_worker.py"
SHARED_MEMORY = Path("/dev/shm")


class Job:
    """Worker ranks, and the processes that the test started for them (a launcher, or the ranks themselves)."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.folder = folder
        self.world_size = world_size
        self.processes: list[subprocess.Popen[str]] = []
        self._shared_memory_before = shared_memory()
        self._ranks: dict[int, ProcessId] = {}

    def rank(self, rank: int) -> ProcessId:
        """The process of a rank, once `wait_until_started` has returned."""
        return self._ranks[rank]

    def wait_until_started(self, timeout_seconds: float = 90.0) -> None:
        """Until every rank has joined the process group."""
        paths = {rank: self.folder / f"pid-{rank}" for rank in range(self.world_size)}
        wait_for(lambda: all(path.exists() and path.read_text() for path in paths.values()), timeout_seconds, self.kill)
        for rank, path in paths.items():
            process = ProcessId.of(int(path.read_text()))
            assert process is not None, f"rank {rank} has ended already"
            self._ranks[rank] = process

    def end(self, timeout_seconds: float = 30.0) -> tuple[list[int], str]:
        """Wait until all have ended, the ranks too; the statuses of those started here, and all that was said."""
        deadline = time.monotonic() + timeout_seconds
        output = ""
        for process in self.processes:
            try:
                output += process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"not ended after {timeout_seconds:g} s:\n{process.communicate()[0]}") from None
        wait_for(lambda: not any(p.is_alive for p in self._ranks.values()), deadline - time.monotonic(), self.kill)
        return [process.returncode for process in self.processes], output

    def failures(self) -> list[str]:
        """One line for each time that a rank was told to record the failure: `by RANK: reason`."""
        path = self.folder / "status"
        return path.read_text().splitlines() if path.exists() else []

    def left_in_shared_memory(self) -> set[str]:
        """What is in /dev/shm now and was not there before the job."""
        return shared_memory() - self._shared_memory_before

    def kill(self) -> None:
        """End whatever still runs."""
        for process in self._ranks.values():
            if process.is_alive:
                os.kill(process.pid, signal.SIGKILL)
        for started in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


@contextlib.contextmanager
def deepspeed_job(folder: Path, *arguments: str, world_size: int = 2) -> Iterator[Job]:
    """Workers under the command `deepspeed`; its process is `job.processes[0]`."""
    command = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(world_size)]
    command += ["--master_port", str(free_port())]
    with launched_job(folder, command, *arguments, world_size=world_size, environment={"OMP_NUM_THREADS": "1"}) as job:
        yield job


@contextlib.contextmanager
def plain_job(
    folder: Path,
    *arguments: str,
    world_size: int = 2,
    port: int = 0,
    only: Sequence[int] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Job]:
    """Workers started one by one, each by `prefix`, without a launcher; rank r (of `only`) is `job.processes[r]`."""
    port = port or free_port()
    job = Job(folder, world_size)
    for rank in range(world_size) if only is None else only:
        environment = {**rank_environment(rank, world_size, port), "PYTHONPATH": str(ROOT)}
        job.processes.append(_start([*prefix, sys.executable, str(WORKER), str(folder), *arguments], environment))
    yield from _serve(job)


@contextlib.contextmanager
def launched_job(
    folder: Path,
    command: Sequence[str],
    *arguments: str,
    world_size: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """Workers under any other launcher."""
    job = Job(folder, world_size)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    job.processes.append(_start([*command, str(WORKER), str(folder), *arguments], variables))
    yield from _serve(job)


def launcher_of(job: Job) -> ProcessId:
    """DeepSpeed's launcher (`deepspeed.launcher.launch`) of a `deepspeed_job`."""
    launcher = job.rank(0).parent
    assert launcher is not None
    return launcher


def wait_for(condition: Callable[[], bool], timeout_seconds: float, on_timeout: Callable[[], None]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            on_timeout()
            raise AssertionError(f"still waiting after {timeout_seconds:g} s")
        time.sleep(0.05)


def shared_memory() -> set[str]:
    """The names in /dev/shm that DeepSpeed or torch make."""
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    return {name for name in names if name.startswith(("deepspeed", "torch"))}


def _serve(job: Job) -> Iterator[Job]:
    try:
        yield job
    finally:
        job.kill()
        for process in job.processes:
            process.communicate()


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
