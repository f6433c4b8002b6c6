"""Lanes: the logical data streams that make the order of the data independent of the number of ranks.

The training data is dealt to L lanes. Sequence j of step s comes from lane j mod L; rank r of W owns the lanes l with
l mod W = r, and no other rank tokenizes them. L divides the global batch and W divides L, so the content of every
global batch is a function of (seed, epoch, step) alone, and W may change between runs.

A document passes through here like this:

1. `streams.py` reads rows in blocks, shuffles each block and deals its rows to lanes; `feed.py` turns a lane's rows
   into tokens, a few ahead.
2. `Lane.next_sequence` takes documents (with weights: from the source that is furthest behind its share of this
   lane's tokens) and cuts them into sequences by `packing.py`.
3. Each sequence carries the lane's state after it (`LaneState`): where each source stands, and how many tokens of the
   document at hand are used. No rows and no tokens are in it; a lane that is opened at a state goes on exactly there,
   whatever had been read ahead.

At the end of the epoch the remainder becomes a shorter sequence, and after that a lane has none. The epoch ends for
all ranks at the first step in which no lane has a sequence, which they find out together (`trainer.py`). With weights
sources restart by themselves, each with its own epochs, and lanes do not end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llmtrain.data.feed import Cursor, DocumentReader, Feed, ReadCounts
from llmtrain.data.packing import Cutter, SequenceBuilder, TokenArray
from llmtrain.data.packing import Sequence as PackedSequence
from llmtrain.data.streams import BlockStart, Corpus, Stream


class TraceRow(NamedTuple):
    """A document in the order of the data, told at the step in which its first token is trained."""

    lane: int
    source: int
    shard: str
    row: int

    def to_json_line(self, step: int) -> str:
        """The line of trace.jsonl."""
        return json.dumps({"step": step, **self._asdict()}, ensure_ascii=False)


@dataclass(frozen=True)
class LaneState:
    """Where a lane stands between two sequences.

    Attributes:
        epoch: the run's epoch.
        index: sequences that the lane has given in this epoch.
        cursors: one for each corpus.
        num_tokens: tokens taken from each corpus, by which sources are mixed.
        current: the corpus whose next document is used in part; None between documents.
        used: tokens of that document that are used already.
    """

    epoch: int
    index: int
    cursors: tuple[Cursor, ...]
    num_tokens: tuple[int, ...]
    current: int | None = None
    used: int = 0

    @classmethod
    def at_start(cls, epoch: int, num_corpora: int) -> LaneState:
        """The beginning of an epoch."""
        return cls(epoch, 0, (Cursor(BlockStart(epoch)),) * num_corpora, (0,) * num_corpora)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "epoch": self.epoch,
            "index": self.index,
            "cursors": [cursor.to_dict() for cursor in self.cursors],
            "num_tokens": list(self.num_tokens),
            "current": self.current,
            "used": self.used,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> LaneState:
        """The inverse of `to_dict`."""
        cursors = tuple(Cursor.from_dict(cursor) for cursor in state["cursors"])
        return cls(state["epoch"], state["index"], cursors, tuple(state["num_tokens"]), state["current"], state["used"])

    @property
    def counts(self) -> ReadCounts:
        """What the lane has read of the epoch."""
        return sum((cursor.counts for cursor in self.cursors), ReadCounts())


@dataclass(frozen=True)
class LaneSettings:
    """What is the same for all lanes. `shares` are the corpora's shares of the tokens; one alone has all."""

    seed: int
    seq_length: int
    cutter: Cutter
    shares: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class LaneStep:
    """What a lane gives to a step: a sequence (None after the epoch's last), the documents that begin in it, and the
    lane's state after it."""

    sequence: PackedSequence | None
    trace: tuple[TraceRow, ...]
    state: LaneState


class Lane:
    """One lane, from a state on. `feeds` has one feed for each corpus."""

    def __init__(
        self,
        number: int,
        settings: LaneSettings,
        corpora: Sequence[Corpus],
        feeds: Sequence[Feed],
        state: LaneState,
    ) -> None:
        self.number = number
        self._settings = settings
        self._corpora = corpora
        self._feeds = feeds
        self._epoch = state.epoch
        self._index = state.index
        self._num_tokens = list(state.num_tokens)
        self._current = state.current
        self._used = state.used

    def next_sequence(self) -> LaneStep:
        """Take documents until a sequence is full, or there are none left."""
        builder = SequenceBuilder(self._settings.seq_length, is_packing=self._settings.cutter.is_packing)
        trace: list[TraceRow] = []
        while builder.room:
            corpus = self._furthest_behind() if self._current is None else self._current
            document = self._feeds[corpus].peek()
            if document is None:
                break
            if self._current is None:
                shard = self._corpora[corpus].shards[document.row.shard]
                trace.append(TraceRow(self.number, shard.source, shard.name, document.row.row))
            self._add_part(builder, corpus, document.tokens)
        sequence = builder.build((self._settings.seed, self._epoch, self.number, self._index))
        self._index += sequence is not None
        return LaneStep(sequence, tuple(trace), self.state())

    def state(self) -> LaneState:
        """Where the lane stands."""
        cursors = tuple(feed.cursor for feed in self._feeds)
        return LaneState(self._epoch, self._index, cursors, tuple(self._num_tokens), self._current, self._used)

    def _add_part(self, builder: SequenceBuilder, corpus: int, document: TokenArray) -> None:
        """Put into the sequence what fits of a document."""
        part, used = self._settings.cutter.cut(document, self._used, builder.room)
        builder.add(part, continues=self._used > 0)
        self._num_tokens[corpus] += len(part)
        if used == len(document):
            self._feeds[corpus].pop()
            self._current, self._used = None, 0
        else:
            self._current, self._used = corpus, used

    def _furthest_behind(self) -> int:
        """The corpus that is furthest behind its share of the tokens; the first of equals."""
        total = sum(self._num_tokens)
        shares = self._settings.shares
        return max(range(len(shares)), key=lambda corpus: shares[corpus] * total - self._num_tokens[corpus])


def open_lanes(
    readers: Sequence[DocumentReader], settings: LaneSettings, states: Mapping[int, LaneState], *, endless: bool
) -> list[Lane]:
    """The lanes of one rank, `states`' keys, each at its state, in the order of their numbers.

    `readers` has one reader for each corpus. Lanes that are served by one stream share its reader of rows.
    """
    feeds: dict[int, list[Feed]] = {lane: [] for lane in sorted(states)}
    for index, reader in enumerate(readers):
        starts = {lane: states[lane].cursors[index].block for lane in feeds}
        streams = _open_streams(reader.corpus, starts, endless=endless)
        for lane, lane_feeds in feeds.items():
            lane_feeds.append(Feed(lane, streams[lane], reader, states[lane].cursors[index]))
    corpora = [reader.corpus for reader in readers]
    return [Lane(lane, settings, corpora, lane_feeds, states[lane]) for lane, lane_feeds in feeds.items()]


def _open_streams(corpus: Corpus, starts: Mapping[int, BlockStart], *, endless: bool) -> dict[int, Stream]:
    if corpus.is_shared:
        return dict.fromkeys(starts, Stream(corpus, corpus.num_lanes, starts, endless=endless))
    return {lane: Stream(corpus, lane, {lane: start}, endless=endless) for lane, start in starts.items()}
