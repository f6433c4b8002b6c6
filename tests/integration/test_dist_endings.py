"""How a job of several ranks ends: always, soon, with one reason and the right status, and with nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.jobs import Job, deepspeed_job, launcher_of, plain_job

ENDS_WITHIN_SECONDS = 30.0


def assert_failed(job: Job, reason: str, recorded_by: int, spoken_by_llmtrain: str) -> list[int]:
    """The job ends in time, says and records its reason once, and leaves nothing; its statuses."""
    statuses, output = job.end(ENDS_WITHIN_SECONDS)
    assert len(job.failures()) == 1
    assert job.failures()[0].startswith(f"by {recorded_by}: ")
    assert reason in job.failures()[0]
    assert output.count(spoken_by_llmtrain) == 1, output
    assert "Traceback" not in output
    assert job.left_in_shared_memory() == set()
    assert not list(job.folder.glob("saved-*"))
    assert all(status != 0 for status in statuses)
    return statuses


def assert_interrupted(job: Job, reason: str) -> list[int]:
    """The ranks agree on the stop, save, and end; the statuses of what the test started."""
    statuses, output = job.end(ENDS_WITHIN_SECONDS)
    saved = {path.name: path.read_text() for path in job.folder.glob("saved-*")}
    assert sorted(saved) == [f"saved-{rank}" for rank in range(job.world_size)], output
    assert len(set(saved.values())) == 1, "one step and one reason on all ranks"
    assert reason in saved["saved-0"]
    assert job.failures() == []
    assert "llmtrain:" not in output
    assert job.left_in_shared_memory() == set()
    return statuses


def test_a_rank_that_raises_ends_the_job_with_its_reason(tmp_path: Path) -> None:
    with plain_job(tmp_path, "--raise-on", "1") as job:
        job.wait_until_started()
        statuses = assert_failed(job, "rank 1: ValueError: on purpose", 0, "ValueError: on purpose")
        assert statuses == [1, 1]


def test_the_death_of_rank_0_under_the_deepspeed_launcher_is_recorded_by_rank_1(tmp_path: Path) -> None:
    with deepspeed_job(tmp_path) as job:
        job.wait_until_started()
        os.kill(job.rank(0).pid, signal.SIGKILL)
        # The launcher sends SIGTERM to rank 1 for that: no interruption.
        assert_failed(job, "rank 0 died", 1, "llmtrain: rank 0 died")


def test_the_loss_of_the_deepspeed_command_is_a_stop_request(tmp_path: Path) -> None:
    with deepspeed_job(tmp_path) as job:
        job.wait_until_started()
        job.processes[0].terminate()
        statuses = assert_interrupted(job, "the command deepspeed")
        assert statuses == [-signal.SIGTERM]


def test_signals_that_follow_the_first_sibling_that_has_ended_change_nothing(tmp_path: Path) -> None:
    # SIGTERM to one rank; rank 1 needs longer to save, so that rank 0 waits in the last barrier meanwhile.
    with plain_job(tmp_path, "--save-seconds", "1") as job:
        job.wait_until_started()
        os.kill(job.rank(1).pid, signal.SIGTERM)
        time.sleep(1.7)
        os.kill(job.rank(0).pid, signal.SIGTERM)
        assert assert_interrupted(job, "SIGTERM (rank 1)") == [75, 75]


@pytest.mark.faults
@pytest.mark.parametrize("launcher", [plain_job, deepspeed_job])
@pytest.mark.parametrize(("victim", "witness"), [(0, 1), (1, 0), (2, 0)])
def test_a_killed_rank_ends_the_job(tmp_path: Path, launcher: type, victim: int, witness: int) -> None:
    with launcher(tmp_path, world_size=3) as job:
        job.wait_until_started()
        os.kill(job.rank(victim).pid, signal.SIGKILL)
        statuses = assert_failed(job, f"rank {victim} died", witness, f"llmtrain: rank {victim} died")
        if launcher is plain_job:
            assert [status for rank, status in enumerate(statuses) if rank != victim] == [1, 1]


@pytest.mark.faults
def test_a_rank_that_says_failed_is_waited_for(tmp_path: Path) -> None:
    with plain_job(tmp_path, "--fetch-fails-on", "1") as job:
        job.wait_until_started()
        assert assert_failed(job, "rank 1: ValueError: no data", 0, "ValueError: no data") == [1, 1]


@pytest.mark.faults
def test_two_ranks_killed_at_once_are_recorded_by_the_third(tmp_path: Path) -> None:
    with plain_job(tmp_path, world_size=3) as job:
        job.wait_until_started()
        os.kill(job.rank(0).pid, signal.SIGKILL)
        os.kill(job.rank(1).pid, signal.SIGKILL)
        # Which of the two is seen first is chance.
        assert_failed(job, " died: process ", 2, "llmtrain: rank ")


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_under_the_deepspeed_launcher(tmp_path: Path, rank: int) -> None:
    with deepspeed_job(tmp_path, "--raise-on", str(rank)) as job:
        job.wait_until_started()
        statuses = assert_failed(job, f"rank {rank}: ValueError: on purpose", 0, "ValueError: on purpose")
        assert statuses == [1]


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_one_rank_stops_all(tmp_path: Path, rank: int, number: signal.Signals) -> None:
    with deepspeed_job(tmp_path, "--save-seconds", "1") as job:
        job.wait_until_started()
        os.kill(job.rank(rank).pid, number)
        # The launcher passes on the status of the rank that ends first, and signals the others.
        assert assert_interrupted(job, f"{number.name} (rank {rank})") == [75]


@pytest.mark.faults
def test_sigterm_to_deepspeeds_launcher_stops_all(tmp_path: Path) -> None:
    with deepspeed_job(tmp_path) as job:
        job.wait_until_started()
        os.kill(launcher_of(job).pid, signal.SIGTERM)
        assert assert_interrupted(job, "SIGTERM") == [1]


@pytest.mark.faults
def test_a_killed_launcher_is_a_stop_request(tmp_path: Path) -> None:
    with deepspeed_job(tmp_path) as job:
        job.wait_until_started()
        os.kill(launcher_of(job).pid, signal.SIGKILL)
        assert_interrupted(job, "DeepSpeed's launcher")


@pytest.mark.faults
def test_a_late_second_signal_ends_the_job_at_once(tmp_path: Path) -> None:
    with plain_job(tmp_path, "--save-seconds", "60") as job:
        job.wait_until_started()
        os.kill(job.rank(1).pid, signal.SIGTERM)
        time.sleep(5.5)
        os.kill(job.rank(1).pid, signal.SIGTERM)
        statuses = assert_failed(job, "rank 1: a further SIGTERM", 0, "rank 1: a further SIGTERM")
        assert statuses == [1, 1]


@pytest.mark.faults
def test_a_stopped_rank_is_not_taken_for_dead(tmp_path: Path) -> None:
    with plain_job(tmp_path, "--steps", "300") as job:
        job.wait_until_started()
        os.kill(job.rank(1).pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(job.rank(1).pid, signal.SIGCONT)
        statuses, output = job.end(60.0)
        assert statuses == [0, 0], output
        assert job.failures() == []
