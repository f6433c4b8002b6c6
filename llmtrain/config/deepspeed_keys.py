"""Check the `deepspeed:` block, at every depth, without DeepSpeed.

`deepspeed_keys.json` lists every key that DeepSpeed reads, with types and limits; `scripts/generate_deepspeed_keys.py`
makes it from DeepSpeed itself. The check is stricter than DeepSpeed's, which ignores unknown keys in many sections and
reads `stage: "2"` and `stage: true` as numbers; here unknown keys and numbers in quotes are refused everywhere.
What llmtrain decides itself (`OWNED_KEYS`) is refused with the key to use.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtrain.config.provenance import child_path
from llmtrain.config.schema_paths import all_paths
from llmtrain.config.suggest import listed, nearest
from llmtrain.config.types import parse_number
from llmtrain.errors import ABSENT, Problem

Node = dict[str, Any]

OWNED_KEYS = {
    "train_batch_size": "batch.global_batch_size",
    "train_micro_batch_size_per_gpu": "batch.per_device_train_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "gradient_clipping": "optimizer.max_grad_norm",
    "optimizer": "optimizer.name, optimizer.learning_rate and the other keys of optimizer",
    "scheduler": "schedule.lr_scheduler_type and the other keys of schedule",
    "fp16.enabled": "precision: fp16",
    "bf16.enabled": "precision: bf16",
}
"""DeepSpeed's keys that llmtrain sets itself, and what decides them here."""

REMOVED_INSTEAD = {
    "elasticity": "set the numbers under batch; a checkpoint resumes on any number of ranks as it is",
    "amp": "set precision: bf16 or fp16",
}
"""Our own remedy for removed keys, where DeepSpeed's names keys that llmtrain owns."""

AUTO = "auto"


@dataclass
class CheckedBlock:
    """The block with its numbers in their right types and without what is wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def load_table() -> Node:
    """The table of DeepSpeed's keys."""
    table: Node = json.loads(Path(__file__).with_name("deepspeed_keys.json").read_text(encoding="utf-8"))
    return table


def check_block(block: Any, table: Node) -> CheckedBlock:
    """Check a `deepspeed:` block, a mapping that is already read."""
    checked = CheckedBlock()
    if isinstance(block, dict):
        checked.values = _section(table, block, "deepspeed", table, checked.problems)
    else:
        rule = "must be a mapping of DeepSpeed's keys, or the path of a ds_config JSON"
        checked.problems.append(Problem("deepspeed", rule, value=block))
    return checked


def known_name(key: str, node: Node) -> str | None:
    """The table's name of a key of a section, which may be written as its alias; None for an unknown key."""
    keys: Node = node.get("keys", {})
    if key in keys:
        return key
    return next((name for name, inner in keys.items() if inner.get("alias") == key), None)


def allows_auto(node: Node) -> bool:
    """Whether "auto" is a value that DeepSpeed itself knows for this key."""
    members = node.get("any_of", [node])
    return bool(node.get("auto")) or any(AUTO in member.get("choices", ()) for member in members)


def _section(node: Node, values: dict[str, Any], path: str, table: Node, problems: list[Problem]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for key, value in values.items():
        inner_path = child_path(path, key)
        name = known_name(key, node)
        problem = _key_problem(key, name, node, inner_path, value, table)
        if problem is None and name in spelt:
            problem = Problem(inner_path, f"is the same key as {child_path(path, spelt[name])}", "remove one of them")
        if problem is not None or name is None:
            problems.append(problem or Problem(inner_path, "is not a known key"))
            continue
        spelt[name] = key
        count = len(problems)
        checked = _value(node["keys"][name], value, inner_path, table, problems)
        if len(problems) == count or isinstance(checked, dict):
            result[key] = checked
    return result


def _key_problem(key: str, name: str | None, node: Node, path: str, value: Any, table: Node) -> Problem | None:
    """What is wrong with a key whatever its value."""
    relative = path.removeprefix("deepspeed.")
    shown = value if isinstance(value, str | int | float | bool) else ABSENT
    if relative in OWNED_KEYS:
        return Problem(path, "is decided by llmtrain", f"use {OWNED_KEYS[relative]}", value=shown)
    removed = node.get("removed", {}).get(key)
    if removed is not None:
        instead = REMOVED_INSTEAD.get(key)
        words = removed.partition(". ")[0] if instead else removed
        return Problem(path, f"is gone from DeepSpeed: {words.rstrip('.')}", instead or "remove it", value=shown)
    if name is None:
        return Problem(path, "is not a key that DeepSpeed reads", _remedy(key, node, path, table), value=shown)
    deprecated = node["keys"][name].get("deprecated")
    if deprecated is not None:
        return Problem(path, "is DeepSpeed's old name", f"use {_sibling(path, deprecated)}", value=shown)
    return None


def _remedy(key: str, node: Node, path: str, table: Node) -> str:
    """What to write in the place of an unknown key, or of a misspelt one that llmtrain owns."""
    keys: Node = node.get("keys", {})
    names = [*keys, *(inner["alias"] for inner in keys.values() if "alias" in inner)]
    close = nearest(key, names, cutoff=0.8)
    meant = _sibling(path, close) if close else _elsewhere(key, table)
    if not meant:
        close = nearest(key, names)
        meant = _sibling(path, close) if close else ""
    owner = OWNED_KEYS.get(meant.removeprefix("deepspeed."))
    if owner:
        return f"did you mean {meant}? llmtrain decides it: use {owner}"
    if meant:
        return f"did you mean {meant}?"
    return f"the keys here are {listed(keys)}" if keys and len(keys) <= 20 else "see DeepSpeed's documentation"


def _elsewhere(key: str, table: Node) -> str:
    """A place with exactly this name, in DeepSpeed's table or in our own schema."""
    places = [path for path in _table_paths(table, "deepspeed") if path.rpartition(".")[2] == key]
    places += [path for path in all_paths() if path.rpartition(".")[2] == key]
    return " or ".join(places) if len(places) <= 3 else ""


def _table_paths(node: Node, path: str) -> Iterator[str]:
    for name, inner in node.get("keys", {}).items():
        yield child_path(path, name)
        if "alias" in inner:
            yield child_path(path, inner["alias"])
        yield from _table_paths(inner, child_path(path, name))


def _sibling(path: str, key: str) -> str:
    return child_path(path.rpartition(".")[0], key)


def _value(node: Node, value: Any, path: str, table: Node, problems: list[Problem]) -> Any:
    """The value in its right type; what is wrong with it goes to `problems`."""
    if value == AUTO and not allows_auto(node):
        rule = 'is left to be filled in ("auto"), which Hugging Face\'s Trainer does and llmtrain does not'
        problems.append(Problem(path, rule, "write the value, or leave the key out for DeepSpeed's default"))
    elif value is None and node["type"] != "any":
        if not node.get("nullable"):
            problems.append(Problem(path, "must not be null", "leave the key out for DeepSpeed's default"))
    elif node["type"] == "map" and isinstance(value, dict):
        return _section(node, value, path, table, problems) if "keys" in node else value
    else:
        value, rule = _plain(node, value)
        if rule:
            problems.append(Problem(path, rule, _number_remedy(node, value), value=value))
    return value


def _number_remedy(node: Node, value: Any) -> str:
    is_quoted = isinstance(value, str) and parse_number(value) is not None
    return "remove the quotes" if is_quoted and node["type"] in ("int", "float") else ""


def _plain(node: Node, value: Any) -> tuple[Any, str]:
    """A value that is no section, in its right type, and the rule that it breaks (empty where it breaks none)."""
    kind = node["type"]
    if kind == "union":
        results = [_plain(member, value) for member in node["any_of"]]
        return next((result for result in results if not result[1]), (value, " or ".join(rule for _, rule in results)))
    if kind in ("int", "float"):
        return _number(node, value)
    types: dict[str, type] = {"bool": bool, "str": str, "list": list, "map": dict, "any": object}
    if not isinstance(value, types[kind]):
        words = {"bool": "true or false", "str": "text", "list": "a list", "map": "a section"}
        return value, f"must be {words[kind]}"
    if isinstance(value, list):
        return _list(node, value)
    choices = node.get("choices")
    if choices and not _is_choice(node, value):
        return value, f"must be one of {listed(map(str, choices))}"
    return value, ""


def _is_choice(node: Node, value: Any) -> bool:
    if node.get("ignore_case"):
        return str(value).lower() in [choice.lower() for choice in node["choices"]]
    return value in node["choices"]


def _list(node: Node, value: list[Any]) -> tuple[Any, str]:
    if "items" not in node:
        return value, ""
    item_node = {"type": node["items"], **({"choices": node["choices"]} if "choices" in node else {})}
    rules = [rule for rule in (_plain(item_node, item)[1] for item in value) if rule]
    return value, f"has an item that {rules[0]}" if rules else ""


def _number(node: Node, value: Any) -> tuple[Any, str]:
    words = "a whole number" if node["type"] == "int" else "a number"
    if "choices" in node:
        words = f"one of {listed(map(str, node['choices']))}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value, f"must be {words}"
    if node["type"] == "int":
        if value != int(value):
            return value, f"must be {words}"
        value = int(value)
    if "choices" in node and value not in node["choices"]:
        return value, f"must be {words}"
    checks: dict[str, tuple[str, Callable[[float, float], bool]]] = {
        "min": ("at least", operator.ge),
        "above": ("greater than", operator.gt),
        "max": ("at most", operator.le),
        "below": ("less than", operator.lt),
    }
    for name, (text, holds) in checks.items():
        if name in node and not holds(value, node[name]):
            return value, f"must be {text} {node[name]:g}"
    return value, ""
