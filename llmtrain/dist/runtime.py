"""`Dist`: the ranks of a run, as the trainer sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as torch_dist

from llmtrain.dist.agreement import StepAgreement
from llmtrain.dist.channel import FailureChannel
from llmtrain.dist.facts import LOOPBACK, RankFacts
from llmtrain.dist.failure import Failure, NullChannel, failure_of, is_lost_connection
from llmtrain.dist.process_group import Groups, choose_device, new_groups, share_cpus, start_groups, stop_groups
from llmtrain.dist.processes import leave, say
from llmtrain.dist.rendezvous import meet
from llmtrain.dist.signals import StopRequest
from llmtrain.errors import ExitStatus, RankFailedError

_DEFAULT_TIMEOUT_SECONDS = 600.0
_REASON_SECONDS = 15.0


class Dist:
    """This rank among the ranks of the run. Every collective is called by all ranks, in the same order."""

    def __init__(
        self,
        facts: RankFacts,
        device: torch.device,
        groups: Groups,
        channel: FailureChannel | NullChannel,
        stop: StopRequest,
        *,
        owns_groups: bool,
    ) -> None:
        self.facts = facts
        self.device = device
        self.stop = stop
        self._groups = groups
        self._channel = channel
        self._owns_groups = owns_groups

    @classmethod
    def start(
        cls,
        facts: RankFacts,
        *,
        timeout_seconds: float,
        on_failure: Callable[[str], None],
        stop: StopRequest,
    ) -> Dist:
        """Meet the other ranks, open the failure channel, initialise the process groups.

        `timeout_seconds`: how long the start, and later one collective, may wait for another rank.
        `on_failure(reason)` is called when the job fails, on the lowest surviving rank alone, from any thread, just
        before the process ends. Raises ConfigError for a port, address or device that cannot be used, Interrupted for
        a stop requested meanwhile, RankFailedError where ranks are missing or another rank's failure came first.
        """
        meeting = meet(facts, timeout_seconds, stop)
        channel: FailureChannel | NullChannel = NullChannel(on_failure)
        if meeting.channel is not None:
            channel = FailureChannel(meeting.channel, meeting.members, facts.rank, on_failure)
        channel.start()
        try:
            device = choose_device(facts)
            groups = start_groups(facts, meeting.store, device, timeout_seconds)
            if device.type == "cpu":
                share_cpus(meeting.members, facts.rank)
        except BaseException as error:
            failure = _fail(channel, facts.rank, error)
            if failure.rank != facts.rank:
                raise RankFailedError(failure.reason) from error
            raise
        dist = cls(facts, device, groups, channel, stop, owns_groups=True)
        stop.on_late_signal = dist._leave_at_once
        return dist

    @classmethod
    def adopt(cls, *, stop: StopRequest | None = None, timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS) -> Dist:
        """Use the process group that the program has initialised, all ranks on this host, without a failure channel."""
        rank, world_size = torch_dist.get_rank(), torch_dist.get_world_size()
        facts = RankFacts(rank, rank, world_size, world_size, LOOPBACK, 0, "torchrun")
        device, groups = choose_device(facts), new_groups(timeout_seconds)
        return cls(facts, device, groups, NullChannel(lambda _: None), stop or StopRequest(), owns_groups=False)

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self.facts.rank

    @property
    def local_rank(self) -> int:
        """This rank among those of its host, from 0."""
        return self.facts.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.facts.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def agreement(self) -> StepAgreement:
        """A new agreement; all of them share one group, so all ranks post in one order."""
        return StepAgreement(self._groups.agreement)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        torch_dist.barrier(group=self._groups.cpu)

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a small tensor over the ranks, in place; the tensor, on its own device."""
        if tensor.device.type == "cpu":
            torch_dist.all_reduce(tensor, group=self._groups.cpu)
        else:
            torch_dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, tensor: torch.Tensor) -> torch.Tensor:
        """The largest values of a small tensor over the ranks, in place; the tensor, on its own device."""
        group = self._groups.cpu if tensor.device.type == "cpu" else None
        torch_dist.all_reduce(tensor, op=torch_dist.ReduceOp.MAX, group=group)
        return tensor

    def gather_objects(self, value: Any) -> list[Any]:
        """Rank 0: every rank's value, in their order. Elsewhere an empty list."""
        values = [None] * self.world_size if self.is_main else None
        torch_dist.gather_object(value, values, dst=0, group=self._groups.cpu)
        return list(values or [])

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in their order, on all ranks."""
        values: list[Any] = [None] * self.world_size
        torch_dist.all_gather_object(values, value, group=self._groups.cpu)
        return values

    def broadcast_object(self, value: Any = None) -> Any:
        """Rank 0's value, on all ranks."""
        values = [value]
        torch_dist.broadcast_object_list(values, src=0, group=self._groups.cpu)
        return values[0]

    def stop_reason(self) -> str | None:
        """Why a stop was requested, and on which rank (the lowest that has a reason); a collective."""
        reasons = self.all_gather_objects(self.stop.requested)
        found = [f"{reason} (rank {rank})" for rank, reason in enumerate(reasons) if reason]
        return found[0] if found else None

    def fail(self, error: BaseException) -> Failure:
        """Make this rank's exception the job's failure; never raises. The process is then to be left by `leave`.

        Returns the job's failure: it is this rank's to print where `failure.rank == dist.rank`. Where the exception is
        that of a collective, another rank's death is waited for first, which mostly ends this process in here.
        """
        return _fail(self._channel, self.rank, error)

    def wait_for_failure(self) -> NoReturn:
        """Another rank said that it has failed (`Agreed.any_failed`): wait for its reason, which ends this process.

        Raises RankFailedError where the reason does not come.
        """
        time.sleep(_REASON_SECONDS)
        raise RankFailedError("another rank has failed, and did not say why")

    def close(self) -> None:
        """The end of a run that has nothing more to write: a last barrier, then the groups and the channel are undone.

        From here on signals change nothing: a launcher sends them to the slower ranks when the first has ended.
        """
        self.stop.ignore_signals()
        self.barrier()
        self._channel.finish()
        if self._owns_groups:
            stop_groups()
        self._channel.close()

    def _leave_at_once(self, reason: str) -> NoReturn:
        failure = self._channel.fail(Failure(self.rank, f"rank {self.rank}: {reason}"))
        if failure.rank == self.rank:
            say(failure.reason)
        leave(ExitStatus.FAILED)


def _fail(channel: FailureChannel | NullChannel, rank: int, error: BaseException) -> Failure:
    patience_seconds = channel.notice_seconds if is_lost_connection(error) else 0.0
    return channel.fail(failure_of(rank, error), patience_seconds=patience_seconds)
