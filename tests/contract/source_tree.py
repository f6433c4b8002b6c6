"""The repository's Python files as syntax trees, for the tests of its habits. Nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, the names taken from it, and where."""

    module: str
    names: tuple[str, ...]
    line: int
    in_function: str
    """Name of the function that holds the import; empty at the top of a file."""
    for_types_only: bool


@dataclass(frozen=True)
class SourceFile:
    """A Python file of the repository."""

    path: Path

    @property
    def where(self) -> str:
        """The path from the root, for messages."""
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        """The dotted name."""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def part(self) -> str:
        """The module of DESIGN's layer table that the file belongs to: `engine` for llmtrain/engine/config.py."""
        return self.module.split(".")[1] if "." in self.module else "__init__"

    @cached_property
    def text(self) -> str:
        """The content."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, wherever it stands."""
        return list(self._imports_in(self.tree, "", False))

    def _imports_in(self, node: ast.AST, function: str, types_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, (), child.lineno, function, types_only)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                yield Import(self._absolute(child), names, child.lineno, function, types_only)
            else:
                inner = child.name if isinstance(child, FunctionNode) else function
                guarded = types_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
                yield from self._imports_in(child, inner, guarded)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.module.split(".")
        package = package if self.path.name == "__init__.py" else package[:-1]
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def library_files() -> list[SourceFile]:
    """The files of the package."""
    return _files_under("llmtrain")


def script_files() -> list[SourceFile]:
    """The Python scripts."""
    return _files_under("scripts")


def sources_of_tests() -> list[SourceFile]:
    """The tests."""
    return _files_under("tests")


@cache
def _files_under(folder: str) -> list[SourceFile]:
    return [SourceFile(path) for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]


def report(offenders: list[str], rule: str) -> str:
    """The message of a failed contract."""
    return "\n".join([rule, *(f"  {offender}" for offender in offenders)])
