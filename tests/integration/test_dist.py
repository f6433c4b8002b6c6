"""`Dist` on real ranks: collectives and the agreement, and how ranks meet or fail to."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from llmtrain.dist.agreement import Agreed
from llmtrain.dist.runtime import Dist
from tests.support.jobs import deepspeed_job, launched_job, plain_job, wait_for
from tests.support.ranks import RankPool, free_port

START_SECONDS = 120.0
"""For ranks that are still to import torch, on a machine that does other things."""


def _collectives() -> dict[str, object]:
    dist = Dist.adopt()
    results: dict[str, object] = {
        "facts": (dist.rank, dist.world_size, dist.is_main, str(dist.device)),
        "sum": dist.all_reduce_sum(torch.tensor([1.0, dist.rank])).tolist(),
        "max": dist.all_reduce_max(torch.tensor([-dist.rank, dist.rank])).tolist(),
        "gathered": dist.gather_objects({"rank": dist.rank}),
        "all_gathered": dist.all_gather_objects(dist.rank),
        "broadcast": dist.broadcast_object("from 0" if dist.is_main else None),
        "no_reason": dist.stop_reason(),
    }
    if dist.rank == dist.world_size - 1:
        dist.stop.request("time limit")
    results["reason"] = dist.stop_reason()
    dist.close()
    return results


def _agreements() -> list[Agreed]:
    dist = Dist.adopt()
    step, evaluation = dist.agreement(), dist.agreement()
    first, last = dist.is_main, dist.rank == dist.world_size - 1
    step.post(10 + dist.rank, first, stop_requested=False, failed=last)
    # A second one on the same group, posted and awaited while the first is under way.
    evaluation.post(2**40, False, stop_requested=last)
    assert step.is_posted
    results = [evaluation.wait(), step.wait()]
    assert not step.is_posted
    step.post(0, False)
    return [*results, step.wait()]


@pytest.mark.parametrize("world_size", [1, 2])
def test_collectives(world_size: int, one_rank: RankPool, two_ranks: RankPool) -> None:
    results = (one_rank if world_size == 1 else two_ranks).run(_collectives)
    for rank, result in enumerate(results):
        assert result["facts"] == (rank, world_size, rank == 0, "cpu")
        assert result["sum"] == [float(world_size), float(sum(range(world_size)))]
        assert result["max"] == [0, world_size - 1]
        assert result["gathered"] == ([{"rank": other} for other in range(world_size)] if rank == 0 else [])
        assert result["all_gathered"] == list(range(world_size))
        assert result["broadcast"] == "from 0"
        assert result["no_reason"] is None
        assert result["reason"] == f"time limit (rank {world_size - 1})"


@pytest.mark.parametrize("world_size", [1, 2])
def test_agreements_sum_counts_and_join_flags(world_size: int, one_rank: RankPool, two_ranks: RankPool) -> None:
    results = (one_rank if world_size == 1 else two_ranks).run(_agreements)
    tokens = sum(10 + rank for rank in range(world_size))
    expected = [
        Agreed(world_size * 2**40, any_sequence=False, stop_requested=True, any_failed=False),
        Agreed(tokens, any_sequence=True, stop_requested=False, any_failed=True),
        Agreed(0, any_sequence=False, stop_requested=False, any_failed=False),
    ]
    assert results == [expected] * world_size


def test_two_jobs_at_one_port_are_told_apart(tmp_path: Path) -> None:
    port = free_port()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with plain_job(first, port=port) as job:
        job.wait_until_started()
        with plain_job(second, port=port) as other:
            statuses, output = other.end(START_SECONDS)
            assert statuses == [2, 2]
            assert f"MASTER_PORT={port} (environment) is in use on this host; give another to the launcher" in output
            assert f"MASTER_PORT={port} (environment) has a rank 1 already" in output
        # The first has not noticed: it trains until it is stopped.
        assert not list(first.glob("saved-*"))
        job.processes[1].send_signal(signal.SIGTERM)
        assert job.end() == ([75, 75], "")
        assert sorted(path.name for path in first.glob("saved-*")) == ["saved-0", "saved-1"]
        assert job.left_in_shared_memory() == set()


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    with plain_job(tmp_path, "--timeout", "2", world_size=3, only=[0, 2]) as job:
        statuses, output = job.end(START_SECONDS)
    assert statuses == [1, 1]
    assert output.count("rank 1 did not come within 2 s") == 1, output


def test_a_single_rank_needs_no_port(tmp_path: Path) -> None:
    python = [sys.executable]
    clean = {name: "" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    with launched_job(tmp_path, python, "--steps", "3", world_size=1, environment=clean) as job:
        assert job.end(START_SECONDS) == ([0], "")
    assert (tmp_path / "done-0").read_text() == "1"


@pytest.mark.faults
def test_a_foreign_service_at_the_port_is_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with plain_job(tmp_path, "--timeout", "8", port=port) as job:
            statuses, output = job.end(START_SECONDS)
    assert statuses == [2, 2]
    assert f"MASTER_PORT={port} (environment) is in use" in output
    assert "MASTER_ADDR='127.0.0.1' (environment) was not reached by rank 1" in output


@pytest.mark.faults
def test_a_stop_before_all_ranks_have_started_is_an_interruption(tmp_path: Path) -> None:
    with plain_job(tmp_path, world_size=3, only=[0, 1]) as job:
        wait_for(lambda: len(list(tmp_path.glob("meeting-*"))) == 2, START_SECONDS, job.kill)
        job.processes[1].send_signal(signal.SIGTERM)
        statuses, output = job.end(START_SECONDS)
    assert statuses == [75, 75]
    assert "SIGTERM before the first step" in output


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_before_the_start_under_deepspeeds_launcher_is_a_failure(tmp_path: Path, victim: int) -> None:
    with deepspeed_job(tmp_path, "--die-early", str(victim)) as job:
        statuses, output = job.end(START_SECONDS)
    assert statuses[0] not in (0, 75)
    expected = "rank 1 ended before all" if victim == 1 else "a rank of this host ended before all"
    assert f"{expected} ranks had started" in output


@pytest.mark.faults
@pytest.mark.parametrize(("victim", "seconds"), [(0, 5.0), (1, 30.0)])
def test_a_lost_host_ends_the_job(tmp_path: Path, victim: int, seconds: float) -> None:
    # A namespace of process ids per rank: to each other they are on different hosts.
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("unshare is not allowed here")
    with plain_job(tmp_path, prefix=prefix) as job:
        wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2, 60.0, job.kill)
        time.sleep(2.0)
        job.processes[victim].kill()
        killed = time.monotonic()
        survivor = job.processes[1 - victim]
        output = survivor.communicate(timeout=60.0)[0]
    assert survivor.returncode == 1
    assert time.monotonic() - killed < seconds
    assert len(job.failures()) == 1
    assert job.failures()[0].startswith(f"by {1 - victim}: rank {victim} died")
    assert output.count("llmtrain:") == 1, output
