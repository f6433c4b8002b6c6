"""The promise of the data: one order, whatever the number of ranks, and whatever the interruptions."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from tests.unit.data.support import EOS, Ranks, make_config, write_json_lines

MAX_STEPS = 80


@dataclass(frozen=True)
class Drawn:
    """A run, and how it is interrupted. `stops` are (step, world size to go on with)."""

    files: tuple[tuple[int, ...], ...]
    """The length of each document of each file; 0 is an empty text."""
    as_parquet: bool
    seq_length: int
    packing: bool
    shuffle_buffer: int
    num_lanes: int
    sequences_per_lane: int
    epochs: int
    weights: bool
    world_size: int
    stops: tuple[tuple[int, int], ...]

    def plan(self, world_size: int) -> BatchPlan:
        size = self.num_lanes * self.sequences_per_lane
        return BatchPlan(size, 1, size // world_size, world_size, self.num_lanes)


@st.composite
def drawn_runs(draw: st.DrawFn) -> Drawn:
    num_lanes = draw(st.sampled_from([1, 2, 4, 6]))
    world_sizes = st.sampled_from([size for size in (1, 2, 3, 4) if num_lanes % size == 0])
    document = st.integers(0, 40) | st.just(0) | st.just(120)
    files = draw(st.lists(st.lists(document, max_size=30).map(tuple), min_size=1, max_size=5).map(tuple))
    if not any(any(file) for file in files):
        files = [*files, (7,)]
    if draw(st.booleans()):
        # As many files of one size as lanes, so that they are dealt whole.
        files = [files[-1] if any(files[-1]) else (7, 30)] * num_lanes
    return Drawn(
        files=tuple(files),
        as_parquet=draw(st.booleans()),
        seq_length=draw(st.integers(2, 24)),
        packing=draw(st.booleans()),
        shuffle_buffer=draw(st.sampled_from([1, 2, 5, 10_000])),
        num_lanes=num_lanes,
        sequences_per_lane=draw(st.integers(1, 2)),
        epochs=draw(st.integers(1, 3)),
        weights=draw(st.booleans()) and all(any(file) for file in files) and len(files) > 1,
        world_size=draw(world_sizes),
        stops=tuple(sorted(draw(st.lists(st.tuples(st.integers(0, 30), world_sizes), max_size=3)))),
    )


def text_of(file: int, document: int, length: int) -> str:
    """A text that says where it is from, in so many bytes."""
    return (f"{file}.{document}:" * (length // 3 + 1))[:length]


def write_sources(folder: Path, drawn: Drawn) -> list[dict[str, Any]]:
    sources: list[dict[str, Any]] = []
    for file, lengths in enumerate(drawn.files):
        texts = [text_of(file, document, length) for document, length in enumerate(lengths)]
        path = folder / f"{file}.data"
        if drawn.as_parquet:
            pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=3)
            sources.append({"path": "parquet", "data_files": str(path)})
        else:
            sources.append(write_json_lines(path, texts))
        if drawn.weights:
            sources[-1]["weight"] = file + 1
    if not drawn.weights:
        sources = [{"path": sources[0]["path"], "data_files": [source["data_files"] for source in sources]}]
    return sources


@dataclass
class Record:
    """Everything that a run trains on, in order."""

    batches: list[list[tuple[Any, ...] | None]]
    trace: list[tuple[int, int, str, int]]
    final_state: dict[str, Any]
    epochs: list[int]


def train(config: Config, drawn: Drawn, stops: tuple[tuple[int, int], ...], world_size: int) -> Record:
    """All steps of a run that stops at these steps and goes on from the state with these world sizes."""
    record = Record([], [], {}, [])
    ranks = Ranks(config, drawn.plan(world_size))
    epoch, pending = 0, list(stops)
    while epoch < drawn.epochs and len(record.batches) < MAX_STEPS:
        while pending and pending[0][0] == len(record.batches):
            state = ranks.state()
            ranks.close()
            ranks = Ranks(config, drawn.plan(pending.pop(0)[1]), state)
        steps = ranks.step()
        if any(step.has_sequence for step in steps):
            for step in steps:
                assert step.epoch == epoch
            batch = ranks.global_batch(steps)
            record.batches.append(
                [s and (s.input_ids.tolist(), s.document_lengths, s.key, s.continues) for s in batch]  # type: ignore[misc]
            )
            record.trace += sorted(row for step in steps for row in step.trace)
            record.epochs.append(epoch)
        else:
            epoch += 1
            ranks.start_epoch(epoch)
    record.final_state = ranks.state()
    ranks.close()
    return record


STARVING = Drawn(
    files=((0, 1),) * 4,
    as_parquet=True,
    seq_length=2,
    packing=False,
    shuffle_buffer=1,
    num_lanes=4,
    sequences_per_lane=1,
    epochs=1,
    weights=True,
    world_size=1,
    stops=(),
)
"""Two rows a source, one of them empty: dealt in turn, half of the lanes would get the empty one in every epoch."""


@example(STARVING)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn_runs())
def test_order_depends_on_neither_ranks_nor_interruptions(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            write_sources(Path(folder), drawn),
            seq_length=drawn.seq_length,
            packing={} if drawn.packing else False,
            shuffle_buffer=drawn.shuffle_buffer,
        )
        straight = train(config, drawn, (), 1)
        interrupted = train(config, drawn, drawn.stops, drawn.world_size)
        assert interrupted.batches == straight.batches
        assert interrupted.trace == straight.trace
        assert interrupted.final_state == straight.final_state
        if not drawn.weights and len(straight.batches) < MAX_STEPS:
            check_epochs(drawn, straight, folder)


def check_epochs(drawn: Drawn, record: Record, folder: str) -> None:
    """Each document once in every epoch, whole, closed by one EOS."""
    expected = Counter(
        (f"{folder}/{file}.data", row)
        for file, lengths in enumerate(drawn.files)
        for row, length in enumerate(lengths)
        if length
    )
    assert Counter((shard, row) for _, _, shard, row in record.trace) == Counter(
        {document: drawn.epochs for document in expected}
    )
    num_tokens = sum(length + 1 for lengths in drawn.files for length in lengths if length)
    for epoch in range(drawn.epochs):
        batches = [batch for batch, number in zip(record.batches, record.epochs, strict=True) if number == epoch]
        sequences = [sequence for batch in batches for sequence in batch if sequence is not None]
        tokens = [token for input_ids, *_ in sequences for token in input_ids]
        assert len(tokens) == num_tokens
        assert tokens.count(EOS) == sum(expected.values())
        for input_ids, lengths, _, _ in sequences:
            assert len(input_ids) == sum(lengths) <= drawn.seq_length
            assert drawn.packing or len(lengths) == 1


def test_another_seed_and_another_epoch_give_another_order(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", [f"{number:03d}" for number in range(40)])
    drawn = Drawn((), False, 4, True, 100, 4, 1, 2, False, 1, ())
    first = train(make_config([source], seq_length=4), drawn, (), 1)
    other = train(make_config([source], seq_length=4, seed=7), drawn, (), 1)
    epochs = [first.trace[:40], first.trace[40:], other.trace[:40]]
    orders = [tuple(row for *_, row in trace) for trace in epochs]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(40)) for order in orders)


def test_shuffle_buffer_1_keeps_the_order_of_the_files(tmp_path: Path) -> None:
    for file in range(3):
        write_json_lines(tmp_path / f"{file}.jsonl", [f"{file}{number}" for number in range(30)])
    source = {"path": "json", "data_files": str(tmp_path / "*.jsonl")}
    drawn = Drawn((), False, 40, True, 1, 1, 1, 1, False, 1, ())
    record = train(make_config([source], seq_length=40, shuffle_buffer=1), drawn, (), 1)
    assert [(Path(shard).stem, row) for _, _, shard, row in record.trace] == [
        (str(file), row) for file in range(3) for row in range(30)
    ]


def test_prefetching_does_not_move_the_state(tmp_path: Path) -> None:
    """What is saved is what was trained on, whatever has been read ahead."""
    source = write_json_lines(tmp_path / "a.jsonl", ["x" * 5] * 50)
    config, plan = make_config([source], seq_length=6), BatchPlan(2, 1, 2, 1, 2)
    ranks = Ranks(config, plan)
    states = []
    for _ in range(3):
        steps = ranks.step()
        states.append(ranks.state())
        assert states[-1]["lanes"] == json.loads(json.dumps(steps[0].lane_states))
    ranks.close()
    resumed = Ranks(config, plan, states[0])
    resumed.step()
    assert resumed.state() == states[1]
    resumed.step()
    assert resumed.state() == states[2]
    resumed.close()


def test_weights_share_the_tokens(tmp_path: Path) -> None:
    sources = [
        {**write_json_lines(tmp_path / f"{file}.jsonl", ["x" * length] * 30), "weight": weight}
        for file, (length, weight) in enumerate([(9, 1.0), (29, 3.0)])
    ]
    drawn = Drawn((), False, 20, True, 100, 2, 2, 1, True, 1, ())
    record = train(make_config(sources, seq_length=20), drawn, (), 1)
    assert len(record.batches) == MAX_STEPS
    for state in record.final_state["lanes"].values():
        small, large = state["num_tokens"]
        # Off by at most the longest document.
        assert abs(small - (small + large) / 4) <= 30
    rows = Counter((source, row) for _, source, _, row in record.trace)
    assert {source for source, _ in rows} == {0, 1}
    by_source = [[count for (source, _), count in rows.items() if source == index] for index in (0, 1)]
    assert all(max(counts) - min(counts) <= 2 and len(counts) == 30 for counts in by_source)


def test_a_weighted_source_of_fewer_rows_than_lanes_serves_them_in_turn(tmp_path: Path) -> None:
    sources = [
        {**write_json_lines(tmp_path / "few.jsonl", ["abc", "defg", "hijkl"]), "weight": 1.0},
        {**write_json_lines(tmp_path / "many.jsonl", ["0123456789"] * 100), "weight": 1.0},
    ]
    drawn = Drawn((), False, 8, True, 100, 8, 1, 1, True, 1, ())
    straight = train(make_config(sources, seq_length=8), drawn, (), 1)
    resumed = train(make_config(sources, seq_length=8), drawn, ((13, 4), (29, 8)), 2)
    assert resumed.batches == straight.batches
    lanes = {lane for lane, source, _, _ in straight.trace if source == 0}
    assert lanes == set(range(8))


def test_lanes_are_level_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).lognormal(4.5, 1.0, size=2000).astype(int) + 1
    source = write_json_lines(tmp_path / "a.jsonl", ["x" * int(length) for length in lengths])
    plan = Drawn((), False, 256, True, 10_000, 8, 1, 1, False, 1, ()).plan(1)
    ideal = (int(lengths.sum()) + len(lengths)) / (8 * 256)
    assert ideal <= count_steps(make_config([source], seq_length=256), plan) <= 1.08 * ideal + 1


def count_steps(config: Config, plan: BatchPlan) -> int:
    ranks = Ranks(config, plan)
    num_steps = 0
    while any(step.has_sequence for step in ranks.step()):
        num_steps += 1
    ranks.close()
    return num_steps
