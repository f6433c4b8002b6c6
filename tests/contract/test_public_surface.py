"""What users may import, pinned: a name that appears or disappears does so on purpose. All else may change freely.

`public_names.txt` holds the names, one `module: name, name …` a line, in order. After a change that is meant, write it
anew and look at the difference before committing:

    python -m tests.contract.test_public_surface
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from tests.contract.source_tree import SourceFile, library_files

PUBLIC = {
    "llmtrain.callbacks",
    "llmtrain.config",
    "llmtrain.config.schema",
    "llmtrain.engine",
    "llmtrain.errors",
    "llmtrain.models",
    "llmtrain.progress",
    "llmtrain.run",
    "llmtrain.tasks",
    "llmtrain.tracking.reports",
    "llmtrain.trainer",
}
PINNED = Path(__file__).with_name("public_names.txt")


def test_the_public_surface_is_the_pinned_one() -> None:
    pinned, current = PINNED.read_text().splitlines(), surface()
    difference = list(difflib.unified_diff(pinned, current, "pinned", "now", lineterm="", n=0))
    assert not difference, "\n".join([*difference, "meant? python -m tests.contract.test_public_surface"])


def test_what_a_package_exports_exists() -> None:
    modules = {file.module: file for file in library_files()}
    missing = []
    for file in modules.values():
        exported = _declared(file)
        available = {name for imported in file.imports for name in imported.names} | set(_defined(file))
        missing += [f"{file.where}: {name}" for name in exported or () if name not in available]
    assert not missing, missing


def surface() -> list[str]:
    """`module: names` for each public module."""
    lines = []
    for file in library_files():
        if file.module not in PUBLIC:
            continue
        declared = _declared(file)
        names = _defined(file) if declared is None else declared
        if names:
            lines.append(f"{file.module}: {', '.join(sorted(names))}")
    return lines


def _declared(file: SourceFile) -> list[str] | None:
    """`__all__`, where there is one."""
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def _defined(file: SourceFile) -> list[str]:
    """Public classes, functions and constants that the file itself defines."""
    names = []
    for node in file.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in names if not name.startswith("_")]


if __name__ == "__main__":
    PINNED.write_text("\n".join(surface()) + "\n")
