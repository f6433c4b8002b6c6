"""What is a failure, who records it, and when a silent host counts as lost: on a real store, without waiting."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

from llmtrain.dist.channel import _SILENT_LOOKS, FailureChannel
from llmtrain.dist.failure import Failure, NullChannel, failure_of, is_lost_connection
from llmtrain.dist.processes import ProcessId
from llmtrain.dist.rendezvous import Member
from llmtrain.errors import ConfigError, DataError, Problem, RankFailedError

DEAD = ProcessId(2**22 + 1, 1)
"""No process has an id above the system's limit of 2**22."""


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=5))


@pytest.fixture
def living() -> Iterator[ProcessId]:
    """Some other process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = ProcessId.of(child.pid)
    assert process is not None
    yield process
    child.kill()
    child.wait()


def member(rank: int, process: ProcessId, host: str = "a") -> Member:
    return Member(rank, host, f"{host}/boot", process, (0,))


def channel(store: TCPStore, members: list[Member], rank: int, recorded: list[str] | None = None) -> FailureChannel:
    return FailureChannel(store, members, rank, ([] if recorded is None else recorded).append)


def test_the_reason_names_the_rank_and_the_cause() -> None:
    assert failure_of(3, ValueError("bad")).reason == "rank 3: ValueError: bad"
    assert failure_of(3, DataError("a.jsonl:7 is no JSON")).reason == "rank 3: a.jsonl:7 is no JSON"
    assert failure_of(3, KeyboardInterrupt()).reason == "rank 3: KeyboardInterrupt"
    assert failure_of(1, RankFailedError("rank 1 did not come")).reason == "rank 1 did not come"


def test_the_exit_status_is_the_errors() -> None:
    assert failure_of(0, ConfigError(Problem("MASTER_PORT", "is in use"))).exit_status == 2
    assert failure_of(0, ValueError()).exit_status == 1
    failure = failure_of(0, ConfigError(Problem("a", "b")))
    assert Failure.from_json(failure.to_json()) == failure


def test_errors_of_collectives_are_mostly_consequences() -> None:
    gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29077"
    assert is_lost_connection(RuntimeError(gloo))
    assert is_lost_connection(DistNetworkError("Broken pipe"))
    assert not is_lost_connection(RuntimeError("shape mismatch"))
    assert not is_lost_connection(ValueError("gloo"))


def test_alone_the_first_failure_is_recorded_once() -> None:
    recorded: list[str] = []
    alone = NullChannel(recorded.append)
    first = alone.fail(failure_of(0, ValueError("one")))
    assert alone.fail(failure_of(0, ValueError("two"))) == first
    assert recorded == ["rank 0: ValueError: one"]


def test_the_first_failure_that_is_published_is_the_jobs(store: TCPStore, living: ProcessId) -> None:
    members = [member(0, ProcessId.current()), member(1, living)]
    recorded: list[str] = []
    one = channel(store, members, 1, recorded).fail(failure_of(1, ValueError("first")))
    other = channel(store, members, 0, recorded)
    other.finish()  # its watch does not run: nothing to wait for
    two = other.fail(failure_of(0, ValueError("second")))
    assert one == two == Failure(1, "rank 1: ValueError: first")
    assert recorded == [], "rank 1 is not the lowest, and rank 0's watch records the failure of another"


def test_a_failure_that_cannot_be_recorded_still_ends_the_job(
    store: TCPStore, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(reason: str) -> None:
        raise OSError("disk full")

    members = [member(0, ProcessId.current()), member(1, DEAD)]
    failure = FailureChannel(store, members, 0, broken).fail(failure_of(0, ValueError("first")))
    assert failure.rank == 0
    assert "could not be recorded: disk full" in capsys.readouterr().err


def test_a_failure_that_takes_for_ever_to_record_still_ends_the_job(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmtrain.dist.failure._RECORD_SECONDS", 0.1)
    never = threading.Event()
    members = [member(0, ProcessId.current()), member(1, DEAD)]
    stuck = FailureChannel(store, members, 0, lambda reason: never.wait(60) and None)
    assert stuck.fail(failure_of(0, ValueError("first"))).rank == 0
    never.set()


def test_a_dead_sibling_is_found_and_published(store: TCPStore, living: ProcessId) -> None:
    members = [member(0, ProcessId.current()), member(1, living), member(2, DEAD)]
    failure = channel(store, members, 0)._find_death()
    assert failure is not None
    assert (failure.rank, failure.by_itself) == (2, False)
    assert failure.reason.startswith(f"rank 2 died: process {DEAD.pid} on a is gone")
    # Another witness names the same rank, whatever it sees.
    other = channel(store, [member(0, DEAD, "b"), member(1, DEAD), member(2, ProcessId.current())], 2)
    assert other._find_death() == failure


def test_a_sibling_that_had_done_everything_has_not_died(store: TCPStore) -> None:
    members = [member(0, ProcessId.current()), member(1, DEAD)]
    watcher = channel(store, members, 0)
    store.set("done/1", "1")
    assert watcher._find_death() is None


def test_a_host_is_lost_once_all_its_ranks_are_silent(store: TCPStore) -> None:
    hosts = [member(1, DEAD, "b"), member(2, DEAD, "b"), member(3, DEAD, "c")]
    watcher = channel(store, [member(0, ProcessId.current()), *hosts], 0)
    for look in range(_SILENT_LOOKS + 2):
        assert watcher._find_death() is None, "ranks of other hosts are judged by their beats alone"
        store.set("beat/2", str(look))  # rank 1 is busy, its neighbour beats
        store.set("beat/3", str(look))
        watcher._listen()
    store.set("beat/1", "7")
    for _ in range(_SILENT_LOOKS + 2):
        watcher._listen()
    failure = watcher._find_death()
    assert failure is not None
    assert failure.reason.startswith("rank 1 died: nothing was heard from b for 20 s")


@pytest.mark.parametrize(
    ("rank", "dead", "expected"),
    [
        (0, {1}, True),
        (1, {2}, False),  # rank 0 lives
        (1, {0}, True),
        (2, {0}, False),  # rank 1 lives
        (2, {0, 1}, True),
        (3, {0}, True),  # the lowest of its host, which cannot ask the other host any more
    ],
)
def test_the_lowest_survivor_records(store: TCPStore, rank: int, dead: set[int], expected: bool) -> None:
    members = [member(number, ProcessId.current(), "a" if number < 3 else "b") for number in range(5)]
    assert channel(store, members, rank)._is_lowest_survivor(dead) is expected


def test_without_a_store_a_rank_still_has_its_failure() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    recorded: list[str] = []
    members = [member(0, DEAD), member(1, ProcessId.current())]
    failure = channel(store, members, 1, recorded).fail(failure_of(1, ValueError("late")))
    assert failure.reason == "rank 1: ValueError: late"
    assert recorded == [failure.reason]
