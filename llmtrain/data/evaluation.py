"""Held-out data: every row once, in the order of the files, as one stream that is packed as training is.

Sequence n goes to rank n mod W. Every rank reads and tokenizes the whole set (where sequences begin depends on all
that is before them) and encodes its own sequences only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from llmtrain.config.schema import Config, SourceConfig
from llmtrain.data.lanes import LaneSettings, LaneState, open_lanes
from llmtrain.data.loader import Batch, TaskEncoder
from llmtrain.data.prefetch import Prefetcher
from llmtrain.data.sources import resolve_sources
from llmtrain.data.streams import Corpus
from llmtrain.data.training_data import check_counts, make_cutter, make_readers

BATCHES_AHEAD = 2


@dataclass(frozen=True)
class RankEvalBatch:
    """A batch of one rank; empty (`has_sequence` false) once the rank has had its last sequence."""

    batch: Batch
    num_supervised_tokens: int
    has_sequence: bool


class EvalLoader:
    """One held-out set for one rank. Each iteration begins anew, and goes on with empty batches for ever.

    Raises:
        ConfigError: a source cannot be used. `key` is the set's place in the configuration.
        BadRecordError: one of the first records cannot be used, and `data.on_bad_record` is error.
    """

    def __init__(
        self,
        config: Config,
        sources: SequenceOf[SourceConfig],
        tokenizer: Any,
        task: TaskEncoder,
        rank: int,
        world_size: int,
        *,
        key: str = "data.eval",
    ) -> None:
        self._config = config
        self._task = task
        self._rank = rank
        self._world_size = world_size
        self._key = key
        shards = [shard for source in resolve_sources(sources, config.data, key) for shard in source.shards]
        # One lane, unshuffled, is the rows in the order of the files.
        corpus = Corpus(shards, num_lanes=1, seed=config.run.seed, shuffle_buffer=1)
        cutter = make_cutter(config, tokenizer)
        self._readers = make_readers([corpus], config.data, tokenizer, cutter)
        self._settings = LaneSettings(config.run.seed, config.data.seq_length, cutter)

    def __iter__(self) -> Iterator[RankEvalBatch]:
        """Raises `DataError` where a source cannot be read, or holds too little that can be used."""
        size = self._config.eval.per_device_eval_batch_size
        empty = RankEvalBatch(self._task.collate([None] * size), 0, has_sequence=False)
        prefetcher = Prefetcher(self._batches(size), BATCHES_AHEAD)
        try:
            while True:
                try:
                    batch = prefetcher.get()
                except StopIteration:
                    break
                yield batch
            while True:
                yield empty
        finally:
            prefetcher.close()

    def _batches(self, size: int) -> Iterator[RankEvalBatch]:
        examples: list[Any] = []
        for example in self._examples():
            examples.append(example)
            if len(examples) == size:
                yield self._batch(examples, size)
                examples = []
        if examples:
            yield self._batch(examples, size)

    def _examples(self) -> Iterator[Any]:
        """This rank's sequences, encoded."""
        (lane,) = open_lanes(self._readers, self._settings, {0: LaneState.at_start(0, 1)}, endless=False)
        number = 0
        while (sequence := lane.next_sequence().sequence) is not None:
            if number % self._world_size == self._rank:
                yield self._task.encode(sequence)
            number += 1
        check_counts(lane.state().counts, self._config.data, self._key)

    def _batch(self, examples: list[Any], size: int) -> RankEvalBatch:
        padded = examples + [None] * (size - len(examples))
        num_supervised_tokens = sum(example.num_supervised_tokens for example in examples)
        return RankEvalBatch(self._task.collate(padded), num_supervised_tokens, has_sequence=True)


def eval_sets(
    config: Config, tokenizer: Any, task: TaskEncoder, rank: int, world_size: int
) -> Mapping[str, Callable[[], Iterator[RankEvalBatch]]]:
    """Every set of `data.eval` by its name ("" for a set without one): a function that starts its batches anew.

    Raises:
        ConfigError: a source cannot be used.
    """
    sets = config.data.eval or {}
    named = {key: (f"data.eval.{key}", value) for key, value in sets.items()} if isinstance(sets, dict) else {}
    if not isinstance(sets, dict):
        named = {"": ("data.eval", sets)}
    return {
        name: EvalLoader(config, sources, tokenizer, task, rank, world_size, key=key).__iter__
        for name, (key, sources) in named.items()
    }
