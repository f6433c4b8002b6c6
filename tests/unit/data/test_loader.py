"""The loaders: steps, ends, errors, resumes that are refused; evaluation."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtrain.batching import BatchPlan
from llmtrain.data.evaluation import EvalLoader, eval_sets
from llmtrain.data.feed import ReadCounts
from llmtrain.data.loader import TrainLoader
from llmtrain.data.prefetch import Prefetcher
from llmtrain.data.training_data import check_counts, describe_counts
from llmtrain.errors import BadRecordError, ConfigError, DataError
from tests.unit.data.support import PlainTask, Ranks, byte_tokenizer, json_source, make_config, write_json_lines

PLAN = BatchPlan(4, 2, 1, 2, 4)


def data_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "llmtrain-data"]


def test_steps_after_the_end_of_an_epoch_are_empty(tmp_path: Path) -> None:
    ranks = Ranks(make_config([write_json_lines(tmp_path / "a.jsonl", ["abc"] * 5)], seq_length=4), PLAN)
    steps = [ranks.step() for _ in range(4)]
    assert [[step.has_sequence for step in step_of_all] for step_of_all in steps] == [
        [True, True], [True, False], [False, False], [False, False]
    ]  # fmt: skip
    last = steps[-1][0]
    assert (last.num_tokens, last.num_supervised_tokens, last.trace) == (0, 0, [])
    assert [len(batch["sequences"]) for batch in last.micro_batches] == [2]
    assert last.lane_states == steps[1][0].lane_states or last.lane_states == steps[2][0].lane_states
    assert sum(loader.counts.num_documents for loader in ranks.loaders) == 5
    state = ranks.state()
    ranks.close()
    ended = Ranks(make_config([json_source(tmp_path / "a.jsonl")], seq_length=4), PLAN, state)
    assert not any(step.has_sequence for step in ended.step())
    ended.start_epoch(1)
    again = ended.step()
    assert [step.epoch for step in again] == [1, 1]
    assert all(step.has_sequence for step in again)
    ended.close()
    assert not data_threads()


def test_supervised_and_all_tokens_are_counted(tmp_path: Path) -> None:
    ranks = Ranks(make_config([write_json_lines(tmp_path / "a.jsonl", ["abcdef", "x"])], seq_length=4), PLAN)
    steps = list(itertools.takewhile(lambda steps: any(step.has_sequence for step in steps), iter(ranks.step, None)))
    assert sum(step.num_tokens for row in steps for step in row) == 9
    assert all(step.num_tokens == step.num_supervised_tokens for row in steps for step in row)
    ranks.close()


def test_an_error_of_the_thread_reaches_the_caller_after_good_steps(tmp_path: Path) -> None:
    texts: list[Any] = ["abc"] * 400
    texts[250] = 5
    config = make_config([write_json_lines(tmp_path / "a.jsonl", texts)], seq_length=4, shuffle_buffer=1)
    loader = TrainLoader(config, byte_tokenizer(), PlainTask(), BatchPlan(1, 1, 1, 1, 1), 0)
    # The error is met while reading ahead: a few documents that come before it are not trained on.
    for _ in range(230):
        assert loader.next_step().has_sequence
    for _ in range(2):
        with pytest.raises(BadRecordError, match="line 251: column 'text' holds a number") as caught:
            list(iter(loader.next_step, None))
        assert caught.value.exit_status == 1
    loader.close()


def test_skipped_records_are_counted_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc"}\n{"text": null}\n{"text": ""}\n{"text": 3}\nnot json\n{"text": "d"}\n')
    ranks = Ranks(make_config([json_source(path)], seq_length=4, on_bad_record="skip"), BatchPlan(2, 1, 1, 2, 2))
    while any(step.has_sequence for step in ranks.step()):
        pass
    counts = sum((loader.counts for loader in ranks.loaders), ReadCounts())
    assert counts == ReadCounts(2, 2, {"not JSON": 1, "not text": 1})
    assert describe_counts(counts) == ("6 records, 2 without text, 2 that cannot be used: 1 not JSON, 1 not text")
    data = make_config([json_source(path)], max_bad_fraction=0.3).data
    with pytest.raises(DataError, match=r"epoch 0: 33.33% of the records cannot be used"):
        check_counts(counts, data, "epoch 0")
    check_counts(counts, make_config([json_source(path)], max_bad_fraction=0.4).data, "epoch 0")
    with pytest.raises(DataError, match="no text was read"):
        check_counts(ReadCounts(num_empty=4), data, "epoch 0")
    ranks.close()


def test_a_resume_with_other_data_is_refused_by_each_difference(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["abc"] * 5)
    ranks = Ranks(make_config([source], seq_length=4), PLAN)
    ranks.step()
    state = ranks.state()
    ranks.close()
    write_json_lines(tmp_path / "b.jsonl", ["abc"])
    changed = make_config([json_source(tmp_path / "b.jsonl")], seq_length=8, seed=1, packing=False, shuffle_buffer=9)
    with pytest.raises(ConfigError) as caught:
        Ranks(changed, PLAN, state)
    message = str(caught.value)
    for text in (
        "run.seed is not what the checkpoint was trained on: was 42, is 1",
        "data.seq_length is not what the checkpoint was trained on: was 4, is 8",
        "data.packing is not what the checkpoint was trained on: was True, is False",
        "data.shuffle_buffer is not what",
        f"data.train[0] is not what the checkpoint was trained on: {tmp_path}/a.jsonl is gone",
        f"{tmp_path}/b.jsonl is new",
    ):
        assert text in message
    write_json_lines(tmp_path / "a.jsonl", ["abcd"] * 5)
    with pytest.raises(ConfigError, match=r"had 80 bytes, has 85"):
        Ranks(make_config([json_source(tmp_path / "a.jsonl")], seq_length=4), PLAN, state)


def test_files_in_another_order_are_another_order(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        write_json_lines(path, ["abc"] * 5)
    ranks = Ranks(make_config([json_source(*paths)]), PLAN)
    state = ranks.state()
    ranks.close()
    with pytest.raises(ConfigError, match="its files, or their order, differ"):
        Ranks(make_config([json_source(*reversed(paths))]), PLAN, state)


def test_weights_are_for_all_sources_or_none(tmp_path: Path) -> None:
    sources = [write_json_lines(tmp_path / f"{name}.jsonl", ["abc"]) for name in "ab"]
    with pytest.raises(ConfigError, match=r"data\.train\[1\]\.weight is needed, for other sources have weights"):
        Ranks(make_config([{**sources[0], "weight": 1}, sources[1]]), PLAN)


def test_a_sequence_must_have_room_for_text(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["abc"])
    with pytest.raises(ConfigError, match=r"data\.seq_length=1 leaves no room for text"):
        Ranks(make_config([source], seq_length=1), PLAN)


def test_prefetcher_stays_a_few_items_ahead_and_ends() -> None:
    made: list[int] = []
    third_is_made = threading.Event()

    def items() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            if number == 3:
                third_is_made.set()
            yield number

    prefetcher = Prefetcher(items(), depth=2)
    assert made == []
    assert prefetcher.get() == 0
    assert third_is_made.wait(10)
    assert made == [0, 1, 2, 3]
    prefetcher.close()
    assert not data_threads()
    with pytest.raises(StopIteration):
        prefetcher.get()


# --- evaluation -----------------------------------------------------------------------------------------------------


def evaluated(loader: EvalLoader) -> list[list[int]]:
    batches = itertools.takewhile(lambda batch: batch.has_sequence, loader)
    sequences: list[Any] = [sequence for batch in batches for sequence in batch.batch["sequences"]]
    return [sequence.input_ids.tolist() for sequence in sequences if sequence is not None]


def test_each_row_is_evaluated_once_at_any_world_size(tmp_path: Path) -> None:
    texts = [str(number) * (number % 7) for number in range(50)]
    config = make_config([write_json_lines(tmp_path / "a.jsonl", texts)], seq_length=8)
    sources = config.data.train
    one = evaluated(EvalLoader(config, sources, byte_tokenizer(), PlainTask(), 0, 1))
    text = byte_tokenizer().decode([token for sequence in one for token in sequence])
    assert text == "".join(f"{text}<|end|>" for text in texts if text)
    for world_size in (2, 3):
        ranks = [
            evaluated(EvalLoader(config, sources, byte_tokenizer(), PlainTask(), rank, world_size))
            for rank in range(world_size)
        ]
        assert [ranks[n % world_size][n // world_size] for n in range(len(one))] == one
    assert not data_threads()


def test_an_evaluation_goes_on_with_empty_batches_and_begins_anew(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["abc"] * 3)
    config = make_config([source], seq_length=4, eval={"good": [source], "bad": [source]})
    sets = eval_sets(config, byte_tokenizer(), PlainTask(), 0, 1)
    assert list(sets) == ["good", "bad"]
    for _ in range(2):
        batches = list(itertools.islice(sets["good"](), 3))
        assert [batch.has_sequence for batch in batches] == [True, False, False]
        assert [batch.num_supervised_tokens for batch in batches] == [12, 0, 0]
        assert [len(batch.batch["sequences"]) for batch in batches] == [8, 8, 8]
    assert not data_threads()
    assert eval_sets(make_config([source]), byte_tokenizer(), PlainTask(), 0, 1) == {}
    unnamed = make_config([source], eval=[source])
    assert list(eval_sets(unnamed, byte_tokenizer(), PlainTask(), 0, 1)) == [""]
    (tmp_path / "none.jsonl").write_text("")
    broken = make_config([source], eval={"bad": [json_source(tmp_path / "none.jsonl")]})
    with pytest.raises(ConfigError, match=r"data\.eval\.bad\[0\]\.data_files"):
        eval_sets(broken, byte_tokenizer(), PlainTask(), 0, 1)


def test_an_evaluation_without_text_is_an_error(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["", None])
    config = make_config([source])
    with pytest.raises(DataError, match=r"data\.eval: no text was read \(2 records, 2 without text"):
        evaluated(EvalLoader(config, config.data.train, byte_tokenizer(), PlainTask(), 0, 1))
