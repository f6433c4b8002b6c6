"""How the ranks meet: at the master's port they register, learn who the others are, and agree on nothing else.

Rank 0 listens at MASTER_ADDR:MASTER_PORT (under torchrun its agent does). Every rank registers its host and process
id there and waits until all have. The waiting is done here, in Python, and not inside torch, so that it can be
interrupted, so that a port in use or a missing rank is named, and so that two jobs that were given one port do not
mix.

What comes of it: the store that torch's process groups start from, the members of the job, and the address of a second
store, hosted by rank 0, for the failure channel.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from llmtrain.dist.facts import LOOPBACK, RankFacts, is_loopback
from llmtrain.dist.launcher import find_launcher, num_living_siblings
from llmtrain.dist.processes import ProcessId, host_id, leave
from llmtrain.dist.signals import StopRequest
from llmtrain.dist.waiting import within
from llmtrain.errors import ConfigError, ExitStatus, Interrupted, Problem, RankFailedError

_POLL_SECONDS = 0.1
_STORE_SECONDS = 30.0
_GREETING_SECONDS = 5.0
_GRACE_SECONDS = 5.0
_BACKLOG = 2048
_PORT_REMEDY = "give another to the launcher: deepspeed --master_port N …, torchrun --master-port N …"


@dataclass(frozen=True)
class Member:
    """One rank of the job."""

    rank: int
    host: str
    """Its host's name."""
    host_id: str
    """Equal for the ranks that see each other's process ids."""
    process: ProcessId
    cpus: tuple[int, ...]
    """The cores that it may run on."""

    @classmethod
    def this(cls, rank: int) -> Member:
        """This process."""
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        return cls(rank, socket.gethostname(), host_id(), ProcessId.current(), tuple(cpus))

    def to_json(self) -> str:
        """The inverse of `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Member:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "process": ProcessId(**fields["process"]), "cpus": tuple(fields["cpus"])})


@dataclass(frozen=True)
class Meeting:
    """What the ranks know once they have met."""

    members: tuple[Member, ...]
    """In the order of the ranks."""
    store: Store
    """For torch's process groups."""
    channel: TCPStore | None
    """For the failure channel; None where this rank is alone."""


def meet(facts: RankFacts, timeout_seconds: float, stop: StopRequest) -> Meeting:
    """Register this rank and wait for all others.

    Raises ConfigError where the port or address cannot be used, Interrupted where a stop is requested meanwhile, and
    RankFailedError where ranks do not come within the timeout.
    """
    if facts.world_size == 1:
        return Meeting((Member.this(0),), HashStore(), None)
    deadline = time.monotonic() + timeout_seconds
    store, local_address = _open_store(facts, deadline, timeout_seconds, stop)
    keys = PrefixStore(f"llmtrain/{facts.attempt}", store)
    channel = _offer_channel(facts, keys, local_address) if facts.rank == 0 else None
    this = Member.this(facts.rank)
    _register(facts, keys, this)
    _wait_for_all(facts, keys, this, deadline, timeout_seconds, stop)
    members = keys.multi_get([_member_key(rank) for rank in range(facts.world_size)])
    if channel is None:
        host, port = json.loads(keys.get("channel"))
        channel = _connect(host, port)
    groups = PrefixStore("groups", keys)
    groups.set_timeout(datetime.timedelta(seconds=timeout_seconds))
    return Meeting(tuple(Member.from_json(member) for member in members), groups, channel)


def _open_store(facts: RankFacts, deadline: float, timeout_seconds: float, stop: StopRequest) -> tuple[TCPStore, str]:
    """The store at the master's port, and the address by which this rank reaches it."""
    host = LOOPBACK if is_loopback(facts.master_addr) else facts.master_addr
    if facts.rank == 0 and not facts.launcher_hosts_store:
        return _host_store(host, facts.master_port), host
    reason = ""
    while True:
        if stop.requested:
            raise _interruption(facts, stop, "a rank of this host")
        try:
            local_address = _reach(host, facts.master_port)
            return _connect(host, facts.master_port), local_address
        except (OSError, DistError) as error:
            reason = str(error).partition("\n")[0]
        if time.monotonic() > deadline:
            rule = (
                f"was not reached by rank {facts.rank} at port {facts.master_port} in {timeout_seconds:g} s ({reason})"
            )
            remedy = "it must be the host of rank 0, reachable from all others; see MASTER_PORT and the firewall too"
            raise ConfigError(Problem("MASTER_ADDR", rule, remedy, facts.master_addr, "environment"))
        time.sleep(_POLL_SECONDS)


def _host_store(host: str, port: int) -> TCPStore:
    """Listen at the port, on loopback alone where the whole job is on this host. Port 0 takes any that is free."""
    try:
        listener = _listen(host, port)
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        rule = "is in use on this host" if used else f"cannot be listened at ({error.strerror})"
        raise ConfigError(Problem("MASTER_PORT", rule, _PORT_REMEDY, port, "environment")) from error
    port = listener.getsockname()[1]
    # The store owns the socket from here on.
    descriptor = listener.detach()
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=datetime.timedelta(seconds=_STORE_SECONDS),
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def _listen(host: str, port: int) -> socket.socket:
    if is_loopback(host):
        return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _reach(host: str, port: int) -> str:
    """Whether somebody listens there (OSError if not); the address by which this host goes there.

    Asked before the store is opened because torch writes warnings while it waits for a listener.
    """
    with socket.create_connection((host, port), timeout=5.0) as probe:
        if probe.getsockname() == probe.getpeername():  # TCP lets a socket connect to itself on a free port
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        return str(probe.getsockname()[0])


def _connect(host: str, port: int) -> TCPStore:
    timeout = datetime.timedelta(seconds=_STORE_SECONDS)
    # torch greets a listener that is no store for ever.
    store = within(
        _GREETING_SECONDS, lambda: TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    )
    if store is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "what listens there does not answer as rank 0 would")
    return store


def _offer_channel(facts: RankFacts, keys: Store, local_address: str) -> TCPStore:
    """Host the failure channel's store and say where it is."""
    host = LOOPBACK if facts.is_one_host else facts.master_addr
    if facts.launcher_hosts_store and not facts.is_one_host:
        # torchrun's agent may listen on another host than rank 0's.
        host = local_address if not is_loopback(local_address) else socket.gethostname()
    channel = _host_store(host, 0)
    keys.set("channel", json.dumps([host, channel.port]))
    return channel


def _register(facts: RankFacts, keys: Store, this: Member) -> None:
    world_size = str(facts.world_size)
    text = this.to_json()
    problem = ""
    if (found := keys.compare_set("world_size", "", world_size).decode()) != world_size:
        problem = f"is the meeting point of a job of {found} ranks, this rank belongs to one of {world_size}"
    elif keys.compare_set(_member_key(this.rank), "", text).decode() != text:
        problem = f"has a rank {this.rank} already: another job, or two processes with one rank"
    if problem:
        raise ConfigError(Problem("MASTER_PORT", problem, _PORT_REMEDY, facts.master_port, "environment"))
    keys.add("registered", 1)


def _wait_for_all(
    facts: RankFacts,
    keys: Store,
    this: Member,
    deadline: float,
    timeout_seconds: float,
    stop: StopRequest,
) -> None:
    try:
        while keys.add("registered", 0) < facts.world_size:
            if keys.check(["stop"]):
                stop.request(keys.get("stop").decode())
            if stop.requested:
                error = _interruption(facts, stop, _missing(keys, facts.world_size))
                if isinstance(error, Interrupted):
                    keys.set("stop", stop.requested)
                    # Rank 0 holds the store: give the others the time to read it.
                    time.sleep(5 * _POLL_SECONDS if this.rank == 0 else 0)
                raise error
            if keys.check(["missing"]):
                leave(ExitStatus.FAILED)  # rank 0 says it
            # Rank 0 says who is missing, and where it is missing itself, the others do.
            if time.monotonic() > deadline + (0 if this.rank == 0 else _GRACE_SECONDS):
                reason = f"{_missing(keys, facts.world_size)} did not come within {timeout_seconds:g} s of the start"
                keys.set("missing", reason)
                time.sleep(5 * _POLL_SECONDS)
                raise RankFailedError(reason)
            time.sleep(_POLL_SECONDS)
    except DistError as error:
        raise RankFailedError("rank 0 ended before all ranks had started") from error


def _interruption(facts: RankFacts, stop: StopRequest, missing: str) -> Interrupted | RankFailedError:
    """A stop while ranks are missing: asked for, or sent by DeepSpeed's launcher because a rank has died."""
    launcher = find_launcher() if facts.launcher == "deepspeed" else None
    if launcher is not None and stop.requested == "SIGTERM" and num_living_siblings(launcher) < facts.local_world_size:
        return RankFailedError(f"{missing} ended before all ranks had started")
    return Interrupted(f"{stop.requested} before the first step")


def _missing(keys: Store, world_size: int) -> str:
    ranks = [str(rank) for rank in range(world_size) if not keys.check([_member_key(rank)])]
    return "rank " + ", ".join(ranks[:20]) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")


def _member_key(rank: int) -> str:
    return f"member/{rank}"
