"""What ranks decide together while they save and load: one fails, all fail, each with the reason."""

from __future__ import annotations

from typing import Any, Protocol

from llmtrain.errors import CheckpointError


class Ranks(Protocol):
    """The ranks of a run, as far as checkpoints need them (`llmtrain.dist` has the real ones)."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks, on every rank."""
        ...


class OneRank:
    """A process on its own."""

    rank = 0
    world_size = 1

    def all_gather_objects(self, value: Any) -> list[Any]:
        """The value itself."""
        return [value]


def agree(ranks: Ranks, error: Exception | None, what_failed: str) -> None:
    """Raise on all ranks where one of them has an error.

    Raises:
        CheckpointError: `what_failed`, with each rank's own reason.
    """
    reasons = ranks.all_gather_objects(None if error is None else _reason(error))
    ranks_of: dict[str, list[int]] = {}
    for rank, reason in enumerate(reasons):
        if reason is not None:
            ranks_of.setdefault(reason, []).append(rank)
    if ranks_of:
        texts = [f"{_name(numbers)}: {reason}" for reason, numbers in ranks_of.items()]
        raise CheckpointError(f"{what_failed}: " + "; ".join(texts)) from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _name(ranks: list[int]) -> str:
    others = len(ranks) - 1
    return f"rank {ranks[0]}" + (f" (and {others} other{'s' if others > 1 else ''})" if others else "")
