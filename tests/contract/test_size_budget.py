"""Files of 100 to 300 lines and functions of 5 to 40 are the aim; these are the caps."""

from __future__ import annotations

import ast

from tests.contract.source_tree import FunctionNode, library_files, report, script_files

FILE_LINES = 400
FUNCTION_LINES = 60


def test_no_file_is_longer_than_its_cap() -> None:
    offenders = []
    for file in [*library_files(), *script_files()]:
        lines = len(file.text.splitlines())
        if lines > FILE_LINES:
            offenders.append(f"{file.where}: {lines} lines")
    assert not offenders, report(offenders, f"files of more than {FILE_LINES} lines:")


def test_no_function_is_longer_than_its_cap() -> None:
    offenders = []
    for file in [*library_files(), *script_files()]:
        for node in ast.walk(file.tree):
            if isinstance(node, FunctionNode):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    offenders.append(f"{file.where}:{node.lineno}: {node.name} has {lines} lines")
    assert not offenders, report(offenders, f"functions of more than {FUNCTION_LINES} lines:")
