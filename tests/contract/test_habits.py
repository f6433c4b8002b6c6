"""Small habits that a reader can count on, checked over the whole repository."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.source_tree import ROOT, FunctionNode, library_files, report, script_files, sources_of_tests

TEXT_ENDINGS = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".json", ".cfg", ".ini", ""}
FORBIDDEN_TEXT: dict[str, re.Pattern[str]] = {
    "an absolute path of somebody's machine": re.compile(r"(?<![\w.])/(?:home|work|root|Users)/\w"),
    "a package registry's host": re.compile(r"(?:pypi\.org|pythonhosted|index-url|download\.pytorch\.org)"),
    "an unfinished note": re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"),
}
THIS_FILE = Path(__file__).resolve()


def repository_files() -> list[Path]:
    """What git would commit: tracked files and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_no_file_holds(what: str) -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        if path.suffix in TEXT_ENDINGS and path.resolve() != THIS_FILE
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FORBIDDEN_TEXT[what].search(line)
    ]
    assert not offenders, report(offenders, f"lines with {what}:")


def test_no_large_file_is_in_the_repository() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes"
        for path in repository_files()
        if path.stat().st_size > 500_000
    ]
    assert not offenders, report(offenders, "files of more than 500 kB:")


def test_every_module_begins_with_a_docstring_and_future_annotations() -> None:
    offenders = []
    for file in [*library_files(), *sources_of_tests()]:
        if not file.text.strip() and file.path.name == "__init__.py" and file.path.is_relative_to(ROOT / "tests"):
            continue
        if not ast.get_docstring(file.tree):
            offenders.append(f"{file.where}:1: no docstring")
        if _has_annotations(file.tree) and "from __future__ import annotations" not in file.text:
            offenders.append(f"{file.where}:1: no `from __future__ import annotations`")
    assert not offenders, report(offenders, "modules without their head:")


def test_everything_public_has_a_docstring() -> None:
    offenders = [
        f"{file.where}:{node.lineno}: {name}"
        for file in [*library_files(), *script_files()]
        for name, node in _public_definitions(file.tree, "")
        if not ast.get_docstring(node)
    ]
    assert not offenders, report(offenders, "public classes and functions without a docstring:")


def test_every_test_asserts_something() -> None:
    checking = _functions_that_can_fail()
    offenders = [
        f"{file.where}:{node.lineno}: {node.name}"
        for file in sources_of_tests()
        if file.path.name.startswith("test_")
        for node in ast.walk(file.tree)
        if isinstance(node, FunctionNode) and node.name.startswith("test_") and node.name not in checking
    ]
    assert not offenders, report(offenders, "tests without an assertion:")


def test_every_argument_is_typed() -> None:
    """mypy checks the library; this holds for the tests and scripts too."""
    offenders = []
    for file in [*sources_of_tests(), *script_files()]:
        for node in ast.walk(file.tree):
            if isinstance(node, FunctionNode):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
                if bare or (node.returns is None and node.name != "__init__"):
                    offenders.append(f"{file.where}:{node.lineno}: {node.name}({', '.join(bare)})")
    assert not offenders, report(offenders, "functions without type hints:")


def test_the_licence_is_there_and_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_checks_before_a_commit_are_those_of_the_script() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"], "no hook comes from elsewhere"
    script = (ROOT / "scripts" / "check.sh").read_text()
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].removeprefix(".venv/bin/")
        assert tool.split()[0] in script, f"{hook['id']} is not in scripts/check.sh"


def _has_annotations(tree: ast.Module) -> bool:
    return any(isinstance(node, FunctionNode | ast.AnnAssign) for node in ast.walk(tree))


def _public_definitions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """What has no leading underscore; methods of a class with a base (a Protocol, too) inherit or need no words."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | FunctionNode) and not child.name.startswith("_"):
            is_overload = any("overload" in ast.unparse(decorator) for decorator in child.decorator_list)
            if not is_overload:
                yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef) and not child.bases:
                yield from _public_definitions(child, f"{prefix}{child.name}.")


def _functions_that_can_fail() -> set[str]:
    """Names of the tests' functions that hold an assertion, or call one that does."""
    bodies: dict[str, list[ast.AST]] = {}
    for file in sources_of_tests():
        for node in ast.walk(file.tree):
            if isinstance(node, FunctionNode):
                bodies.setdefault(node.name, []).append(node)
    checking = {name for name, nodes in bodies.items() if any(_asserts(node) for node in nodes)}
    calls = {name: {called for node in nodes for called in _called(node)} for name, nodes in bodies.items()}
    while more := {name for name in bodies if name not in checking and calls[name] & checking}:
        checking |= more
    return checking


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node)) or bool(
        _called(node) & {"raises", "fail", "static_order", "assert_close", "assert_allclose"}
    )


def _called(node: ast.AST) -> set[str]:
    """The last parts of the names of what is called: `raises` for pytest.raises(…)."""
    functions = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return {
        f.attr if isinstance(f, ast.Attribute) else f.id for f in functions if isinstance(f, ast.Attribute | ast.Name)
    }
