"""Streams of rows, in blocks that are shuffled, dealt to lanes.

A `Corpus` is what one epoch goes through: the shards of one weighted source, or of all sources without weights. Its
pieces (files; or row groups and record batches) are dealt whole to the lanes where that leaves them level: then each
lane has a stream of its own, and a rank reads its own pieces only. Otherwise the corpus is one stream for all lanes:
its shards in a random order, each row dealt to the lane with the fewest bytes so far.

A stream is cut into blocks of rows, across pieces. Each block is permuted, and its rows handed to the lanes in that
order. A block's start (piece, row, and the lanes' byte counts) is all that is needed to read on from there, so that
is what a checkpoint holds; the position within the block is the lane's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from llmtrain.data.order import RowDealer, Use, deal_pieces, is_level, jitter_factors, permutation, random_words
from llmtrain.data.records import Row
from llmtrain.data.sources import Shard
from llmtrain.errors import DataError

MIN_BLOCK_ROWS = 16
MAX_BLOCK_BYTES = 64 << 20
"""Raw bytes after which a block of a stream for all lanes ends, however few its rows: bounds the memory."""
MAX_DEALS_KEPT = 2


class ShardPiece(NamedTuple):
    """Rows `start` to `stop` (None: the end) of shard number `shard`."""

    shard: int
    start: int
    stop: int | None
    size: int


@dataclass(frozen=True)
class BlockStart:
    """Where a block begins: the next row to be read, and what the lanes have been dealt until there."""

    epoch: int
    block: int = 0
    piece: int = 0
    row: int = 0
    num_bytes: tuple[int, ...] = ()

    @property
    def number(self) -> tuple[int, int]:
        """Blocks in the order in which they are read."""
        return self.epoch, self.block

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        state: dict[str, Any] = {"epoch": self.epoch, "block": self.block, "piece": self.piece, "row": self.row}
        return {**state, "bytes": self.num_bytes} if self.num_bytes else state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> BlockStart:
        """The inverse of `to_dict`."""
        return cls(state["epoch"], state["block"], state["piece"], state["row"], tuple(state.get("bytes", ())))


class BlockPart(NamedTuple):
    """The rows of one block that belong to one lane, in the order in which it takes them."""

    start: BlockStart
    rows: list[Row]


class Corpus:
    """Shards that are read together, and how they are dealt to `num_lanes` lanes. The same on every rank."""

    def __init__(
        self, shards: Sequence[Shard], num_lanes: int, *, seed: int, shuffle_buffer: int, number: int = 0
    ) -> None:
        self.shards = tuple(shards)
        self.num_lanes = num_lanes
        self._seed = seed
        self._number = number
        self.shuffle_buffer = shuffle_buffer
        self._files = [ShardPiece(number, 0, None, shard.size) for number, shard in enumerate(shards)]
        self._pieces = self._coarsest_level_pieces()
        self._deals: dict[int, list[list[int]]] = {}

    @property
    def is_shared(self) -> bool:
        """Whether one stream serves all lanes, because the pieces are too few or too uneven to be dealt whole."""
        return self._pieces is None

    @property
    def is_shuffled(self) -> bool:
        """`data.shuffle_buffer: 1` keeps the order of the files."""
        return self.shuffle_buffer > 1

    def key(self, use: Use, epoch: int, *numbers: int) -> tuple[int, ...]:
        """What keys a permutation of this corpus."""
        return (self._seed, epoch, int(use), self._number, *numbers)

    def pieces(self, epoch: int, stream: int) -> list[ShardPiece]:
        """The pieces of a stream in the order in which an epoch reads them."""
        if self._pieces is None:
            pieces = self._files
        else:
            pieces = [self._pieces[index] for index in sorted(self._deal(epoch)[stream])]
        if not self.is_shuffled:
            return pieces
        return [pieces[i] for i in permutation(len(pieces), *self.key(Use.PIECES_OF_STREAM, epoch, stream))]

    def _coarsest_level_pieces(self) -> list[ShardPiece] | None:
        if is_level([piece.size for piece in self._files], self.num_lanes):
            return self._files
        parts: list[ShardPiece] = []
        for file in self._files:
            pieces = self.shards[file.shard].pieces()
            parts += [file] if pieces is None else [ShardPiece(file.shard, *piece) for piece in pieces]
        if len(parts) > len(self._files) and is_level([piece.size for piece in parts], self.num_lanes):
            return parts
        return None

    def _deal(self, epoch: int) -> list[list[int]]:
        """The indices of each lane's pieces; those of a few epochs are kept, for lanes of a weighted source may be in
        different ones."""
        assert self._pieces is not None
        if epoch not in self._deals:
            while len(self._deals) >= MAX_DEALS_KEPT:
                del self._deals[min(self._deals)]
            sizes = [piece.size for piece in self._pieces]
            factors = jitter_factors(len(sizes), *self.key(Use.JITTER, epoch)) if self.is_shuffled else None
            self._deals[epoch] = deal_pieces(sizes, self.num_lanes, factors)
        return self._deals[epoch]


class Stream:
    """Reads one stream of a corpus and hands each of `starts`' lanes its part of every block.

    `starts` says for each lane of this rank from which block on it takes part. An endless stream (of a weighted source)
    goes on with the next epoch, and then the byte counts go on too: a source of three rows serves eight lanes in turn.
    """

    def __init__(self, corpus: Corpus, number: int, starts: Mapping[int, BlockStart], *, endless: bool) -> None:
        self._corpus = corpus
        self._number = number
        self._starts = dict(starts)
        self._endless = endless
        self._waiting: dict[int, deque[BlockPart]] = {lane: deque() for lane in starts}
        self._blocks = self._read_blocks(min(starts.values(), key=lambda start: start.number))
        share = 1 if corpus.is_shared else corpus.num_lanes
        self._block_rows = max(corpus.shuffle_buffer // share, MIN_BLOCK_ROWS)
        self._block_bytes = MAX_BLOCK_BYTES // share

    def next_part(self, lane: int) -> BlockPart | None:
        """The next rows of a lane, never an empty list; None at the end of the epoch."""
        waiting = self._waiting[lane]
        while not waiting:
            block = next(self._blocks, None)
            if block is None:
                return None
            start, parts = block
            for other, rows in parts.items():
                if start.number >= self._starts[other].number:
                    self._waiting[other].append(BlockPart(start, rows))
        return waiting.popleft()

    def _read_blocks(self, start: BlockStart) -> Iterator[tuple[BlockStart, dict[int, list[Row]]]]:
        while True:
            rows = self._rows(start)
            dealer = self._dealer(start)
            num_blocks = start.block
            while True:
                parts, end = self._read_block(rows, start, dealer)
                if end is None:
                    break
                yield start, parts
                start = end
            if not self._endless:
                return
            if num_blocks == start.block == 0:
                raise DataError(f"an epoch of {self._corpus.shards[0].name} and what belongs to it held no row at all")
            start = BlockStart(start.epoch + 1, num_bytes=start.num_bytes)

    def _dealer(self, start: BlockStart) -> RowDealer | None:
        """None where the stream has one lane."""
        if not self._corpus.is_shared:
            return None
        first = int(random_words(1, *self._corpus.key(Use.TIES, start.epoch))[0] >> 1)
        return RowDealer(start.num_bytes or (0,) * self._corpus.num_lanes, first)

    def _read_block(
        self, rows: Iterator[tuple[int, Row]], start: BlockStart, dealer: RowDealer | None
    ) -> tuple[dict[int, list[Row]], BlockStart | None]:
        """The next block's rows by lane (those of other ranks' lanes left out), and the start of the block after it.

        None instead of a start where there is no row left.
        """
        indexed: dict[int, list[tuple[int, Row]]] = {}
        num_rows = num_bytes = 0
        next_row = (start.piece, start.row)
        for piece, row in rows:
            lane = self._number if dealer is None else dealer.deal(row.size)
            if lane in self._waiting:
                indexed.setdefault(lane, []).append((num_rows, row))
            num_rows += 1
            num_bytes += row.size
            next_row = (piece, row.row + 1)
            if num_rows == self._block_rows or num_bytes >= self._block_bytes:
                break
        if not num_rows:
            return {}, None
        counts = dealer.num_bytes if dealer else ()
        return self._permuted(indexed, num_rows, start), BlockStart(start.epoch, start.block + 1, *next_row, counts)

    def _permuted(
        self, indexed: dict[int, list[tuple[int, Row]]], num_rows: int, start: BlockStart
    ) -> dict[int, list[Row]]:
        if not self._corpus.is_shuffled:
            return {lane: [row for _, row in rows] for lane, rows in indexed.items()}
        ranks = np.empty(num_rows, dtype=np.int64)
        key = self._corpus.key(Use.BLOCK, start.epoch, self._number, start.block)
        ranks[permutation(num_rows, *key)] = np.arange(num_rows)
        order = ranks.tolist()
        return {
            lane: [row for _, row in sorted(rows, key=lambda pair: order[pair[0]])] for lane, rows in indexed.items()
        }

    def _rows(self, start: BlockStart) -> Iterator[tuple[int, Row]]:
        """(index of the piece, row) from the start of a block to the end of its epoch."""
        pieces = self._corpus.pieces(start.epoch, self._number)
        for index in range(start.piece, len(pieces)):
            piece = pieces[index]
            first = max(piece.start, start.row) if index == start.piece else piece.start
            for row in self._corpus.shards[piece.shard].rows(piece.shard, first, piece.stop):
                yield index, row
