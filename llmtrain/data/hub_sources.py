"""Sources that `datasets` resolves: names on the Hugging Face hub, and folders laid out like one there.

`datasets` is asked for the builder alone: its `config.data_files` are the files of each split, globs, subsets and
revisions resolved. JSON Lines, text, Parquet and Arrow among them are read by our own readers; anything else streams
through `datasets`, a shard of its stream at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import fsspec

from llmtrain.config.schema import SourceConfig
from llmtrain.data.files import is_remote
from llmtrain.data.readers import Reader, StreamingReader, reader_of_format
from llmtrain.data.records import names_text
from llmtrain.errors import ConfigError, Problem
from llmtrain.hub import hub_unreachable_error, why_hub_is_unreachable


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: what it is called, where it is, its size in bytes (1 where it is not known)."""

    name: str
    url: str
    size: int


def resolve_dataset(config: SourceConfig, key: str, columns: Sequence[str]) -> tuple[list[SourceFile], Reader]:
    """The files of the source's split and how their `columns` are read.

    Raises `ConfigError`; `key` is the source's key.
    """
    if not os.path.isdir(config.path):
        _check_hub_name(config.path, f"{key}.path")
    builder = _load_builder(config, key)
    data_files: Mapping[Any, Sequence[str]] = builder.config.data_files or {}
    splits = [str(split) for split in data_files]
    if config.split not in splits:
        remedy = f"the splits there are: {names_text(splits)}"
        rule = "is a slice; whole splits are streamed" if "[" in config.split else "is not a split of the dataset"
        raise ConfigError(Problem(f"{key}.split", rule, remedy, value=config.split))
    urls = next(list(files) for split, files in data_files.items() if str(split) == config.split)
    file_format = type(builder).__module__.rsplit(".", 1)[-1]
    reader = reader_of_format(file_format)
    if reader is None:
        if file_format == "csv":
            _keep_text(builder, columns)
        return _streamed(builder, config, urls)
    return [SourceFile(_display_name(url, config.path), url, _size(url)) for url in urls], reader


def streaming_csv_reader(columns: Sequence[str]) -> Reader:
    """CSV files of one's own through `datasets`; `columns` stay the text that they are in the file."""

    def open_stream(url: str) -> Any:
        builder = datasets.load_dataset_builder("csv", data_files={"train": [url]})
        _keep_text(builder, columns)
        return builder.as_streaming_dataset(split="train")

    return StreamingReader(open_stream)


def _keep_text(builder: Any, columns: Sequence[str]) -> None:
    """Keep pandas from taking "007" for a number and "NA" for nothing."""
    builder.config.converters = dict.fromkeys(columns, str)
    builder.config.keep_default_na = False


def _streamed(builder: Any, config: SourceConfig, urls: Sequence[str]) -> tuple[list[SourceFile], Reader]:
    """One shard of the stream is one file, wherever `datasets` makes as many shards as there are files."""
    stream = builder.as_streaming_dataset(split=config.split)
    num_shards = stream.num_shards

    def open_stream(index: str) -> Any:
        return stream.shard(num_shards=num_shards, index=int(index))

    names = [_display_name(url, config.path) for url in urls]
    sizes = [_size(url) for url in urls]
    if num_shards != len(urls):
        names = [f"{config.path}#{index}" for index in range(num_shards)]
        sizes = [1] * num_shards
    files = [SourceFile(name, str(index), size) for index, (name, size) in enumerate(zip(names, sizes, strict=True))]
    return files, StreamingReader(open_stream)


def _check_hub_name(path: str, key: str) -> None:
    formats = "json, text, parquet, arrow or csv with data_files"
    if path.startswith(("/", ".", "~")) or path.count("/") > 1 or path.endswith("/"):
        raise ConfigError(Problem(key, "is no folder here", f"for files of your own: path: {formats}", value=path))
    why = why_hub_is_unreachable()
    if why is not None:
        remedy = f"without a network use a folder that holds the dataset's files, or path: {formats}"
        raise hub_unreachable_error(key, path, why, remedy)


def _load_builder(config: SourceConfig, key: str) -> Any:
    try:
        return datasets.load_dataset_builder(
            config.path, config.name, data_files=config.data_files, revision=config.revision
        )
    except datasets.exceptions.DatasetNotFoundError as error:
        remedy = "look at its name; a private or gated one needs a token (`hf auth login`, or HF_TOKEN)"
        raise ConfigError(Problem(f"{key}.path", f"cannot be opened ({error})", remedy, value=config.path)) from error
    except ValueError as error:
        # `datasets` names the subsets that there are in its message.
        raise ConfigError(Problem(f"{key}.name", f"cannot be used: {error}", value=config.name)) from error
    except Exception as error:  # noqa: BLE001  (what it raises differs by file system and version)
        rule = f"cannot be opened ({type(error).__name__}: {error})"
        raise ConfigError(Problem(f"{key}.path", rule, value=config.path)) from error


def _display_name(url: str, path: str) -> str:
    """`data/train-00000.parquet` for a file on the hub, `folder/data/train.jsonl` for one in the folder `path`."""
    if is_remote(url):
        _, found, name = url.partition("@")
        return name.partition("/")[2] if found and url.startswith("hf://") else url
    return os.path.join(path, os.path.relpath(url, os.path.abspath(path))) if os.path.isdir(path) else url


def _size(url: str) -> int:
    if not is_remote(url):
        return os.path.getsize(url)
    file_system, path = fsspec.core.url_to_fs(url)
    return int(file_system.info(path).get("size") or 1)
