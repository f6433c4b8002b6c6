"""Records: what a shard holds, and how one becomes a document's text.

A reader yields `Row`s: physical records with their number and their raw content, cheap to make, for most of the rows
that a rank reads may belong to another rank. `TextFormat` turns the content of one into text. Text stays text: nothing
is guessed, converted or repaired, and a record that is not what it should be is an `UnusableRecord` with a kind (for
the counts) and a detail (for the message).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, NamedTuple

from llmtrain.config.schema import SourceConfig
from llmtrain.errors import BadRecordError, ConfigError, Problem

MAX_NAMES_SHOWN = 20


class UnusableRecord(Exception):  # noqa: N818  (becomes a BadRecordError where the run is to end on it)
    """A record that is no document. `kind` is one of a few words that are counted by; `detail` says what is wrong."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Row(NamedTuple):
    """A physical record of a shard.

    `content` is the raw line (JSON Lines, text), the values of the needed columns (columnar formats; an
    `UnusableRecord` for one that cannot be read), or what makes the whole record unusable.
    `size` is its raw size in bytes, by which rows are dealt to lanes.
    """

    shard: int
    row: int
    line: int | None
    size: int
    content: bytes | tuple[Any, ...] | UnusableRecord


def bad_record_error(shard_name: str, row: Row, problem: UnusableRecord) -> BadRecordError:
    """The error for a record: names the file, the line (from 1) or in other formats the row (from 0), the reason."""
    where = f"row {row.row}" if row.line is None else f"line {row.line}"
    return BadRecordError(
        f"{shard_name}: {where}: {problem.detail}; mend it, or set data.on_bad_record=skip to leave such records out"
    )


def names_text(names: Sequence[str]) -> str:
    """Names for a message, a long list cut short."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN]) or "none"
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown}, … ({len(names)} in all)"


@dataclass(frozen=True)
class TextFormat:
    """How the values of a source's columns become text: one column as it is, or a template over several.

    `pieces` are (literal text, column) pairs of the template; None for a single column.
    """

    columns: tuple[str, ...]
    pieces: tuple[tuple[str, str | None], ...] | None = None

    @classmethod
    def from_config(cls, source: SourceConfig, path: str) -> TextFormat:
        """Raises `ConfigError` for a template that is none; `path` is the source's key."""
        if source.template is None:
            return cls((source.text_column,))
        pieces = _parse_template(source.template, f"{path}.template")
        columns = tuple(dict.fromkeys(column for _, column in pieces if column is not None))
        return cls(columns, pieces)

    def text(self, content: bytes | tuple[Any, ...] | UnusableRecord, *, is_json: bool) -> str | None:
        """The document's text; None where it is null or empty. Raises `UnusableRecord`."""
        if isinstance(content, UnusableRecord):
            raise content
        if isinstance(content, tuple):
            return self._from_values(content)
        line = _decoded(content)
        return self._from_values(self._json_values(line)) if is_json else self._from_values((line,))

    def missing(self, available: Sequence[str]) -> list[str]:
        """The columns that are needed and not there."""
        return [column for column in self.columns if column not in available]

    def _json_values(self, line: str) -> tuple[Any, ...]:
        record = parse_json_record(line)
        try:
            return tuple([record[column] for column in self.columns])
        except KeyError as error:
            there = names_text(list(record))
            detail = f"has no column {error.args[0]!r} (the columns there are: {there})"
            raise UnusableRecord("no text column", detail) from None

    def _from_values(self, values: tuple[Any, ...]) -> str | None:
        if self.pieces is None:
            return _checked_text(values[0], self.columns[0])
        by_column = dict(zip(self.columns, values, strict=True))
        if all(value is None or value == "" for value in values):
            return None
        rendered = [
            literal + (_rendered(by_column[column], column) if column is not None else "")
            for literal, column in self.pieces
        ]
        return "".join(rendered) or None


def parse_json_record(line: str) -> Mapping[str, Any]:
    """The JSON object that a line holds. Raises `UnusableRecord`."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise UnusableRecord("not JSON", "is nested too deeply to be read") from None
    except ValueError as error:
        reason = str(error).replace("line 1 column", "column")
        raise UnusableRecord("not JSON", f"is not JSON ({reason}): {_excerpt(line)}") from None
    if not isinstance(record, dict):
        detail = f"is not a JSON object but {_json_type(record)}: {_excerpt(line)}"
        if isinstance(record, list):
            detail += " (JSON Lines has one object a line; `jq -c '.[]'` makes it from an array)"
        raise UnusableRecord("not a JSON object", detail)
    return record


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"is not UTF-8 (byte 0x{content[error.start]:02x} at position {error.start} of the line)"
        raise UnusableRecord("not UTF-8", detail) from None


def _checked_text(value: Any, column: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, UnusableRecord):
        raise value
    if not isinstance(value, str):
        detail = f"column {column!r} holds {_json_type(value)}, not text: {_excerpt(repr(value))}"
        raise UnusableRecord("not text", detail)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = f"\\u{ord(value[error.start]):04x}"
            detail = (
                f"column {column!r} holds a lone surrogate ({surrogate} at character {error.start}), which is no text"
            )
            raise UnusableRecord("lone surrogate", detail) from None
    return value


def _rendered(value: Any, column: str) -> str:
    """A value inside a template: text, or a number as it is written; null is the empty text."""
    if isinstance(value, bool | list | dict):
        detail = f"column {column!r} holds {_json_type(value)}, which a template cannot take: {_excerpt(repr(value))}"
        raise UnusableRecord("not text", detail)
    if isinstance(value, int | float):
        return str(value)
    return _checked_text(value, column) or ""


def _parse_template(template: str, path: str) -> tuple[tuple[str, str | None], ...]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        remedy = "columns stand in braces: '{title}\\n{body}'; a brace itself is doubled: '{{'"
        raise ConfigError(Problem(path, f"is not a template ({error})", remedy, value=template)) from None
    pieces: list[tuple[str, str | None]] = []
    for literal, column, spec, conversion in parsed:
        if column is not None and (not column or spec or conversion):
            rule = "may hold plain column names in its braces alone"
            raise ConfigError(Problem(path, rule, "such as '{title}\\n{body}'", value=template))
        pieces.append((literal, column))
    if all(column is None for _, column in pieces):
        raise ConfigError(Problem(path, "names no column", "such as '{title}\\n{body}'", value=template))
    return tuple(pieces)


def _json_type(value: Any) -> str:
    for types, name in ((bool, "a boolean"), (int | float, "a number"), (list, "a list"), (dict, "an object")):
        if isinstance(value, types):
            return name
    return {str: "a string", type(None): "null"}.get(type(value), f"a {type(value).__name__}")


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
