"""Ranks under the other launchers: they meet, end well, and stop when the launcher is asked to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.jobs import launched_job
from tests.support.ranks import free_port

pytestmark = pytest.mark.launch


def torchrun(port: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]


def torchrun_elastic(port: int) -> list[str]:
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"]
    return [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:1", "--nproc-per-node=2", *rendezvous]


def accelerate(port: int) -> list[str]:
    # --cpu alone would run one process on a machine without a GPU; --multi_gpu is what starts several with torchrun.
    options = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu"]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, f"--main_process_port={port}"]


LAUNCHERS = [torchrun, torchrun_elastic, accelerate]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_meet_and_end_well(tmp_path: Path, launcher: type) -> None:
    with launched_job(tmp_path, launcher(free_port()), "--steps", "5") as job:
        statuses, output = job.end(120.0)
    assert statuses == [0], output
    assert [(tmp_path / f"done-{rank}").read_text() for rank in range(2)] == ["2", "2"]
    assert job.left_in_shared_memory() == set()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_raises_fails_the_job(tmp_path: Path, launcher: type) -> None:
    with launched_job(tmp_path, launcher(free_port()), "--raise-on", "1") as job:
        statuses, output = job.end(120.0)
    assert statuses == [1], output
    assert job.failures() == ["by 0: rank 1: ValueError: on purpose"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sigterm_to_the_launcher_stops_all(tmp_path: Path, launcher: type) -> None:
    with launched_job(tmp_path, launcher(free_port()), environment={"OMP_NUM_THREADS": "1"}) as job:
        job.wait_until_started()
        job.processes[0].terminate()
        statuses, output = job.end(60.0)
    assert statuses != [0]
    saved = {(tmp_path / f"saved-{rank}").read_text() for rank in range(2)}
    assert len(saved) == 1, output
    assert "SIGTERM" in saved.pop()
    assert job.failures() == []
