"""Reading shards: one reader a format, each from any row on, each numbering physical records from 0.

JSON Lines, text, Parquet and Arrow are read here and not by `datasets`: its JSON builder turns "2020-01-01" into a
timestamp, names no file in its errors and loses the good rows beside a bad one. Only the needed columns are read.
What else there is (CSV, and whatever a hub dataset is made of) streams through `datasets`.

A reader is a stateless value; `url` is a local path or an fsspec URL. A `Piece` is a part of a shard that can be read
alone and whose size is known without reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmtrain.data.files import TRUNCATED_ARCHIVE_ERRORS, is_remote, open_decompressed, open_raw
from llmtrain.data.records import Row, UnusableRecord, names_text, parse_json_record

BATCH_ROWS = 1000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NUMBER_BYTES = 8
"""What a value that is not text counts as."""


class Piece(NamedTuple):
    """Rows `start` to `stop` (None: the end) of a shard, about `size` bytes."""

    start: int
    stop: int | None
    size: int


class Reader(Protocol):
    """How the shards of a source are read."""

    @property
    def is_json(self) -> bool:
        """Whether a raw line is a JSON object."""

    def rows(self, url: str, shard: int, columns: Sequence[str], start: int, stop: int | None) -> Iterator[Row]:
        """The rows from `start` to `stop`; `shard` is what they carry as their shard's number."""

    def column_names(self, url: str) -> list[str]:
        """The columns of the shard; of JSON Lines, those of its first record."""

    def pieces(self, url: str, columns: Sequence[str]) -> list[Piece] | None:
        """What the shard is made of, None where it can only be read as a whole."""


@dataclass(frozen=True)
class LineReader:
    """JSON Lines, or text with a document a line. Lines end with "\\n" alone (a "\\r" before it is dropped)."""

    is_json: bool

    def rows(self, url: str, shard: int, columns: Sequence[str], start: int, stop: int | None) -> Iterator[Row]:
        """One row a line; blank lines are none."""
        row = line_number = 0
        with open_decompressed(url) as stream:
            try:
                for line in stream:
                    line_number += 1
                    if line_number == 1 and line.startswith(BYTE_ORDER_MARK):
                        line = line[len(BYTE_ORDER_MARK) :]
                    if not line or line.isspace():
                        continue
                    if row == stop:
                        return
                    if row >= start:
                        yield Row(shard, row, line_number, len(line), line.rstrip(b"\r\n"))
                    row += 1
            except TRUNCATED_ARCHIVE_ERRORS as error:
                problem = UnusableRecord(
                    "damaged archive", f"the compressed file is damaged or cut short here ({error})"
                )
                if row >= start and row != stop:
                    yield Row(shard, row, line_number + 1, 0, problem)

    def column_names(self, url: str) -> list[str]:
        """The keys of the first record that is one."""
        if not self.is_json:
            return ["text"]
        for row in self.rows(url, 0, (), 0, 100):
            if isinstance(row.content, bytes):
                try:
                    return list(parse_json_record(row.content.decode("utf-8", "replace")))
                except UnusableRecord:
                    continue
        return []

    def pieces(self, url: str, columns: Sequence[str]) -> list[Piece] | None:
        """None: where a line begins is not known without reading."""
        return None


@dataclass(frozen=True)
class ParquetReader:
    """Parquet files; pieces are row groups."""

    is_json: bool = False

    def rows(self, url: str, shard: int, columns: Sequence[str], start: int, stop: int | None) -> Iterator[Row]:
        """Rows of the file in order; row groups before `start` are not read."""
        with _parquet_file(url) as file:
            end = file.metadata.num_rows if stop is None else min(stop, file.metadata.num_rows)
            problem = _missing_columns(columns, file.schema_arrow.names)
            if problem:
                yield from (Row(shard, row, None, 0, problem) for row in range(start, end))
                return
            first = 0
            for group in range(file.metadata.num_row_groups):
                num_rows = file.metadata.row_group(group).num_rows
                if start < first + num_rows and first < end:
                    batches = file.iter_batches(
                        BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
                    )
                    yield from _batch_rows(batches, shard, columns, first, start, end)
                first += num_rows

    def column_names(self, url: str) -> list[str]:
        """The top-level columns of the schema."""
        with _parquet_file(url) as file:
            return list(file.schema_arrow.names)

    def pieces(self, url: str, columns: Sequence[str]) -> list[Piece] | None:
        """The row groups, by the uncompressed size of the needed columns."""
        pieces, first = [], 0
        with _parquet_file(url) as file:
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                chunks = [group.column(column) for column in range(group.num_columns)]
                size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in columns)
                pieces.append(Piece(first, first + group.num_rows, size))
                first += group.num_rows
        return pieces


@dataclass(frozen=True)
class ArrowReader:
    """Arrow IPC, as files or as streams (which is what `datasets` saves); pieces are record batches of local files."""

    is_json: bool = False

    def rows(self, url: str, shard: int, columns: Sequence[str], start: int, stop: int | None) -> Iterator[Row]:
        """Rows of the file in order; record batches before `start` are mapped but not touched."""
        with _arrow_batches(url, columns) as (names, batches):
            problem = _missing_columns(columns, names)
            if problem is None:
                yield from _batch_rows(batches, shard, columns, 0, start, stop)
                return
            num_rows = sum(batch.num_rows for batch in batches)
            for row in range(start, num_rows if stop is None else min(stop, num_rows)):
                yield Row(shard, row, None, 0, problem)

    def column_names(self, url: str) -> list[str]:
        """The columns of the schema."""
        with _arrow_batches(url, ()) as (names, _):
            return names

    def pieces(self, url: str, columns: Sequence[str]) -> list[Piece] | None:
        """The record batches of a local file, by the size of the needed columns."""
        if is_remote(url):
            return None
        pieces, first = [], 0
        with _arrow_batches(url, columns) as (_, batches):
            for batch in batches:
                pieces.append(Piece(first, first + batch.num_rows, batch.nbytes))
                first += batch.num_rows
        return pieces


@dataclass(frozen=True)
class StreamingReader:
    """Anything `datasets` streams. `open_stream(url)` gives a shard's rows from the first as mappings."""

    open_stream: Callable[[str], Any]
    is_json: bool = False

    def rows(self, url: str, shard: int, columns: Sequence[str], start: int, stop: int | None) -> Iterator[Row]:
        """Rows of the shard; those before `start` are read and passed over."""
        for row, record in enumerate(self.open_stream(url)):
            if row == stop:
                return
            if row >= start:
                problem = _missing_columns(columns, list(record))
                values = () if problem else tuple(record[column] for column in columns)
                size = sum(len(value.encode()) if isinstance(value, str) else NUMBER_BYTES for value in values)
                yield Row(shard, row, None, size, problem or values)

    def column_names(self, url: str) -> list[str]:
        """The keys of the first row."""
        return list(next(iter(self.open_stream(url)), {}))

    def pieces(self, url: str, columns: Sequence[str]) -> list[Piece] | None:
        """None: a shard is read as a whole."""
        return None


def reader_of_format(name: str) -> Reader | None:
    """llmtrain's own reader of a format, by the name that `datasets` has for it; None where it has none."""
    readers: dict[str, Reader] = {
        "json": LineReader(is_json=True),
        "text": LineReader(is_json=False),
        "parquet": ParquetReader(),
        "arrow": ArrowReader(),
    }
    return readers.get(name)


def _missing_columns(columns: Sequence[str], available: Sequence[str]) -> UnusableRecord | None:
    missing = [column for column in columns if column not in available]
    if not missing:
        return None
    detail = f"has no column {names_text([repr(column) for column in missing])}"
    return UnusableRecord("no text column", f"{detail} (the columns there are: {names_text(available)})")


def _batch_rows(
    batches: Iterator[pa.RecordBatch], shard: int, columns: Sequence[str], first: int, start: int, stop: int | None
) -> Iterator[Row]:
    """The rows from `start` to `stop` of batches whose first row is number `first` of the shard."""
    for batch in batches:
        if stop is not None and first >= stop:
            return
        low, high = max(start - first, 0), batch.num_rows if stop is None else min(stop - first, batch.num_rows)
        if low < high:
            part = batch.slice(low, high - low)
            arrays = [part.column(column) for column in columns]
            sizes = [sum(sizes) for sizes in zip(*(_value_sizes(array) for array in arrays), strict=True)]
            values = zip(*(_values(array) for array in arrays), strict=True)
            for row, (size, content) in enumerate(zip(sizes, values, strict=True), first + low):
                yield Row(shard, row, None, size, content)
        first += batch.num_rows


def _values(array: pa.Array) -> list[Any]:
    """The values of a column; one that is not UTF-8 becomes an `UnusableRecord` and leaves its neighbours alone."""
    try:
        values: list[Any] = array.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in array]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return UnusableRecord("not UTF-8", f"is not UTF-8 (byte 0x{error.object[error.start]:02x} of the text)")


def _value_sizes(array: pa.Array) -> list[int]:
    """Bytes of each value of a column."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return [size or 0 for size in pc.binary_length(array).to_pylist()]
    return [NUMBER_BYTES] * len(array)


@contextmanager
def _parquet_file(url: str) -> Iterator[pq.ParquetFile]:
    if is_remote(url):
        with open_raw(url) as stream, pq.ParquetFile(stream) as file:
            yield file
    else:
        with pq.ParquetFile(url, memory_map=True) as file:
            yield file


@contextmanager
def _arrow_batches(url: str, columns: Sequence[str]) -> Iterator[tuple[list[str], Iterator[pa.RecordBatch]]]:
    """The names of all columns, and the record batches with `columns` alone."""
    source = pa.PythonFile(open_raw(url), mode="r") if is_remote(url) else pa.memory_map(url)
    with source:
        opener = pa.ipc.open_file
        try:
            names = opener(source).schema.names
        except pa.ArrowInvalid:
            opener = pa.ipc.open_stream
            source.seek(0)
            names = opener(source).schema.names
        source.seek(0)
        wanted = [index for index, name in enumerate(names) if name in columns]
        reader = opener(source, options=pa.ipc.IpcReadOptions(included_fields=wanted or [0]))
        yield names, _iterate_batches(reader)


def _iterate_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(index) for index in range(reader.num_record_batches))
    return iter(reader)
