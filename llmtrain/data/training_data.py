"""The training data of a configuration, put together: sources, corpora, tokenizing, lanes.

Every rank makes the same `TrainingData` and opens its own lanes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config, DataConfig
from llmtrain.data.feed import DocumentReader, ReadCounts
from llmtrain.data.fingerprint import fingerprint
from llmtrain.data.lanes import Lane, LaneSettings, LaneState, open_lanes
from llmtrain.data.packing import Cutter, TokenArray
from llmtrain.data.sources import Shard, Source, resolve_sources
from llmtrain.data.streams import Corpus
from llmtrain.data.tokenizer import BatchTokenizer, find_framing, tokenizer_digest
from llmtrain.errors import ConfigError, DataError, Problem


class TrainingData:
    """What the lanes of a run are opened from.

    Raises:
        ConfigError: a source, or the sequence length, cannot be used.
        BadRecordError: one of the first records cannot be used, and `data.on_bad_record` is error.
    """

    def __init__(self, config: Config, tokenizer: Any, plan: BatchPlan) -> None:
        sources = resolve_sources(config.data.train, config.data, "data.train")
        groups, shares = _mixture(sources)
        corpora = [
            Corpus(
                shards,
                plan.num_lanes,
                seed=config.run.seed,
                shuffle_buffer=config.data.shuffle_buffer,
                number=number,
            )
            for number, shards in enumerate(groups)
        ]
        cutter = make_cutter(config, tokenizer)
        self.fingerprint = fingerprint(config, plan, sources, cutter.framing, tokenizer_digest(tokenizer))
        self.sources = sources
        self.corpora = corpora
        self._settings = LaneSettings(config.run.seed, config.data.seq_length, cutter, shares)
        self._readers = make_readers(corpora, config.data, tokenizer, cutter)

    @property
    def is_endless(self) -> bool:
        """Whether sources have weights: each then restarts by itself, and lanes do not end."""
        return len(self.corpora) > 1

    def start_states(self, lanes: Sequence[int], epoch: int) -> dict[int, LaneState]:
        """Lanes at the beginning of an epoch."""
        # A source with a weight counts its epochs itself, from 0.
        state = LaneState.at_start(0 if self.is_endless else epoch, len(self.corpora))
        return dict.fromkeys(lanes, state)

    def open_lanes(self, states: Mapping[int, LaneState]) -> list[Lane]:
        """The lanes that `states` names, each at its state."""
        return open_lanes(self._readers, self._settings, states, endless=self.is_endless)


def make_cutter(config: Config, tokenizer: Any) -> Cutter:
    """How documents are framed and cut. Raises `ConfigError` where a sequence has no room for any token of a text."""
    cutter = Cutter(find_framing(tokenizer, config.model.task), is_packing=config.data.packing is not False)
    num_tokens = cutter.framing.num_tokens
    if config.data.seq_length <= num_tokens:
        rule = f"leaves no room for text: the special tokens round a document are {num_tokens}"
        raise ConfigError(Problem("data.seq_length", rule, value=config.data.seq_length))
    return cutter


def make_readers(corpora: Sequence[Corpus], data: DataConfig, tokenizer: Any, cutter: Cutter) -> list[DocumentReader]:
    """One reader for each corpus."""
    suffix = cutter.framing.suffix
    tokenize = _tokenize_and_prepare(BatchTokenizer(tokenizer, suffix[-1] if suffix else None), cutter)
    return [DocumentReader(corpus, tokenize, skip_bad=data.on_bad_record == "skip") for corpus in corpora]


def check_counts(counts: ReadCounts, data: DataConfig, what: str) -> None:
    """What was read of a whole epoch, over all ranks, is enough and good enough. Raises `DataError`."""
    if not counts.num_documents:
        raise DataError(f"{what}: no text was read ({describe_counts(counts)})")
    if counts.num_bad > data.max_bad_fraction * counts.num_rows:
        share = counts.num_bad / counts.num_rows
        raise DataError(
            f"{what}: {share:.2%} of the records cannot be used, more than data.max_bad_fraction="
            f"{data.max_bad_fraction:g} ({describe_counts(counts)})"
        )


def describe_counts(counts: ReadCounts) -> str:
    """What was read, in words."""
    bad = ", ".join(f"{number:,} {kind}" for kind, number in counts.bad.items())
    text = f"{counts.num_rows:,} records, {counts.num_empty:,} without text, {counts.num_bad:,} that cannot be used"
    return f"{text}: {bad}" if bad else text


def _tokenize_and_prepare(
    tokenize: Callable[[Sequence[str]], list[TokenArray]], cutter: Cutter
) -> Callable[[Sequence[str]], list[TokenArray | None]]:
    def run(texts: Sequence[str]) -> list[TokenArray | None]:
        return [cutter.prepare(tokens) if len(tokens) else None for tokens in tokenize(texts)]

    return run


def _mixture(sources: Sequence[Source]) -> tuple[list[list[Shard]], tuple[float, ...]]:
    """The shards that are read together, and each such group's share of the tokens."""
    weights = [source.config.weight for source in sources]
    if len(sources) == 1 or all(weight is None for weight in weights):
        return [[shard for source in sources for shard in source.shards]], (1.0,)
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(weights):
        problems = [
            Problem(f"{source.key}.weight", "is needed, for other sources have weights")
            for source, weight in zip(sources, weights, strict=True)
            if weight is None
        ]
        raise ConfigError(problems)
    total = sum(known)
    return [list(source.shards) for source in sources], tuple(weight / total for weight in known)
