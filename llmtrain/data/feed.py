"""The documents that one corpus gives to one lane: rows become texts become tokens, a few rows ahead.

Each document knows the place after it: reading ahead does not move the lane's state, which is the place after the last
document that was used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmtrain.data.packing import TokenArray
from llmtrain.data.records import Row, UnusableRecord, bad_record_error
from llmtrain.data.streams import BlockPart, BlockStart, Corpus, Stream
from llmtrain.errors import DataError

READ_AHEAD_ROWS = 16
READ_AHEAD_BYTES = 16 << 10
"""Rows are tokenized together until they hold so many bytes: more in each of many lanes would delay the first step."""
MAX_ROWS_WITHOUT_TEXT = 10_000
"""An endless source that gives a lane no text in so many rows, and in more epochs than there are lanes, is refused."""


@dataclass(frozen=True)
class ReadCounts:
    """What was read of an epoch: documents, texts that were null or empty, unusable records by kind."""

    num_documents: int = 0
    num_empty: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_bad(self) -> int:
        """Unusable records of every kind."""
        return sum(self.bad.values())

    @property
    def num_rows(self) -> int:
        """All records."""
        return self.num_documents + self.num_empty + self.num_bad

    def __add__(self, other: ReadCounts) -> ReadCounts:
        kinds = sorted({*self.bad, *other.bad})
        bad = {kind: self.bad.get(kind, 0) + other.bad.get(kind, 0) for kind in kinds}
        return ReadCounts(self.num_documents + other.num_documents, self.num_empty + other.num_empty, bad)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"documents": self.num_documents, "empty": self.num_empty, "bad": dict(self.bad)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ReadCounts:
        """The inverse of `to_dict`."""
        return cls(state["documents"], state["empty"], dict(state["bad"]))


ONE_DOCUMENT = ReadCounts(num_documents=1)
ONE_EMPTY = ReadCounts(num_empty=1)


@dataclass(frozen=True)
class Cursor:
    """A place in what a corpus gives to a lane: a block, how many of the lane's rows in it are used, and the counts."""

    block: BlockStart
    position: int = 0
    counts: ReadCounts = ReadCounts()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**self.block.to_dict(), "position": self.position, "counts": self.counts.to_dict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Cursor:
        """The inverse of `to_dict`."""
        return cls(BlockStart.from_dict(state), state["position"], ReadCounts.from_dict(state["counts"]))


@dataclass(frozen=True)
class Document:
    """A document ready to be cut into sequences, the row that it was, and the place after it."""

    tokens: TokenArray
    row: Row
    after: Cursor


@dataclass(frozen=True)
class DocumentReader:
    """Rows to tokens. `tokenize` takes texts, and returns what `Cutter.prepare` made of each, None for no token."""

    corpus: Corpus
    tokenize: Callable[[Sequence[str]], list[TokenArray | None]]
    skip_bad: bool

    def read(self, rows: Sequence[Row]) -> list[TokenArray | UnusableRecord | None]:
        """The tokens of each row; None where its text is empty. Raises `BadRecordError` unless such are skipped."""
        texts = [self._text(row) for row in rows]
        tokens = iter(self.tokenize([text for text in texts if isinstance(text, str)]))
        return [next(tokens) if isinstance(text, str) else text for text in texts]

    def _text(self, row: Row) -> str | UnusableRecord | None:
        shard = self.corpus.shards[row.shard]
        try:
            return shard.text(row)
        except UnusableRecord as problem:
            if self.skip_bad:
                return problem
            raise bad_record_error(shard.name, row, problem) from None


class Feed:
    """The documents of one corpus for one lane, from a cursor on."""

    def __init__(self, lane: int, stream: Stream, reader: DocumentReader, cursor: Cursor) -> None:
        self.cursor = cursor
        self._lane = lane
        self._stream = stream
        self._reader = reader
        self._ready: deque[Document] = deque()
        self._part: BlockPart | None = None
        self._read_to = cursor
        self._last_epoch = cursor.block.epoch
        self._rows_without_text = 0

    def peek(self) -> Document | None:
        """The next document; None at the end of the epoch."""
        while not self._ready:
            if not self._read_ahead():
                self.cursor = self._read_to
                return None
        return self._ready[0]

    def pop(self) -> None:
        """The document that `peek` returned is used up."""
        self.cursor = self._ready.popleft().after

    def _read_ahead(self) -> bool:
        """Read and tokenize some rows; False where there are none left."""
        if self._part is None or self._read_to.position == len(self._part.rows):
            part = self._stream.next_part(self._lane)
            if part is None:
                return False
            self._enter(part)
        assert self._part is not None
        rows = self._next_rows(self._part.rows)
        for row, tokens in zip(rows, self._reader.read(rows), strict=True):
            place = self._read_to
            self._read_to = Cursor(place.block, place.position + 1, place.counts + _count(tokens))
            if tokens is not None and not isinstance(tokens, UnusableRecord):
                self._ready.append(Document(tokens, row, self._read_to))
                self._last_epoch = place.block.epoch
                self._rows_without_text = 0
        return True

    def _enter(self, part: BlockPart) -> None:
        is_resumed_block = self._part is None and part.start.number == self._read_to.block.number
        self._part = part
        self._read_to = Cursor(part.start, self._read_to.position if is_resumed_block else 0, self._read_to.counts)
        self._rows_without_text += len(part.rows)
        num_epochs = part.start.epoch - self._last_epoch
        # An endless stream of records without text would be read for ever.
        if num_epochs > self._reader.corpus.num_lanes and self._rows_without_text > MAX_ROWS_WITHOUT_TEXT:
            name = self._reader.corpus.shards[0].name
            raise DataError(
                f"lane {self._lane} was given no text by {num_epochs} epochs of {name} and what goes with it"
            )

    def _next_rows(self, rows: Sequence[Row]) -> list[Row]:
        taken: list[Row] = []
        num_bytes = 0
        for row in rows[self._read_to.position : self._read_to.position + READ_AHEAD_ROWS]:
            taken.append(row)
            num_bytes += row.size
            if num_bytes >= READ_AHEAD_BYTES:
                break
        return taken


def _count(tokens: TokenArray | UnusableRecord | None) -> ReadCounts:
    if isinstance(tokens, UnusableRecord):
        return ReadCounts(bad={tokens.kind: 1})
    return ONE_EMPTY if tokens is None else ONE_DOCUMENT
