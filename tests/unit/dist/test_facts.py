"""Rank facts from each launcher's environment, and what is said about bad ones."""

from __future__ import annotations

import pytest

from llmtrain.dist.facts import RankFacts, expand_slurm_counts, first_slurm_host, is_loopback, rank_facts
from llmtrain.errors import ConfigError

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
}
DEEPSPEED = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29501",
}
SLURM = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[03-05,11]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-1",
}


def problems(environment: dict[str, str], argv_local_rank: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        rank_facts(argv_local_rank, environment)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_no_launcher_is_one_rank_that_needs_no_port() -> None:
    assert rank_facts(environment={}) == RankFacts(0, 0, 1, 1, "127.0.0.1", 0, "single")


def test_torchrun() -> None:
    facts = rank_facts(
        environment={**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert facts == RankFacts(3, 1, 4, 2, "node7", 29500, "torchrun", launcher_hosts_store=True, attempt="2")
    assert not facts.is_one_host


def test_deepspeeds_launcher_gives_the_local_rank_twice() -> None:
    facts = rank_facts(1, DEEPSPEED)
    assert facts == RankFacts(1, 1, 2, 2, "127.0.0.1", 29501, "deepspeed")
    assert facts.is_one_host


def test_the_local_rank_may_come_from_the_command_line_alone() -> None:
    environment = {key: value for key, value in DEEPSPEED.items() if key != "LOCAL_RANK"}
    assert rank_facts(1, environment).local_rank == 1


def test_slurm_tasks_meet_on_the_first_host_at_a_port_of_the_step() -> None:
    facts = rank_facts(environment=SLURM)
    assert facts == RankFacts(5, 1, 7, 2, "gpu03", 20_000 + 7 * 123_456 % 10_000, "slurm")
    assert rank_facts(environment={**SLURM, "SLURM_STEP_ID": "1"}).master_port == facts.master_port + 1
    given = rank_facts(environment={**SLURM, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert (given.master_addr, given.master_port) == ("10.0.0.1", 29500)


def test_a_slurm_batch_script_is_no_task_of_srun() -> None:
    assert rank_facts(environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}).launcher == "single"


def test_torchrun_inside_srun_is_torchrun() -> None:
    assert rank_facts(environment={**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_open_mpi_on_one_host_needs_no_address() -> None:
    facts = rank_facts(environment=OPEN_MPI)
    assert (facts.rank, facts.local_rank, facts.world_size, facts.launcher) == (1, 1, 2, "mpi")
    assert facts.master_addr == "127.0.0.1"
    other_job = rank_facts(environment={**OPEN_MPI, "PMIX_NAMESPACE": "prterun-a-2"})
    assert other_job.master_port != facts.master_port


def test_open_mpi_on_several_hosts_needs_an_address() -> None:
    assert "MASTER_ADDR" in problems({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})


def test_mpich() -> None:
    environment = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    facts = rank_facts(environment=environment)
    assert facts == RankFacts(1, 1, 2, 2, "127.0.0.1", facts.master_port, "mpi")
    assert 20_000 <= facts.master_port < 30_000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"RANK": "four"}, "RANK='four' (environment) is not a whole number"),
        ({"RANK": "4"}, "RANK=4 (environment) must be below the world size 4"),
        ({"RANK": "-1"}, "RANK='-1' (environment) is not a whole number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE (environment) is not set"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 (environment) must be at least 1"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 (environment) must be below the number of ranks on this host, 2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5 (environment) ranks on this host must be between 1 and the"),
        ({"LOCAL_WORLD_SIZE": ""}, "set it to the number of ranks on this host"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 (environment) is not a port"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR (environment) is not set"),
    ],
)
def test_bad_values_are_named(change: dict[str, str], expected: str) -> None:
    assert expected in problems({**TORCHRUN, **change})


def test_all_problems_are_reported_at_once() -> None:
    text = problems({**TORCHRUN, "RANK": "x", "MASTER_PORT": "y", "MASTER_ADDR": ""})
    assert text.startswith("3 problems:")


def test_a_world_without_a_rank_is_no_single_run() -> None:
    text = problems({"WORLD_SIZE": "4"})
    assert "RANK (environment) is not set" in text


def test_the_command_line_may_not_contradict_the_environment() -> None:
    assert "contradicts --local_rank=0" in problems(DEEPSPEED, argv_local_rank=0)


@pytest.mark.parametrize(
    ("text", "expected"), [("2(x3),1", [2, 2, 2, 1]), ("8", [8]), ("4,2(x2)", [4, 2, 2]), ("", [])]
)
def test_slurm_counts(text: str, expected: list[int]) -> None:
    assert expand_slurm_counts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("node[003-007,9],x", "node003"), ("a1,b2", "a1"), ("n[1-2]-ib", "n1-ib"), ("single", "single"), ("n[7]", "n7")],
)
def test_first_slurm_host(text: str, expected: str) -> None:
    assert first_slurm_host(text) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("node", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
