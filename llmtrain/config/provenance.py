"""Where each value of a configuration comes from.

A value's origin is a short text: `run.yaml:12`, `command line`, `ds_config.json`, or `default`. Paths are dotted, with
list positions in brackets (`data.train[0].path`), as errors name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

COMMAND_LINE = "command line"
DEFAULT = "default"


def child_path(path: str, key: str | int) -> str:
    """The path of `key` inside `path` (which is empty for the whole file)."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def is_within(path: str, outer: str) -> bool:
    """Whether `path` is `outer` or lies inside it."""
    return path == outer or not outer or path.startswith((f"{outer}.", f"{outer}["))


def parent_paths(path: str) -> Iterator[str]:
    """`path`, then what holds it, then what holds that, without the whole file."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """All values that are no section and no list of sections, with their paths; an empty section is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, child_path(path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for position, item in enumerate(value):
            yield from leaves(item, child_path(path, position))
    else:
        yield path, value


class Provenance:
    """The origin of every value of one configuration."""

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = dict(origins)

    def origin_of(self, path: str) -> str:
        """The origin of `path`, or of the nearest section round it that has one; empty where none has."""
        return next((self._origins[outer] for outer in parent_paths(path) if outer in self._origins), "")

    def is_default(self, path: str) -> bool:
        """Whether nobody set `path`."""
        return self.origin_of(path) == DEFAULT

    def as_dict(self, resolved: Mapping[str, object] | None = None) -> dict[str, str]:
        """Path to origin. With a resolved configuration (nested dicts): of its leaves alone, in its order."""
        if resolved is None:
            return dict(self._origins)
        return {path: self.origin_of(path) for path, _ in leaves(resolved)}
