"""Device, threads, torch's and DeepSpeed's process groups: made once, undone once."""

from __future__ import annotations

import datetime
import math
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import deepspeed.comm
import deepspeed.ops
import torch
import torch.distributed as torch_dist
from deepspeed.accelerator import get_accelerator
from torch.distributed import Store  # type: ignore[attr-defined]

from llmtrain.dist.facts import RankFacts
from llmtrain.dist.rendezvous import Member
from llmtrain.errors import ConfigError, Problem

_LOOPBACK_INTERFACES = ("lo", "lo0")
_CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Groups:
    """The process groups that llmtrain uses itself; DeepSpeed uses torch's default one."""

    cpu: torch_dist.ProcessGroup
    """gloo: barriers, objects, small CPU tensors."""
    agreement: torch_dist.ProcessGroup
    """gloo: the agreement of each step, and nothing else."""


def choose_device(facts: RankFacts) -> torch.device:
    """The device of this rank: the GPU of its local rank, or the CPU where DeepSpeed finds no GPU.

    Raises ConfigError where this host has fewer GPUs than ranks.
    """
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return torch.device("cpu")
    num_devices = accelerator.device_count()
    if facts.local_rank >= num_devices:
        rule = f"ranks on {socket.gethostname()}, which shows {num_devices} GPUs"
        remedy = f"start at most {num_devices} there (deepspeed --num_gpus, torchrun --nproc-per-node)"
        raise ConfigError(Problem("LOCAL_WORLD_SIZE", rule, remedy, facts.local_world_size, "environment"))
    device = torch.device(accelerator.device_name(), facts.local_rank)
    accelerator.set_device(facts.local_rank)
    return device


def start_groups(facts: RankFacts, store: Store, device: torch.device, timeout_seconds: float) -> Groups:
    """Initialise torch's process group from the store, DeepSpeed's on top of it, and llmtrain's own groups.

    `timeout_seconds`: how long one collective may wait for another rank.
    """
    _export(facts)
    timeout = datetime.timedelta(seconds=timeout_seconds)
    backend = "gloo" if device.type == "cpu" else str(get_accelerator().communication_backend_name())
    bound_device = device if device.type == "cuda" and facts.world_size > 1 else None
    torch_dist.init_process_group(
        backend,
        store=store,
        rank=facts.rank,
        world_size=facts.world_size,
        timeout=timeout,
        device_id=bound_device,
    )
    switch_off_shared_memory()
    deepspeed.comm.init_distributed(backend, timeout=timeout, verbose=False)
    return new_groups(timeout_seconds)


def new_groups(timeout_seconds: float) -> Groups:
    """llmtrain's own groups over the ranks of the default one; every rank calls it."""
    timeout = datetime.timedelta(seconds=timeout_seconds)
    cpu, agreement = (torch_dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
    return Groups(cpu, agreement)


def stop_groups() -> None:
    """Destroy all groups, DeepSpeed's references to them too."""
    if torch_dist.is_initialized():
        deepspeed.comm.destroy_process_group()


def share_cpus(members: Sequence[Member], rank: int) -> None:
    """On CPU: as many threads as this rank's share of its cores. OMP_NUM_THREADS, where it is set, stays."""
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(num_threads(members, rank, _cpu_limit()))


def num_threads(members: Sequence[Member], rank: int, cpu_limit: float = math.inf) -> int:
    """This rank's share of the cores that it may run on, each divided by the ranks of the host that may use it.

    So ranks that are bound to cores of their own keep them, and unbound ones share all. `cpu_limit` is the container's.
    """
    here = [member for member in members if member.host_id == members[rank].host_id]
    shares = [1 / sum(cpu in member.cpus for member in here) for cpu in members[rank].cpus]
    return max(1, int(min(sum(shares) + 1e-6, cpu_limit / len(here))))


def _cpu_limit() -> float:
    """Cores that the control group grants over time, which neither the core count nor the affinity shows."""
    try:
        quota, period = _CGROUP_CPU_LIMIT.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def _export(facts: RankFacts) -> None:
    """What DeepSpeed and others read from the environment, whichever launcher there was."""
    os.environ.update(
        RANK=str(facts.rank),
        LOCAL_RANK=str(facts.local_rank),
        WORLD_SIZE=str(facts.world_size),
        LOCAL_WORLD_SIZE=str(facts.local_world_size),
        MASTER_ADDR=facts.master_addr,
        MASTER_PORT=str(facts.master_port),
    )
    if shutil.which("ninja") is None:
        # DeepSpeed compiles its ops by ninja, which pip puts beside the interpreter of an environment.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if facts.is_one_host:
        # gloo would take the address that the host's name resolves to, which need not be reachable (a laptop, a VPN).
        interfaces = {name for _, name in socket.if_nameindex()}
        for name in interfaces.intersection(_LOOPBACK_INTERFACES):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def switch_off_shared_memory() -> None:
    """Do without DeepSpeed's CPU all-reduce over /dev/shm, which only its inference and tensor parallelism use.

    It is compiled at the first start (a minute, and a compiler must be there), keeps 69 MB per rank in /dev/shm after
    the end of the run, and waits at its start in a loop that holds Python's lock for ranks that may have died.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
