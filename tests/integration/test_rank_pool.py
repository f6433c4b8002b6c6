"""The rank pool itself: real collectives, and a failing rank fails the test."""

from __future__ import annotations

import pytest
import torch

from tests.support.ranks import RankPool


def _sum_of_ranks() -> float:
    import deepspeed.comm as comm

    value = torch.tensor(float(comm.get_rank() + 1))
    comm.all_reduce(value)
    return float(value)


def _raise_on_rank_one() -> None:
    import deepspeed.comm as comm

    if comm.get_rank() == 1:
        raise RuntimeError("on purpose")


def test_ranks_share_a_process_group(two_ranks: RankPool) -> None:
    assert two_ranks.run(_sum_of_ranks) == [3.0, 3.0]


def test_a_rank_that_raises_fails_the_test() -> None:
    pool = RankPool(2)
    with pytest.raises(AssertionError, match="on purpose"):
        pool.run(_raise_on_rank_one)
    assert pool._processes == []
