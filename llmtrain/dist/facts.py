"""Who this rank is: read from the environment of whichever launcher started it.

    deepspeed    RANK, WORLD_SIZE, …, LOCAL_SIZE           `deepspeed`, `deepspeed.launcher.launch`
    torchrun     RANK, WORLD_SIZE, …, LOCAL_WORLD_SIZE     `torchrun`, `accelerate launch`, ranks started by hand
    slurm        SLURM_PROCID, SLURM_STEP_NUM_TASKS, …     `srun`
    mpi          OMPI_COMM_WORLD_RANK, …, or PMI_RANK, …   `mpirun` (Open MPI; MPICH, Intel MPI)
    single       none of them: one rank that needs no meeting point

The first of these that is there counts: `torchrun` inside `srun` is torchrun. All problems are reported at once.
"""

from __future__ import annotations

import ipaddress
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmtrain.errors import ConfigError, Problem

LauncherName = Literal["deepspeed", "torchrun", "slurm", "mpi", "single"]
LOOPBACK = "127.0.0.1"
_FIRST_DERIVED_PORT = 20_000
_NUM_DERIVED_PORTS = 10_000
# Rank, rank on its host, ranks, ranks on its host.
_OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MPICH = ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True)
class RankFacts:
    """One rank's place in the job. `local_*`: on its host; `master_*`: where the ranks meet (port 0: nowhere)."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    launcher: LauncherName
    launcher_hosts_store: bool = False
    """torchrun listens at the master's port itself; elsewhere rank 0 does."""
    attempt: str = "0"
    """Differs between the restarts of one torchrun job, which meet at the same port."""

    @property
    def is_one_host(self) -> bool:
        """All ranks are on this host."""
        return self.local_world_size == self.world_size


def rank_facts(argv_local_rank: int | None = None, environment: Mapping[str, str] | None = None) -> RankFacts:
    """This rank's facts. `argv_local_rank` is the `--local_rank` that DeepSpeed's launcher appends.

    Raises ConfigError where the environment contradicts itself or lacks a part.
    """
    reader = _Reader(os.environ if environment is None else environment)
    if reader.has("RANK"):
        facts = _from_torch_variables(reader, argv_local_rank)
    elif reader.has("SLURM_STEP_ID") and reader.has("SLURM_PROCID"):
        facts = _from_slurm(reader)
    elif reader.has("OMPI_COMM_WORLD_RANK"):
        facts = _from_mpi(reader, _OPEN_MPI)
    elif reader.has("PMI_RANK"):
        facts = _from_mpi(reader, _MPICH)
    elif reader.has("WORLD_SIZE"):
        facts = _from_torch_variables(reader, argv_local_rank)
    else:
        return RankFacts(0, 0, 1, 1, LOOPBACK, 0, "single")
    _check(facts, argv_local_rank, reader)
    if reader.problems:
        raise ConfigError(reader.problems)
    return facts


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []

    def has(self, name: str) -> bool:
        return bool(self._environment.get(name))

    def text(self, name: str, default: str | None = None, remedy: str = "") -> str:
        value = self._environment.get(name) or default
        if value is None:
            self.problem(name, "is not set", remedy or "start the ranks with deepspeed, torchrun, srun or mpirun")
            return ""
        return value

    def integer(self, name: str, default: int | None = None, remedy: str = "") -> int:
        text = self.text(name, None if default is None else str(default), remedy)
        if re.fullmatch(r"\s*\d+\s*", text):
            return int(text)
        if text:
            self.problem(name, "is not a whole number", value=text)
        return 0

    def problem(self, name: str, rule: str, remedy: str = "", value: object = None) -> None:
        shown = {} if value is None else {"value": value}
        self.problems.append(Problem(name, rule, remedy, origin="environment", **shown))


def _from_torch_variables(reader: _Reader, argv_local_rank: int | None) -> RankFacts:
    """The variables of torchrun, which DeepSpeed's launcher and accelerate set too."""
    world_size = reader.integer("WORLD_SIZE")
    alone = world_size == 1
    master_addr = reader.text("MASTER_ADDR", LOOPBACK if alone else None)
    if reader.has("LOCAL_SIZE") and reader.has("CROSS_SIZE"):
        launcher: LauncherName = "deepspeed"
        local_world_size = reader.integer("LOCAL_SIZE")
    else:
        launcher = "torchrun"
        default = world_size if alone or is_loopback(master_addr) else None
        local_world_size = reader.integer("LOCAL_WORLD_SIZE", default, "set it to the number of ranks on this host")
    local_rank_default = argv_local_rank if argv_local_rank is not None else 0 if alone else None
    return RankFacts(
        rank=reader.integer("RANK", 0 if alone else None),
        local_rank=reader.integer("LOCAL_RANK", local_rank_default, "set it to this rank's number on its host"),
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=master_addr,
        master_port=reader.integer("MASTER_PORT", 0 if alone else None),
        launcher=launcher,
        launcher_hosts_store=reader.text("TORCHELASTIC_USE_AGENT_STORE", "False") == "True",
        attempt=reader.text("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _from_slurm(reader: _Reader) -> RankFacts:
    """A task of `srun`. The ranks meet on the first host of the step, at a port derived from the job and the step."""
    node = reader.integer("SLURM_NODEID", 0)
    tasks_per_node = expand_slurm_counts(reader.text("SLURM_STEP_TASKS_PER_NODE"))
    if tasks_per_node and node >= len(tasks_per_node):
        reader.problem(
            "SLURM_NODEID", f"is beyond the {len(tasks_per_node)} hosts of SLURM_STEP_TASKS_PER_NODE", value=node
        )
        node = 0
    hosts = reader.text("SLURM_STEP_NODELIST", reader.text("SLURM_NODELIST", LOOPBACK))
    job = 7 * reader.integer("SLURM_JOB_ID", 0) + reader.integer("SLURM_STEP_ID")
    world_size = reader.integer("SLURM_STEP_NUM_TASKS", sum(tasks_per_node))
    one_host = len(tasks_per_node) <= 1
    return RankFacts(
        rank=reader.integer("SLURM_PROCID"),
        local_rank=reader.integer("SLURM_LOCALID"),
        world_size=world_size,
        local_world_size=tasks_per_node[node] if tasks_per_node else world_size,
        master_addr=reader.text("MASTER_ADDR", LOOPBACK if one_host else first_slurm_host(hosts)),
        master_port=reader.integer("MASTER_PORT", _FIRST_DERIVED_PORT + job % _NUM_DERIVED_PORTS),
        launcher="slurm",
    )


def _from_mpi(reader: _Reader, names: tuple[str, str, str, str]) -> RankFacts:
    """A process of `mpirun`. On several hosts MPI does not tell which is rank 0's: MASTER_ADDR must."""
    rank, local_rank, world_size, local_world_size = (reader.integer(name) for name in names)
    job = reader.text("PMIX_NAMESPACE", reader.text("OMPI_MCA_ess_base_jobid", "llmtrain"))
    derived_port = _FIRST_DERIVED_PORT + zlib.crc32(job.encode()) % _NUM_DERIVED_PORTS
    loopback = LOOPBACK if world_size == local_world_size else None
    return RankFacts(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=reader.text("MASTER_ADDR", loopback, "set it to the host of rank 0 (mpirun -x MASTER_ADDR=…)"),
        master_port=reader.integer("MASTER_PORT", derived_port),
        launcher="mpi",
    )


def _check(facts: RankFacts, argv_local_rank: int | None, reader: _Reader) -> None:
    """Add what does not fit together; values that are already problems are left alone."""
    if reader.problems:
        return
    if facts.world_size < 1:
        reader.problem("WORLD_SIZE", "must be at least 1", value=facts.world_size)
    elif facts.rank >= facts.world_size:
        reader.problem("RANK", f"must be below the world size {facts.world_size}", value=facts.rank)
    if not 1 <= facts.local_world_size <= max(facts.world_size, 1):
        rule = f"ranks on this host must be between 1 and the world size {facts.world_size}"
        reader.problem("LOCAL_WORLD_SIZE", rule, value=facts.local_world_size)
    elif facts.local_rank >= facts.local_world_size:
        rule = f"must be below the number of ranks on this host, {facts.local_world_size}"
        reader.problem("LOCAL_RANK", rule, value=facts.local_rank)
    if argv_local_rank is not None and argv_local_rank != facts.local_rank:
        rule = f"contradicts --local_rank={argv_local_rank} of the command line"
        reader.problem("LOCAL_RANK", rule, "remove one of them", facts.local_rank)
    if not (1 if facts.world_size > 1 else 0) <= facts.master_port <= 65_535:
        reader.problem("MASTER_PORT", "is not a port (1 to 65535)", value=facts.master_port)


def is_loopback(host: str) -> bool:
    """Whether the name or address means this host whatever the network is."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def expand_slurm_counts(text: str) -> list[int]:
    """SLURM's counts per host: "2(x3),1" is [2, 2, 2, 1]. Source: sbatch(1), SLURM_TASKS_PER_NODE."""
    counts: list[int] = []
    for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(repeats or 1)
    return counts


def first_slurm_host(hosts: str) -> str:
    """The first name of SLURM's host list: "node[003-007,9],x" is node003."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", hosts.strip())
    assert match is not None  # every part may be empty
    prefix, first, suffix = match.groups()
    return prefix + (first or "") + suffix
