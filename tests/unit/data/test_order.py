"""Permutations and dealing, as functions of plain values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from llmtrain.data.order import (
    JITTER,
    LEVEL_TOLERANCE,
    RowDealer,
    deal_pieces,
    is_level,
    jitter_factors,
    permutation,
    random_words,
)
from llmtrain.data.sources import Shard, resolve_sources
from llmtrain.data.streams import Corpus
from tests.unit.data.support import make_config, write_json_lines


def test_permutations_never_change() -> None:
    """Checkpoints of earlier versions go on in this order."""
    assert random_words(2, 42, 0, 1).tolist() == [5864296784055374482, 5158351272211510420]
    assert permutation(8, 42, 0, 1, 0, 0).tolist() == [4, 0, 6, 2, 3, 1, 5, 7]
    assert permutation(8, 42, 0, 1, 0, 0).tolist() != permutation(8, 42, 1, 1, 0, 0).tolist()
    assert sorted(permutation(1000, 2**40, 3).tolist()) == list(range(1000))


def test_jitter_is_within_its_bounds() -> None:
    factors = jitter_factors(10_000, 1)
    assert 1 - JITTER <= factors.min() < 1 - 0.95 * JITTER
    assert 1 + 0.95 * JITTER < factors.max() <= 1 + JITTER


@given(st.lists(st.integers(0, 100), max_size=50), st.integers(1, 8))
def test_pieces_are_dealt_once_and_evenly(sizes: list[int], num_lanes: int) -> None:
    lanes = deal_pieces(sizes, num_lanes)
    assert sorted(index for lane in lanes for index in lane) == list(range(len(sizes)))
    fullness = [sum(sizes[index] for index in lane) for lane in lanes]
    assert max(fullness) - min(fullness) <= max(sizes, default=0)
    level = max(fullness) * num_lanes <= (1 + LEVEL_TOLERANCE) * sum(sizes)
    assert is_level(sizes, num_lanes) == level


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 6), st.integers(0, 60), st.integers(0, 7))
def test_rows_are_dealt_alike_after_a_resume(sizes: list[int], num_lanes: int, stop: int, first: int) -> None:
    straight = RowDealer((0,) * num_lanes, first)
    dealt = [straight.deal(size) for size in sizes]
    before = RowDealer((0,) * num_lanes, first)
    begun = [before.deal(size) for size in sizes[:stop]]
    after = RowDealer(before.num_bytes, first)
    assert begun + [after.deal(size) for size in sizes[stop:]] == dealt
    assert after.num_bytes == straight.num_bytes
    assert max(straight.num_bytes) <= max([1, *sizes])


def test_rows_of_one_size_are_dealt_in_turn_from_another_lane_in_each_epoch() -> None:
    assert [RowDealer((0, 0, 0), first=0).deal(5) for _ in range(2)] == [0, 0]
    dealer = RowDealer((0, 0, 0), first=1)
    assert [dealer.deal(0) for _ in range(4)] == [1, 2, 0, 1]


def corpus_of(source: dict[str, object], num_lanes: int) -> Corpus:
    config = make_config([source])
    sources = resolve_sources(config.data.train, config.data, "data.train")
    shards: list[Shard] = [shard for resolved in sources for shard in resolved.shards]
    return Corpus(shards, num_lanes, seed=0, shuffle_buffer=100)


def test_the_coarsest_level_pieces_are_dealt_whole(tmp_path: Path) -> None:
    """Files where they are even; else row groups; else one stream for all lanes."""
    for index in range(8):
        write_json_lines(tmp_path / f"even-{index}.jsonl", ["x" * 50] * 10)
    even = corpus_of({"path": "json", "data_files": f"{tmp_path}/even-*.jsonl"}, 4)
    assert not even.is_shared
    for epoch in range(3):
        dealt = [even.pieces(epoch, lane) for lane in range(4)]
        assert sorted(piece.shard for pieces in dealt for piece in pieces) == list(range(8))
        assert all(len(pieces) == 2 for pieces in dealt)
    assert even.pieces(0, 0) != even.pieces(1, 0) or even.pieces(0, 1) != even.pieces(1, 1)

    one_file = corpus_of({"path": "json", "data_files": f"{tmp_path}/even-0.jsonl"}, 4)
    assert one_file.is_shared
    assert not corpus_of({"path": "json", "data_files": f"{tmp_path}/even-0.jsonl"}, 1).is_shared

    texts = [f"{index:05d}" * 100 for index in range(4000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=100, use_dictionary=False)
    groups = corpus_of({"path": "parquet", "data_files": f"{tmp_path}/a.parquet"}, 4)
    assert not groups.is_shared
    rows = np.concatenate([np.arange(piece.start, piece.stop) for lane in range(4) for piece in groups.pieces(0, lane)])
    assert sorted(rows.tolist()) == list(range(4000))
