"""Two real ranks read uneven data: as many steps on both, every document once, and no waiting for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed

from llmtrain.batching import BatchPlan
from llmtrain.data.loader import TrainLoader
from llmtrain.tasks import build_task
from tests.support.ranks import RankPool
from tests.unit.data.support import byte_tokenizer, json_source, make_config, write_json_lines


def read_an_epoch(sources: list[dict[str, Any]], data: dict[str, Any]) -> dict[str, Any]:
    """One epoch of this rank with a real task; ranks agree on its end as the trainer does."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config = make_config(sources, seq_length=8, **data)
    plan = BatchPlan(4, 2, 4 // (2 * world_size), world_size, 4)
    tokenizer = byte_tokenizer()
    loader = TrainLoader(config, tokenizer, build_task(config, tokenizer), plan, rank)
    trace, tokens = [], []
    while True:
        step = loader.next_step()
        any_sequence = torch.tensor(float(step.has_sequence))
        torch.distributed.all_reduce(any_sequence)
        if not any_sequence:
            break
        trace.append(sorted(row[1:] for row in step.trace))
        assert all(batch["input_ids"].shape == (2, 8) for batch in step.micro_batches)
        ids = torch.cat([batch["input_ids"][batch["document_ids"] >= 0] for batch in step.micro_batches])
        assert len(ids) == step.num_tokens
        tokens.append(step.num_tokens)
    loader.close()
    return {"trace": trace, "tokens": tokens}


def test_two_ranks_take_the_same_steps_on_uneven_data(tmp_path: Path, one_rank: RankPool, two_ranks: RankPool) -> None:
    write_json_lines(tmp_path / "3.jsonl", ["abc" * 5] * 3)
    write_json_lines(tmp_path / "9.jsonl", [str(number) * 7 for number in range(9)])
    write_json_lines(tmp_path / "1.jsonl", ["fewer rows than lanes"])
    write_json_lines(tmp_path / "half.jsonl", ["", "", "text " * 9] + [""] * 20)
    cases = [["3.jsonl", "9.jsonl"], ["9.jsonl"], ["1.jsonl"], ["half.jsonl"]]
    for names in cases:
        arguments = (
            [json_source(*(tmp_path / name for name in names))],
            {"packing": False if names == cases[1] else {}},
        )
        (alone,) = one_rank.run(read_an_epoch, *arguments)
        both = two_ranks.run(read_an_epoch, *arguments)
        merged = [sorted(first + second) for first, second in zip(both[0]["trace"], both[1]["trace"], strict=True)]
        assert merged == alone["trace"]
        assert [sum(pair) for pair in zip(both[0]["tokens"], both[1]["tokens"], strict=True)] == alone["tokens"]
        assert alone["trace"][0]
