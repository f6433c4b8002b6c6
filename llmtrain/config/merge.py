"""Layers of a configuration, merged left to right: maps merge, lists and scalars replace.

A layer is a `Document`: a file, or one override of the command line. Origins are merged with the values, so the origin
of what was replaced goes with it.
"""

from __future__ import annotations

import re
from typing import Any

from llmtrain.config.provenance import COMMAND_LINE, child_path, is_within
from llmtrain.config.yaml_loader import Document, load_yaml
from llmtrain.errors import ConfigError, Problem

KEY_PATTERN = r"[^.\[\]=\s]+"
PATH_PATTERN = rf"{KEY_PATTERN}(?:\.{KEY_PATTERN}|\[\d+\])*"


def merge_layer(base: Document, layer: Document) -> None:
    """Lay a mapping over another one, in place."""
    base.problems += layer.problems
    _merge_maps(base, base.data, layer, layer.data, "")


def _merge_maps(base: Document, into: dict[str, Any], layer: Document, values: dict[str, Any], path: str) -> None:
    for key, value in values.items():
        inner = child_path(path, key)
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge_maps(base, into[key], layer, value, inner)
        else:
            into[key] = value
            replace_origins(base.origins, inner, layer.origins)


def replace_origins(origins: dict[str, str], path: str, new: dict[str, str]) -> None:
    """Forget the origins of `path` and of all within, and take those of `new`."""
    for known in [known for known in origins if is_within(known, path)]:
        del origins[known]
    origins.update({known: origin for known, origin in new.items() if is_within(known, path)})


def apply_override(base: Document, override: str) -> None:
    """Set one value by `a.b=v` or `--a.b=v`; a list position is `a.0.b` or `a[0].b`, the next free one adds an item.

    Raises `ConfigError` for what is no override or does not fit.
    """
    keys, path, text = split_override(override)
    value = load_yaml(text, COMMAND_LINE, path=path, with_lines=False)
    base.problems += value.problems
    container = base.data
    walked = ""
    for position, key in enumerate(keys):
        is_last = position == len(keys) - 1
        walked, slot = _slot(container, key, walked)
        if is_last:
            container[slot] = value.data
            replace_origins(base.origins, walked, _renamed(value.origins, path, walked))
            continue
        if not isinstance(container[slot], dict | list):
            if container[slot] is not None and isinstance(container[slot], str | int | float | bool):
                rule = f"cannot be set: {walked} is a single value there, no section"
                raise ConfigError(Problem(path, rule, origin=COMMAND_LINE))
            container[slot] = {}
            replace_origins(base.origins, walked, {walked: COMMAND_LINE})
        container = container[slot]


def split_override(override: str) -> tuple[list[str], str, str]:
    """The keys, the dotted path and the text of the value of `a.b=v` or `--a.b=v`."""
    path, equals, text = override.removeprefix("--").partition("=")
    if not equals:
        raise ConfigError(Problem(override, "is no override", f"write {path or 'key.sub'}=value", origin=COMMAND_LINE))
    if not re.fullmatch(PATH_PATTERN, path):
        raise ConfigError(Problem(override, "is no override", "write key.sub=value", origin=COMMAND_LINE))
    return re.findall(KEY_PATTERN, path), path, text


def _slot(container: Any, key: str, path: str) -> tuple[str, Any]:
    """The path and the key or position of `key` in a mapping or a list, made where it is missing."""
    if isinstance(container, dict):
        container.setdefault(key, None)
        return child_path(path, key), key
    count = len(container)
    if not key.isdecimal() or int(key) > count:
        remedy = f"its positions are 0 to {count - 1}, and {count} adds one" if count else "it is empty: 0 adds one"
        rule = f"is no position of the list {path}"
        raise ConfigError(Problem(child_path(path, key), rule, remedy, origin=COMMAND_LINE))
    if int(key) == count:
        container.append(None)
    return child_path(path, int(key)), int(key)


def _renamed(origins: dict[str, str], old: str, new: str) -> dict[str, str]:
    """Origins under the path's own spelling (`a.0` may stand for `a[0]`)."""
    return {new + path.removeprefix(old): origin for path, origin in origins.items()}
