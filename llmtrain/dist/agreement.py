"""The agreement: what all ranks must know about a step before its first forward, in one asynchronous all-reduce.

    counts  N = supervised tokens over all ranks and micro-batches; all their tokens; does any rank have a sequence; is
            a stop requested; has any rank failed to fetch its data

It runs on a small gloo group of its own, so that it waits for no other collective and works beside NCCL, and it is
posted while the step before is still computing, so that it costs no time. The main thread alone posts, on every rank
in the same order: that is what keeps the ranks together.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist


@dataclass(frozen=True)
class Agreed:
    """What the ranks agreed on; the same on all of them."""

    num_supervised_tokens: int
    """Over all ranks."""
    any_sequence: bool
    stop_requested: bool
    any_failed: bool
    num_tokens: int = 0
    """Over all ranks, supervised or not, padding left out."""


class StepAgreement:
    """One agreement after the other: `post`, later `wait`. Several may be under way on one group, in one order."""

    def __init__(self, group: torch_dist.ProcessGroup) -> None:
        self._group = group
        self._posted: tuple[Any, torch.Tensor] | None = None

    def post(
        self,
        num_supervised_tokens: int,
        has_sequence: bool,
        stop_requested: bool = False,
        failed: bool = False,
        num_tokens: int = 0,
    ) -> None:
        """Send this rank's part."""
        assert self._posted is None, "the agreement before this one was not awaited"
        assert threading.current_thread() is threading.main_thread(), "only the main thread posts"
        part = [num_supervised_tokens, int(has_sequence), int(stop_requested), int(failed), num_tokens]
        sums = torch.tensor(part, dtype=torch.int64)
        self._posted = torch_dist.all_reduce(sums, group=self._group, async_op=True), sums

    @property
    def is_posted(self) -> bool:
        """Whether one is under way."""
        return self._posted is not None

    def wait(self) -> Agreed:
        """Wait for all ranks' parts. Raises torch's error where a rank has gone."""
        assert self._posted is not None, "no agreement was posted"
        work, sums = self._posted
        work.wait()
        self._posted = None
        num_supervised_tokens, sequences, stops, failures, num_tokens = (int(value) for value in sums.tolist())
        return Agreed(num_supervised_tokens, sequences > 0, stops > 0, failures > 0, num_tokens)
