"""The order of the data as functions of plain values: permutations, and how pieces and rows are dealt to lanes.

Every permutation is keyed by (seed, epoch, stream, …) and needs no saved state. It sorts raw 64-bit words of Philox,
whose stream NumPy guarantees for all time (that of `Generator.permutation` it does not): a run can go on under another
NumPy.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

LEVEL_TOLERANCE = 0.02
"""Pieces are dealt whole where that leaves the fullest lane within this share of the mean."""
JITTER = 0.1
"""By how much the sizes of pieces are jittered in their order of dealing, so that the partition differs by epoch."""


class Use(IntEnum):
    """What a permutation is for: keeps those with equal numbers apart."""

    PIECES_OF_STREAM = 0
    BLOCK = 1
    JITTER = 2
    TIES = 3


def random_words(num_words: int, *key: int) -> npt.NDArray[np.uint64]:
    """`num_words` random 64-bit words, a function of the key alone; (num_words,)."""
    words: npt.NDArray[np.uint64] = np.random.Philox(np.random.SeedSequence(key)).random_raw(num_words)
    return words


def permutation(size: int, *key: int) -> npt.NDArray[np.int64]:
    """A random order of `size` things, a function of the key alone; (size,)."""
    order: npt.NDArray[np.int64] = np.argsort(random_words(size, *key), kind="stable")
    return order


def jitter_factors(size: int, *key: int) -> npt.NDArray[np.float64]:
    """`size` factors between 1 - JITTER and 1 + JITTER; (size,)."""
    return 1.0 + JITTER * (random_words(size, *key) / 2.0**63 - 1.0)


def deal_pieces(
    sizes: Sequence[int], num_lanes: int, factors: npt.NDArray[np.float64] | None = None
) -> list[list[int]]:
    """Deal whole pieces, longest first, each to the lane with the fewest bytes so far (the lowest number on ties).

    `factors` jitter the order of dealing, not the bytes counted. Returns the indices of each lane's pieces.
    """
    weights = np.asarray(sizes, dtype=np.float64) * (1.0 if factors is None else factors)
    lanes: list[list[int]] = [[] for _ in range(num_lanes)]
    fullness = [(0, lane) for lane in range(num_lanes)]
    for index in np.argsort(-weights, kind="stable").tolist():
        size, lane = fullness[0]
        lanes[lane].append(index)
        heapq.heapreplace(fullness, (size + sizes[index], lane))
    return lanes


def is_level(sizes: Sequence[int], num_lanes: int) -> bool:
    """Whether pieces of these sizes can be dealt whole without leaving the fullest lane far above the mean."""
    lanes = deal_pieces(sizes, num_lanes)
    fullest = max(sum(sizes[index] for index in lane) for lane in lanes)
    return fullest * num_lanes <= (1.0 + LEVEL_TOLERANCE) * sum(sizes)


class RowDealer:
    """Deals rows to the lane with the fewest bytes so far; on ties to the one that comes first from lane `first` on.

    `first` is drawn anew for each epoch: where there are few rows of one size, no lane has the same ones in every
    epoch. (Taken in turn it can keep step with the rows, so that a lane gets none but the empty ones for ever.)
    """

    def __init__(self, num_bytes: Sequence[int], first: int) -> None:
        self._first = first % len(num_bytes)
        self._fullness = [(size, (lane - self._first) % len(num_bytes)) for lane, size in enumerate(num_bytes)]
        heapq.heapify(self._fullness)

    def deal(self, size: int) -> int:
        """The lane of the next row. A row without content counts as one byte, so that such rows are dealt in turn."""
        fullness, place = self._fullness[0]
        heapq.heapreplace(self._fullness, (fullness + max(size, 1), place))
        return (place + self._first) % len(self._fullness)

    @property
    def num_bytes(self) -> tuple[int, ...]:
        """The bytes of each lane, less those of the emptiest: all that later deals depend on."""
        least = self._fullness[0][0]
        sizes = [0] * len(self._fullness)
        for size, place in self._fullness:
            sizes[(place + self._first) % len(sizes)] = size - least
        return tuple(sizes)
