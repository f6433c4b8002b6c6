"""How a global batch is split: over the ranks, and on each rank over micro-batches.

    global_batch_size = micro-batch x gradient accumulation x world size

The global batch decides the training; the rest decides only how it is computed. Sequence j of a step comes from lane
j mod L, and rank r owns the lanes l with l mod W = r; W divides L, so rank r computes the sequences j with j mod W = r,
in ascending order, and the content of a global batch does not depend on W.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmtrain.config.schema import BatchConfig
from llmtrain.errors import ConfigError, Problem

MAX_DEFAULT_LANES = 512


@dataclass(frozen=True)
class BatchPlan:
    """The numbers of a run on `world_size` ranks; all sizes are in sequences."""

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    world_size: int
    num_lanes: int

    @property
    def sequences_per_rank(self) -> int:
        """Sequences that one rank computes in an optimizer step."""
        return self.global_batch_size // self.world_size

    def lane_of(self, sequence: int) -> int:
        """The lane that sequence `sequence` of a step comes from."""
        return sequence % self.num_lanes

    def lanes_of(self, rank: int) -> range:
        """The lanes that a rank owns."""
        return range(rank, self.num_lanes, self.world_size)

    def micro_batches_of(self, rank: int) -> list[range]:
        """The sequences of a step that a rank computes, one range a micro-batch."""
        span = self.micro_batch_size * self.world_size
        return [range(rank + start, start + span, self.world_size) for start in range(0, self.global_batch_size, span)]


def plan_batches(batch: BatchConfig, world_size: int, num_lanes: int | None) -> BatchPlan:
    """The plan for `world_size` ranks.

    Args:
        batch: two of its three numbers, all three if they agree, or one of `global_batch_size` (one micro-batch a rank
            and step) and `per_device_train_batch_size` (no accumulation).
        world_size: data-parallel ranks.
        num_lanes: `data.num_lanes`, or what a checkpoint was made with; None for the default.

    Raises:
        ConfigError: the numbers do not multiply out, or the ranks cannot share the lanes.
    """
    micro, accumulation = _split(batch, world_size)
    global_size = micro * accumulation * world_size
    lanes = default_num_lanes(global_size) if num_lanes is None else num_lanes
    _check_lanes(global_size, world_size, lanes)
    return BatchPlan(global_size, micro, accumulation, world_size, lanes)


def default_num_lanes(global_batch_size: int) -> int:
    """The largest divisor of the global batch that is at most 512. A function of nothing else, so that a run may go on
    with another number of ranks."""
    return max(lanes for lanes in divisors(global_batch_size) if lanes <= MAX_DEFAULT_LANES)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _split(batch: BatchConfig, world_size: int) -> tuple[int, int]:
    """Micro-batch and accumulation."""
    total = batch.global_batch_size
    micro, accumulation = batch.per_device_train_batch_size, batch.gradient_accumulation_steps
    if total is None:
        if micro is None:
            rule = "needs global_batch_size or per_device_train_batch_size"
            raise ConfigError(Problem("batch", rule, "such as global_batch_size: 64"))
        return micro, accumulation or 1
    if micro is not None and accumulation is not None:
        if micro * accumulation * world_size != total:
            raise ConfigError(_conflict(total, micro, accumulation, world_size))
        return micro, accumulation
    unit = (micro or 1) * (accumulation or 1) * world_size
    if total % unit:
        raise ConfigError(_no_multiple(total, micro, accumulation, world_size))
    if micro is not None:
        return micro, total // unit
    return total // unit, accumulation or 1


def _conflict(total: int, micro: int, accumulation: int, world_size: int) -> Problem:
    product = micro * accumulation * world_size
    remedies = [f"set it to {product}"]
    if total % (micro * world_size) == 0:
        remedies.append(f"gradient_accumulation_steps to {total // (micro * world_size)}")
    if total % (accumulation * world_size) == 0:
        remedies.append(f"per_device_train_batch_size to {total // (accumulation * world_size)}")
    rule = (
        f"is not per_device_train_batch_size {micro} x gradient_accumulation_steps {accumulation} x world size "
        f"{world_size} = {product}"
    )
    return Problem("batch.global_batch_size", rule, ", or ".join(remedies), value=total)


def _no_multiple(total: int, micro: int | None, accumulation: int | None, world_size: int) -> Problem:
    factors = [f"world size {world_size}"]
    unit = world_size
    if micro is not None:
        factors.insert(0, f"per_device_train_batch_size {micro}")
        unit *= micro
    if accumulation is not None:
        factors.insert(0, f"gradient_accumulation_steps {accumulation}")
        unit *= accumulation
    product = f" = {unit}" if len(factors) > 1 else ""
    below = total // unit * unit
    nearest = [str(size) for size in (below, below + unit) if size]
    return Problem(
        "batch.global_batch_size",
        f"is not a multiple of {' x '.join(factors)}{product}",
        f"nearest: {', '.join(nearest)}",
        value=total,
    )


def _check_lanes(global_size: int, world_size: int, lanes: int) -> None:
    choices = [d for d in divisors(global_size) if d % world_size == 0]
    if global_size % lanes:
        rule = f"does not divide global_batch_size {global_size}"
        raise ConfigError(Problem("data.num_lanes", rule, f"allowed: {_listed(choices)}", value=lanes))
    if lanes % world_size:
        what = "is fewer lanes than ranks" if world_size > lanes else "is not a multiple of the world size"
        ranks = _listed(divisors(lanes))
        remedy = f"allowed with these lanes: {ranks} ranks; or for a new run data.num_lanes: {_listed(choices)}"
        raise ConfigError(Problem("data.num_lanes", f"{what} ({world_size})", remedy, value=lanes))


def _listed(numbers: list[int]) -> str:
    if len(numbers) > 12:
        return ", ".join([*map(str, numbers[:6]), "…", *map(str, numbers[-6:])])
    return ", ".join(map(str, numbers))
