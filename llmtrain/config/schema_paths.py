"""What the schema says about a path: the keys that may stand there, and where else a key of a name stands."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llmtrain.config.provenance import child_path
from llmtrain.config.schema import Config


def section_at(path: str) -> type[BaseModel] | None:
    """The section that stands at `path` (`data.train[0]`), None where none does."""
    annotation: Any = Config
    for key in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        annotation = _inside(annotation, key)
        if annotation is None:
            return None
    return next(_sections(annotation), None)


def field_at(path: str) -> FieldInfo | None:
    """The field of a path, None where the schema has none."""
    outer, _, key = path.rpartition(".")
    section = section_at(outer)
    return section.model_fields.get(key) if section else None


def all_paths(section: type[BaseModel] = Config, path: str = "") -> Iterator[str]:
    """Every key of the schema, sections and leaves, with `[]` for a position in a list."""
    for key, field in section.model_fields.items():
        inner = child_path(path, key)
        yield inner
        for nested in _sections(field.annotation):
            yield from all_paths(nested, f"{inner}[]" if _is_listed(field.annotation) else inner)


def _arguments(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, without annotations; the annotation itself where it is none."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _arguments(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return tuple(member for argument in typing.get_args(annotation) for member in _arguments(argument))
    return (annotation,)


def _inside(annotation: Any, key: str) -> Any:
    """The annotation of what stands under a key, or a `[0]`, of a value with this annotation."""
    for member in _arguments(annotation):
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if isinstance(member, type) and issubclass(member, BaseModel) and key in member.model_fields:
            return member.model_fields[key].annotation
        if origin is list and key.startswith("["):
            return arguments[0]
        if origin is dict and not key.startswith("["):
            return arguments[1]
    return None


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in _arguments(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield member
        elif typing.get_origin(member) is list:
            yield from _sections(typing.get_args(member)[0])
            return


def _is_listed(annotation: Any) -> bool:
    return any(typing.get_origin(member) is list for member in _arguments(annotation))
