"""Read YAML as the 1.2 core schema, with the line of every key.

`CoreLoader` is PyYAML's SafeLoader with the resolvers of YAML 1.2: `1e-4` is a number, `no`, `off` and `12:30` are
text, true and false are the only booleans. Numbers with leading zeros, NaN and infinities stay text, so that a number
field refuses them and a text field takes them as they are. PyYAML composes the nodes; this module turns them into plain
values itself, because only so it knows both lines of a repeated key and the line of every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llmtrain.config.provenance import child_path
from llmtrain.config.types import FLOAT_PATTERN, INTEGER_PATTERN, parse_number
from llmtrain.errors import ConfigError, Problem

TAG = "tag:yaml.org,2002:"
MERGE_KEY = f"{TAG}merge"


def core_resolvers() -> dict[str | None, list[tuple[str, re.Pattern[str]]]]:
    """The implicit tags of YAML 1.2's core schema, and `<<` besides, in the form that PyYAML keeps them in."""
    patterns = {
        "null": r"~|null|Null|NULL|",
        "bool": r"true|True|TRUE|false|False|FALSE",
        "int": INTEGER_PATTERN,
        "float": FLOAT_PATTERN,
        "merge": r"<<",
    }
    return {None: [(TAG + name, re.compile(rf"(?:{pattern})\Z")) for name, pattern in patterns.items()]}


class CoreLoader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's idea of a scalar."""

    yaml_implicit_resolvers = core_resolvers()


@dataclass
class Document:
    """Plain values, and the origin of each by its path."""

    data: Any
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_yaml(path: Path) -> Document:
    """A configuration file: a mapping. Raises `ConfigError` for one that is missing or no YAML."""
    text = read_text(path)
    document = load_yaml(text, str(path))
    if document.data is None:
        document.data = {}
    if not isinstance(document.data, dict):
        raise ConfigError(Problem(str(path), "does not hold a mapping of keys to values"))
    return document


def read_text(path: Path) -> str:
    """The text of a file that the user named."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(Problem(str(path), "does not exist", f"it was looked for in {Path.cwd()}")) from None
    except IsADirectoryError:
        raise ConfigError(Problem(str(path), "is a folder, not a file")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(str(path), f"is not UTF-8 text ({error.reason} at byte {error.start})")) from None
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None


def load_yaml(text: str, name: str, *, path: str = "", with_lines: bool = True) -> Document:
    """The values of a YAML text. `name` is its origin in errors; `path` the key that the text is the value of."""
    try:
        root = yaml.compose(text, Loader=CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark and with_lines else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise _invalid(path, where, what) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(path, name, str(error)) from None
    builder = _Builder(name, with_lines)
    data = builder.build(root, path) if root is not None else None
    if root is not None:
        builder.origins.setdefault(path, builder.origin(root))
    return Document(data, builder.origins, builder.problems)


def _invalid(path: str, where: str, what: str) -> ConfigError:
    """A file is its own subject; the text of an override is the value of its key."""
    if not path:
        return ConfigError(Problem(where, f"is not valid YAML: {what}"))
    remedy = f"quote it, such as {path}='\"...\"'"
    return ConfigError(Problem(path, f"has a value that is not valid YAML: {what}", remedy, origin=where))


class _Builder:
    """Turns composed nodes into plain values."""

    def __init__(self, name: str, with_lines: bool) -> None:
        self.origins: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._name = name
        self._with_lines = with_lines
        self._open: set[int] = set()

    def origin(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}" if self._with_lines else self._name

    def build(self, node: yaml.Node, path: str) -> Any:
        if id(node) in self._open:
            self._complain(node, path, "holds itself through an alias")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        self._check_tag(node, path, "map")
        result: dict[str, Any] = {}
        for key_node, value_node in self._pairs(node, path):
            inner = child_path(path, key_node.value)
            self.origins[inner] = self.origin(key_node)
            result[key_node.value] = self.build(value_node, inner)
        return result

    def _pairs(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """The keys of a mapping, then those that it merges in with `<<` and does not set itself."""
        merged: list[yaml.Node] = []
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == MERGE_KEY:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{TAG}str":
                shown = getattr(key_node, "value", "")
                self._complain(key_node, path, f"has a key that is no text: {shown}", "put the key in quotes")
            elif key_node.value in lines:
                line, second = lines[key_node.value], key_node.start_mark.line + 1
                rule = f"is set twice, in line {line} and in line {second}"
                self._complain(key_node, child_path(path, key_node.value), rule, "remove one of them")
            else:
                lines[key_node.value] = key_node.start_mark.line + 1
                yield key_node, value_node
        for source in merged:
            if not isinstance(source, yaml.MappingNode) or id(source) in self._open:
                self._complain(source, path, "merges with << what is no other mapping")
                continue
            for key_node, value_node in self._pairs(source, path):
                if key_node.value not in lines:
                    lines[key_node.value] = key_node.start_mark.line + 1
                    yield key_node, value_node

    def _sequence(self, node: yaml.SequenceNode, path: str) -> list[Any]:
        self._check_tag(node, path, "seq")
        result = []
        for position, item in enumerate(node.value):
            inner = child_path(path, position)
            self.origins[inner] = self.origin(item)
            result.append(self.build(item, inner))
        return result

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        name, text = node.tag.removeprefix(TAG), str(node.value)
        if name == "null":
            return None
        if name == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if name in ("int", "float"):
            number = parse_number(text)
            return text if number is None else number
        self._check_tag(node, path, "str")
        return text

    def _check_tag(self, node: yaml.Node, path: str, name: str) -> None:
        if node.tag != TAG + name:
            shown = node.tag.replace(TAG, "!!")
            self._complain(node, path, f"has the tag {shown}, which is not known here", "remove the tag")

    def _complain(self, node: yaml.Node, path: str, rule: str, remedy: str = "") -> None:
        self.problems.append(Problem(path, rule, remedy, origin=self.origin(node)))
