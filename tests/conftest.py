"""Fixtures that several tests share: rank processes live as long as the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import RankPool


@pytest.fixture(scope="session")
def one_rank() -> Iterator[RankPool]:
    """One rank process."""
    pool = RankPool(1)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    """Two rank processes in one gloo group."""
    pool = RankPool(2)
    yield pool
    pool.close()
