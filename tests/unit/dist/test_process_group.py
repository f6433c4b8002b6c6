"""How many threads a rank takes."""

from __future__ import annotations

from llmtrain.dist.process_group import num_threads
from llmtrain.dist.processes import ProcessId
from llmtrain.dist.rendezvous import Member


def member(rank: int, cpus: range, host: str = "a") -> Member:
    return Member(rank, host, f"{host}/boot", ProcessId(rank + 1, 1), tuple(cpus))


def test_unbound_ranks_share_all_cores_of_their_host() -> None:
    members = [member(rank, range(8)) for rank in range(3)]
    assert [num_threads(members, rank) for rank in range(3)] == [2, 2, 2]


def test_ranks_that_are_bound_to_cores_keep_them() -> None:
    members = [member(0, range(4)), member(1, range(4, 8))]
    assert [num_threads(members, rank) for rank in range(2)] == [4, 4]


def test_ranks_of_other_hosts_do_not_count() -> None:
    members = [member(0, range(8)), member(1, range(8), "b"), member(2, range(8), "b")]
    assert [num_threads(members, rank) for rank in range(3)] == [8, 4, 4]


def test_a_rank_has_a_thread_even_where_there_are_more_ranks_than_cores() -> None:
    members = [member(rank, range(2)) for rank in range(4)]
    assert num_threads(members, 3) == 1


def test_the_containers_limit_holds() -> None:
    members = [member(rank, range(64)) for rank in range(2)]
    assert num_threads(members, 0, cpu_limit=4.0) == 2
    assert num_threads(members, 0, cpu_limit=0.5) == 1


def test_members_survive_the_store() -> None:
    original = member(3, range(2))
    assert Member.from_json(original.to_json()) == original
    assert Member.this(0).process.is_alive
