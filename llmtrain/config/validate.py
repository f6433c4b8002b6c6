"""From plain values to a `Config`, with every problem at once.

pydantic checks each value by itself. Where it finds something, the value is put right as well as can be guessed (an
unknown key becomes the one that was meant, a wrong value its default, a missing one an example), so that the rules
between keys can be checked too; rules that read what was put right are left out.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from llmtrain.config.merge import replace_origins
from llmtrain.config.provenance import child_path, is_within
from llmtrain.config.rules import rule_problems
from llmtrain.config.schema import Config, Section
from llmtrain.config.schema_paths import field_at, section_at
from llmtrain.config.suggest import listed, nearest, remedy_for_unknown, sibling_meant
from llmtrain.errors import ABSENT, Problem

FORM_TAGS = ("<map>", "<list>", "<scalar>")
"""Parts of pydantic's locations that name a member of a union, and no key."""


@dataclass
class Checked:
    """The configuration as far as it could be made, what is wrong, and the paths that were put right."""

    config: Config | None
    problems: list[Problem]
    repaired: set[str] = dataclass_field(default_factory=set)


def validate(data: dict[str, Any], origins: dict[str, str], deepspeed_keys: list[str]) -> Checked:
    """Check values against the schema and the rules between keys. Moves origins of keys whose name it could guess."""
    checked = Checked(None, [])
    data = fill_sections(copy.deepcopy(data))
    for _ in range(20):  # each round repairs what the round before has brought to light
        try:
            checked.config = Config.model_validate(data)
            break
        except ValidationError as error:
            _repair(error.errors(), data, origins, deepspeed_keys, checked)
    if checked.config is not None:
        checked.problems += rule_problems(checked.config, checked.repaired)
    return checked


def fill_sections(data: dict[str, Any]) -> dict[str, Any]:
    """A section that is missing, or taken back by `section=null`, is an empty mapping: errors name the missing leaf."""
    for name in _section_names():
        if data.get(name) is None:
            data[name] = {}
    return data


def drop_empty_sections(data: dict[str, Any]) -> list[str]:
    """A section of a file with nothing under its name says nothing, and takes nothing back from earlier files.

    The names of those dropped.
    """
    empty = [name for name in _section_names() if name in data and data[name] is None]
    for name in empty:
        del data[name]
    return empty


def _section_names() -> list[str]:
    """The keys of the whole file that hold sections."""
    return [
        name
        for name, field in Config.model_fields.items()
        if name == "deepspeed" or (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
    ]


def _repair(
    errors: list[ErrorDetails],
    data: dict[str, Any],
    origins: dict[str, str],
    deepspeed_keys: list[str],
    checked: Checked,
) -> None:
    # Unknown keys first and alone: what they were meant to be may be what the other errors miss.
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    for error in unknown or errors:
        path, steps = locate(error["loc"])
        if unknown:
            checked.problems.append(unknown_key(path, error["input"], origins, deepspeed_keys))
            _rename_or_drop(data, steps, path, origins, checked)
        else:
            checked.problems.append(problem_of(error, path))
            _put_right(data, steps, path)
        checked.repaired.add(path)


def locate(location: tuple[int | str, ...]) -> tuple[str, list[int | str]]:
    """The dotted path and the steps of a location of pydantic's."""
    steps = [step for step in location if step not in FORM_TAGS]
    path = ""
    for step in steps:
        path = child_path(path, step)
    return path, steps


def unknown_key(path: str, value: object, origins: dict[str, str], deepspeed_keys: list[str]) -> Problem:
    """The problem of a key that is not in the schema."""
    shown = value if isinstance(value, str | int | float | bool) else ABSENT
    remedy = remedy_for_unknown(path, deepspeed_keys)
    return Problem(path, "is not a known key", remedy, value=shown, origin=origins.get(path, ""))


def problem_of(error: ErrorDetails, path: str) -> Problem:
    """A pydantic error in the words of a `Problem`."""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "missing":
        return Problem(path, "is required", _example(path))
    rule, remedy = error["msg"], str(context.get("remedy", ""))
    if kind == "literal_error":
        rule, remedy = _choice(str(context["expected"]), value, path)
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        section = section_at(path)
        rule, remedy = "must be a section", f"its keys are {listed(section.model_fields)}" if section else ""
    elif kind == "list_type":
        rule, remedy = "must be a list", f"write [{value}]" if isinstance(value, str) else ""
    elif kind == "too_short":
        rule, remedy = "must not be empty", _example(path)
    elif kind == "string_too_short":
        rule = "must not be empty"
    elif kind in LIMITS:
        name, words = LIMITS[kind]
        rule = f"must be {words} {context[name]:g}"
    return Problem(path, rule, remedy, value=value)


LIMITS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
"""pydantic's errors about limits: the name of the limit in their context, and our words."""


def _choice(expected: str, value: object, path: str) -> tuple[str, str]:
    if expected == "False":
        return "must be false, or the keys of the section", f"such as {path}: {{isolate_documents: true}}"
    choices = re.findall(r"'([^']*)'", expected)
    meant = nearest(str(value), choices)
    return f"is not one of {listed(choices)}", f"did you mean {meant}?" if meant else ""


def _example(path: str) -> str:
    field_info = field_at(re.sub(r"\[\d+\]", "[0]", path))
    examples = field_info.examples if field_info else None
    return f"such as {path}: {_flow(examples[0])}" if examples else ""


def _flow(value: object) -> str:
    """A value as a flow of YAML's, for a message."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return str(value)


def _holder(data: Any, steps: list[int | str]) -> Any:
    """The mapping or list that holds the last step; None where an earlier repair has taken it away."""
    for step in steps[:-1]:
        if not (step in data if isinstance(data, dict) else isinstance(data, list) and int(step) < len(data)):
            return None
        data = data[step]
    return data


def _rename_or_drop(
    data: dict[str, Any], steps: list[int | str], path: str, origins: dict[str, str], checked: Checked
) -> None:
    holder = _holder(data, steps)
    value = holder.pop(steps[-1])
    meant = sibling_meant(path)
    if meant is None or holder.get(meant):
        return
    outer = path.rpartition(".")[0]
    new_path = child_path(outer, meant)
    holder[meant] = {} if value is None and section_at(new_path) else value
    moved = {new_path + known[len(path) :]: origin for known, origin in origins.items() if is_within(known, path)}
    replace_origins(origins, new_path, moved)
    checked.repaired.add(new_path)


def _put_right(data: dict[str, Any], steps: list[int | str], path: str) -> None:
    """Give a wrong or missing value its default, or where it has none its example. A list is put right as a whole."""
    while isinstance(steps[-1], int):
        steps, path = steps[:-1], path.rpartition("[")[0]
    holder = _holder(data, steps)
    if not isinstance(holder, dict):
        return
    info = field_at(path)
    holder.pop(steps[-1], None)
    if info is not None and info.is_required():
        holder[steps[-1]] = copy.deepcopy((info.examples or [{}])[0])
