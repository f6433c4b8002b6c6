"""From the sources of a configuration to shards that can be read.

`resolve_sources` lists the files of every source, in order, and looks at the first records of each, so that what a
user must mend is said before anything is built, all of it at once. Local files are found by globs of our own; folders
and names on the hub are resolved by `datasets` (`hub_sources.py`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import fsspec
import pyarrow as pa

from llmtrain.config.schema import DataConfig, SourceConfig
from llmtrain.data.files import is_remote
from llmtrain.data.hub_sources import resolve_dataset, streaming_csv_reader
from llmtrain.data.readers import Piece, Reader, reader_of_format
from llmtrain.data.records import Row, TextFormat, UnusableRecord, bad_record_error, names_text
from llmtrain.errors import BadRecordError, ConfigError, DataError, HubUnreachableError, Problem

LOCAL_FORMATS = ("json", "text", "parquet", "arrow", "csv")
PREVIEW_ROWS = 100
"""Records of each source that are looked at before the start."""


@dataclass(frozen=True)
class Shard:
    """One file of a source. `name` is what messages, traces and fingerprints call it: relative, as configured."""

    source: int
    name: str
    url: str
    size: int
    reader: Reader
    text_format: TextFormat

    def rows(self, number: int, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Its rows from `start` to `stop`, numbered as shard `number`. Raises `DataError` where it cannot be read."""
        row = start
        try:
            for record in self.reader.rows(self.url, number, self.text_format.columns, start, stop):
                row = record.row + 1
                yield record
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.name} cannot be read from row {row} on: {_reason(error)}") from error

    def text(self, row: Row) -> str | None:
        """The text of one of its rows; None where it is null or empty. Raises `UnusableRecord`."""
        return self.text_format.text(row.content, is_json=self.reader.is_json)

    def pieces(self) -> list[Piece] | None:
        """What it is made of and can be read alone, None where it is read as a whole."""
        try:
            return self.reader.pieces(self.url, self.text_format.columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.name} cannot be read: {_reason(error)}") from error


@dataclass(frozen=True)
class Source:
    """A source with its files; `key` is its place in the configuration (`data.train[0]`)."""

    index: int
    key: str
    config: SourceConfig
    shards: tuple[Shard, ...]


def resolve_sources(configs: Sequence[SourceConfig], data: DataConfig, key: str) -> list[Source]:
    """The sources with their files, each looked at.

    Raises:
        ConfigError: whatever is wrong with any of them (`HubUnreachableError` where it is only that).
        BadRecordError: one of the first records cannot be used, and `data.on_bad_record` is error.
    """
    sources: list[Source] = []
    problems: list[Problem] = []
    hub_errors: list[Problem] = []
    for index, config in enumerate(configs):
        source_key = f"{key}[{index}]"
        try:
            source = Source(index, source_key, config, _resolve_shards(config, source_key, index))
            _check_first_records(source, skip_bad=data.on_bad_record == "skip")
            sources.append(source)
        except HubUnreachableError as error:
            hub_errors += error.problems
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError([*problems, *hub_errors])
    if hub_errors:
        raise HubUnreachableError(hub_errors)
    return sources


def _resolve_shards(config: SourceConfig, key: str, index: int) -> tuple[Shard, ...]:
    text_format = TextFormat.from_config(config, key)
    if config.path not in LOCAL_FORMATS:
        files, reader = resolve_dataset(config, key, text_format.columns)
        return tuple(Shard(index, file.name, file.url, file.size, reader, text_format) for file in files)
    if config.split != "train":
        rule, remedy = "is not a split of files of one's own", "their only split is train"
        raise ConfigError(Problem(f"{key}.split", rule, remedy, value=config.split))
    reader = _local_reader(config.path, text_format)
    return tuple(Shard(index, name, name, size, reader, text_format) for name, size in _list_files(config, key))


def _local_reader(path: str, text_format: TextFormat) -> Reader:
    return reader_of_format(path) or streaming_csv_reader(text_format.columns)


def _list_files(config: SourceConfig, key: str) -> list[tuple[str, int]]:
    """(name, size) of every file that `data_files` names, in its order, a glob's files by name, none twice."""
    key = f"{key}.data_files"
    if not config.data_files:
        rule = f"is needed for path: {config.path}"
        raise ConfigError(Problem(key, rule, "such as data_files: my-data/*.jsonl", value=config.data_files))
    patterns = [config.data_files] if isinstance(config.data_files, str) else config.data_files
    files: dict[str, int] = {}
    problems: list[Problem] = []
    for pattern in patterns:
        try:
            files.update(_remote_files(pattern, key) if is_remote(pattern) else _local_files(pattern, key))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return list(files.items())


def _local_files(pattern: str, key: str) -> dict[str, int]:
    expanded = os.path.expanduser(pattern)
    if os.path.isfile(expanded):
        return {expanded: os.path.getsize(expanded)}
    if os.path.isdir(expanded):
        raise ConfigError(Problem(key, "is a folder", f"name its files: {pattern.rstrip('/')}/*.jsonl", value=pattern))
    if not glob.has_magic(expanded):
        where = f"the working directory is {os.getcwd()}" if not os.path.isabs(expanded) else ""
        raise ConfigError(Problem(key, "does not exist", where, value=pattern))
    files = {
        name: os.path.getsize(name) for name in sorted(glob.glob(expanded, recursive=True)) if os.path.isfile(name)
    }
    if not files:
        where = f"the working directory is {os.getcwd()}" if not os.path.isabs(expanded) else ""
        raise ConfigError(Problem(key, "matches no file", where, value=pattern))
    return files


def _remote_files(pattern: str, key: str) -> dict[str, int]:
    try:
        file_system, path = fsspec.core.url_to_fs(pattern)
        paths = sorted(file_system.glob(path)) if glob.has_magic(path) else [path]
        infos = {file_system.unstrip_protocol(name): file_system.info(name) for name in paths}
    except ImportError as error:
        raise ConfigError(Problem(key, f"needs a package: {error}", value=pattern)) from None
    except Exception as error:  # noqa: BLE001  (each file system raises its own)
        raise ConfigError(Problem(key, f"cannot be listed ({_reason(error)})", value=pattern)) from error
    files = {url: int(info.get("size") or 1) for url, info in infos.items() if info.get("type") != "directory"}
    if not files:
        raise ConfigError(Problem(key, "matches no file", value=pattern))
    return files


def _check_first_records(source: Source, *, skip_bad: bool) -> None:
    """Look whether the source has records, and whether they hold text where the configuration says so."""
    files_key = f"{source.key}.data_files" if source.config.data_files else f"{source.key}.path"
    files_value = source.config.data_files or source.config.path
    num_rows = 0
    first_bad: tuple[Shard, Row, UnusableRecord] | None = None
    try:
        for shard, row in _first_rows(source):
            num_rows += 1
            try:
                if shard.text(row) is not None:
                    break
            except UnusableRecord as problem:
                first_bad = first_bad or (shard, row, problem)
        else:
            if first_bad is not None:
                _raise_for_columns(source, *first_bad)
    except BadRecordError:
        raise
    except DataError as error:
        raise ConfigError(Problem(files_key, f"cannot be used: {error}", value=files_value)) from error
    if not num_rows:
        raise ConfigError(
            Problem(files_key, "holds no row at all", "look whether its files are empty", value=files_value)
        )
    if first_bad is not None and not skip_bad:
        bad_shard, bad_row, reason = first_bad
        raise bad_record_error(bad_shard.name, bad_row, reason)


def _first_rows(source: Source) -> Iterator[tuple[Shard, Row]]:
    num_rows = 0
    for number, shard in enumerate(source.shards):
        for row in shard.rows(number):
            yield shard, row
            num_rows += 1
            if num_rows == PREVIEW_ROWS:
                return


def _raise_for_columns(source: Source, shard: Shard, row: Row, problem: UnusableRecord) -> None:
    """None of the first records has a text: the configuration's fault where the column is not there, or no text."""
    key = f"{source.key}.template" if source.config.template else f"{source.key}.text_column"
    value = source.config.template or source.config.text_column
    if problem.kind == "no text column":
        columns = shard.reader.column_names(shard.url)
        missing = names_text(shard.text_format.missing(columns))
        rule = (
            f"names no column of {shard.name}"
            if not source.config.template
            else f"names {missing}, no column of {shard.name}"
        )
        raise ConfigError(Problem(key, rule, f"the columns there are: {names_text(columns)}", value=value))
    if problem.kind == "not text":
        raise ConfigError(Problem(key, f"is no text in {shard.name}: row {row.row}: {problem.detail}", value=value))


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
