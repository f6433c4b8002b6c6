"""The layers of the package (CONTRIBUTING.md has the table): imports point downward, heavy ones stay in their place."""

from __future__ import annotations

import ast
import graphlib

from tests.contract.source_tree import ROOT, SourceFile, library_files, report

LAYERS: dict[str, int] = {
    "__init__": 0,
    "errors": 0,
    "config": 0,
    "batching": 1,
    "schedules": 1,
    "flops": 1,
    "progress": 1,
    "meter": 1,
    "hub": 1,
    "dist": 1,
    "data": 2,
    "models": 2,
    "tasks": 2,
    "optim": 2,
    "engine": 2,
    "checkpoint": 2,
    "tracking": 2,
    "callbacks": 2,
    "evaluation": 3,
    "construction": 3,
    "trainer": 3,
    "run": 3,
    "dry_run": 3,
    "evaluate": 3,
    "verify": 3,
    "plan": 3,
    "doctor": 3,
    "supervise": 3,
    "launch": 3,
    "generate": 3,
    "cli": 4,
}

SIBLINGS: dict[tuple[str, str], str] = {
    ("tasks", "data"): "a task encodes data's Sequence",
    ("engine", "optim"): "the engine is made with its optimizer",
    ("checkpoint", "engine"): "a checkpoint reads and writes the engine's state",
    ("callbacks", "tracking"): "a callback is given the reports",
    ("config", "errors"): "every layer raises the errors",
    ("construction", "evaluation"): "the evaluation is one of the parts",
    ("trainer", "evaluation"): "the trainer evaluates, and reads the metric for the best model",
    ("trainer", "construction"): "the trainer drives the parts",
    ("run", "construction"): "a run checks and builds the parts",
    ("run", "trainer"): "a run is a trainer with a beginning and an end",
    ("evaluate", "evaluation"): "a folder is evaluated as a run evaluates itself",
    ("evaluate", "generate"): "both read an exported folder",
}
"""Which part may import which part of its own layer, and for what."""

HEAVY: dict[str, set[str]] = {
    "wandb": {"tracking"},
    "accelerate": {"tracking"},
    "datasets": {"data"},
    "deepspeed": {"dist", "optim", "engine", "checkpoint", "models"},
}
"""Packages that are imported in these parts alone."""

LIGHT = {"errors", "config", "batching", "schedules", "flops", "progress", "meter", "callbacks"}
"""Parts that import nothing heavy at all, so that the configuration and `--help` answer at once."""

EVERYTHING_HEAVY = {"torch", "transformers", "pyarrow", "fsspec", "safetensors", "tokenizers", "numpy", *HEAVY}

ENVIRONMENT_READERS = {"config", "dist"}

SPEAKERS = {
    "llmtrain.tracking.console": "the console of rank 0",
    "llmtrain.run": "a rank that fails says so on stderr, whichever it is",
}
"""Modules outside cli/ that write to the terminal, each with its reason."""

LATE_IMPORTS: dict[str, str] = {
    "llmtrain.tracking.build:_wandb": "importing wandb takes a second and changes sys.exit: only where it is used",
    "llmtrain.data.files:_zstandard_reader": "an optional extra",
    "llmtrain.engine.engine:__init__": "deepspeed takes seconds to import; its dictionary (--dry-run) needs none of it",
    "llmtrain.engine.engine:create": "as above",
    "llmtrain.engine.engine:gathered_parameters": "as above",
    "llmtrain.optim:_adamw_class": "importing an op of deepspeed looks for its compiler: only the op that is used",
    "llmtrain.optim:_lion_class": "as above",
    "llmtrain.optim:_muon": "as above",
    "llmtrain.tracking.build:_through_accelerate": "importing accelerate takes a second: only where it is used",
}
"""Imports inside functions, outside cli/, each with its reason."""


def test_every_module_has_a_place_in_the_layers() -> None:
    unknown = sorted({f"{file.where}: {file.part}" for file in library_files() if file.part not in LAYERS})
    assert not unknown, report(unknown, "not in the layer table (tests/contract/test_layers.py, CONTRIBUTING.md):")


def test_imports_point_downward() -> None:
    offenders = []
    for file in library_files():
        for imported in file.imports:
            target = _part_of(imported.module, imported.names)
            if target is None or target == file.part or file.part == "__init__":
                continue
            here, there = LAYERS.get(file.part, 99), LAYERS.get(target, 99)
            if there > here or (there == here and (file.part, target) not in SIBLINGS):
                offenders.append(f"{file.where}:{imported.line}: {file.part} ({here}) imports {target} ({there})")
    assert not offenders, report(offenders, "imports must point to a lower layer, or be listed in SIBLINGS:")


def test_no_two_siblings_know_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for user, used in SIBLINGS:
        graph.setdefault(user, set()).add(used)
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_heavy_packages_are_imported_where_they_belong() -> None:
    offenders = []
    for file in library_files():
        for imported in file.imports:
            package = imported.module.split(".")[0]
            is_misplaced = package in HEAVY and file.part not in HEAVY[package]
            is_too_heavy = package in EVERYTHING_HEAVY and file.part in LIGHT
            if is_misplaced or is_too_heavy:
                places = ", ".join(sorted(HEAVY.get(package, set()))) or "parts that are not LIGHT"
                offenders.append(f"{file.where}:{imported.line}: {package} belongs in {places}")
    assert not offenders, report(offenders, "heavy packages out of their place:")


def test_no_module_is_imported_in_a_circle() -> None:
    modules = {file.module for file in library_files()}
    graph: dict[str, set[str]] = {}
    for file in library_files():
        targets = graph.setdefault(file.module, set())
        for imported in file.imports:
            if imported.in_function or imported.for_types_only:
                continue
            candidates = {imported.module, *(f"{imported.module}.{name}" for name in imported.names)}
            # `from package import module` names the module; the package's own __init__ is then no dependency.
            submodules = {name for name in candidates if name in modules and name != imported.module}
            targets |= (submodules or candidates & modules) - {file.module}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which shows the circle


def test_imports_stand_at_the_top_of_the_file() -> None:
    offenders, used = [], set()
    for file in library_files():
        for imported in file.imports:
            key = f"{file.module}:{imported.in_function}"
            used.add(key)
            if imported.in_function and file.part != "cli" and key not in LATE_IMPORTS:
                offenders.append(f"{file.where}:{imported.line}: import of {imported.module} inside {key}")
    assert not offenders, report(offenders, "imports inside functions need a reason in LATE_IMPORTS:")
    assert set(LATE_IMPORTS) <= used, report(sorted(set(LATE_IMPORTS) - used), "no longer there, strike them:")


def test_the_environment_is_read_in_config_and_dist_alone() -> None:
    offenders = [
        f"{file.where}:{node.lineno}: {ast.unparse(node)}"
        for file in library_files()
        if file.part not in ENVIRONMENT_READERS
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv", "environb", "putenv")
        and ast.unparse(node.value) == "os"
    ]
    assert not offenders, report(offenders, "the environment is read and written in config/ and dist/ alone:")


def test_the_library_neither_prints_nor_exits() -> None:
    forbidden = {"print", "exit", "quit", "input", "breakpoint", "sys.exit"}
    offenders = [
        f"{file.where}:{node.lineno}: {ast.unparse(node.func)}()"
        for file in library_files()
        if file.part != "cli" and file.module not in SPEAKERS
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden
    ]
    assert not offenders, report(offenders, "only cli/ and SPEAKERS talk to people:")


def test_importing_a_module_does_nothing() -> None:
    allowed = (
        ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
    )
    offenders = []
    for file in library_files():
        for node in file.tree.body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            is_main = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
            if not (isinstance(node, allowed) or is_text or is_for_types or is_main):
                offenders.append(f"{file.where}:{node.lineno}: {ast.unparse(node).splitlines()[0]}")
    assert not offenders, report(offenders, "a module's top level holds definitions only:")


def test_no_function_changes_a_global() -> None:
    offenders = [
        f"{file.where}:{node.lineno}: global {', '.join(node.names)}"
        for file in library_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Global)
    ]
    assert not offenders, report(offenders, "no module globals:")


def _part_of(module: str, names: tuple[str, ...]) -> str | None:
    """The part of llmtrain that an import reaches; None for another package."""
    parts = module.split(".")
    if parts[0] != "llmtrain":
        return None
    if len(parts) > 1:
        return parts[1]
    return next((name for name in names if name in LAYERS), "__init__")


def test_the_checks_see_what_they_should() -> None:
    """The reader of imports itself: functions, type checking and relative imports are told apart."""
    file = next(file for file in library_files() if file.module == "llmtrain.tracking.build")
    late = [imported for imported in file.imports if imported.in_function == "_wandb"]
    assert [(imported.module, imported.names) for imported in late] == [
        ("llmtrain.tracking.wandb_tracker", ("WandbTracker", "choose_mode"))
    ]
    assert _part_of("llmtrain", ("errors",)) == "errors"
    assert _part_of("torch.nn", ()) is None
    assert isinstance(file, SourceFile)


def test_the_table_for_readers_is_this_one() -> None:
    """CONTRIBUTING.md names each part that exists in the row of its layer."""
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    rows = {int(line[2]): line.split("|")[2] for line in lines if line.startswith("| ") and line[2].isdigit()}
    parts = {file.part for file in library_files()} - {"__init__"}
    missing = [
        f"{part} in row {LAYERS[part]}" for part in sorted(parts & set(LAYERS)) if f"`{part}" not in rows[LAYERS[part]]
    ]
    assert not missing, report(missing, "CONTRIBUTING.md's layer table lacks:")
