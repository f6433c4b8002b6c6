"""Write a configuration: YAML that loads to an equal one, a JSON Schema for editors, what differs between two."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from llmtrain.config.deepspeed_keys import OWNED_KEYS, Node, load_table
from llmtrain.config.load import LoadedConfig
from llmtrain.config.provenance import child_path, leaves
from llmtrain.config.schema import Config
from llmtrain.config.yaml_loader import CoreLoader
from llmtrain.errors import ABSENT


class CoreDumper(yaml.SafeDumper):
    """SafeDumper that quotes text which YAML 1.2 or PyYAML's own 1.1 would read as anything else."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and tag == "tag:yaml.org,2002:str":
            return CoreLoader("").resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return tag

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> yaml.ScalarNode:
        """Text with a line break goes in double quotes: any other style would need lines of its own."""
        is_one_line = "".join(str(value).splitlines()) == str(value)
        return super().represent_scalar(tag, value, style if is_one_line else '"')


def dump_config(config: Config, origin_of: Callable[[str], str] | None = None) -> str:
    """YAML with every key, loadable as it is; with `origin_of`, each value's origin as a comment."""
    return "\n".join(_lines(config.model_dump(), "", 0, origin_of)) + "\n"


def _lines(values: dict[str, Any], path: str, indent: int, origin_of: Callable[[str], str] | None) -> Iterator[str]:
    for key, value in values.items():
        inner = child_path(path, key)
        lead = f"{' ' * indent}{_scalar(key)}:"
        if isinstance(value, dict) and value:
            yield lead
            yield from _lines(value, inner, indent + 2, origin_of)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield lead
            for position, item in enumerate(value):
                yield from _item(item, child_path(inner, position), indent, origin_of)
        else:
            comment = f"  # {origin_of(inner)}" if origin_of else ""
            yield f"{lead} {_scalar(value)}{comment}"


def _item(item: Any, path: str, indent: int, origin_of: Callable[[str], str] | None) -> Iterator[str]:
    """An item of a list of sections: its first line carries the dash."""
    if not isinstance(item, dict) or not item:
        yield f"{' ' * indent}- {_scalar(item)}"
        return
    first, *rest = _lines(item, path, indent + 2, origin_of)
    yield f"{' ' * indent}- {first.lstrip()}"
    yield from rest


def _scalar(value: Any) -> str:
    """A value on one line."""
    text = yaml.dump(
        value, Dumper=CoreDumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False
    ).removesuffix("\n")
    return text.removesuffix("\n...")


@dataclass(frozen=True)
class Difference:
    """A leaf that two configurations do not have alike; `ABSENT` where one has none."""

    path: str
    left: object
    right: object


def diff(left: Config, right: Config) -> list[Difference]:
    """The leaves that differ, in the order of the schema."""
    values = [dict(leaves(config.model_dump())) for config in (left, right)]
    paths = list(dict.fromkeys([*values[0], *values[1]]))
    pairs = [(path, values[0].get(path, ABSENT), values[1].get(path, ABSENT)) for path in paths]
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]]


def diff_loaded(left: LoadedConfig, right: LoadedConfig) -> list[Difference]:
    """`diff`, without the names that come from the names of the files."""
    named = any(not loaded.provenance.is_default("run.name") for loaded in (left, right))
    return [found for found in diff(left.config, right.config) if named or found.path != "run.name"]


def json_schema() -> dict[str, Any]:
    """A JSON Schema of configuration files, for editors.

    Nothing but the path of a source is required in it: a run may be spread over several files.
    """
    schema = copy.deepcopy(Config.model_json_schema())
    for section in [schema, *schema.get("$defs", {}).values()]:
        if section.get("title") != "SourceConfig":
            section.pop("required", None)
    described = schema["properties"]["deepspeed"].get("description", "")
    path = {"type": "string", "description": "The path of a ds_config JSON."}
    schema["properties"]["deepspeed"] = {"description": described, "anyOf": [path, _deepspeed_schema(load_table(), "")]}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "llmtrain run"
    return schema


def _deepspeed_schema(node: Node, path: str) -> dict[str, Any]:
    """A node of DeepSpeed's table as JSON Schema, without what llmtrain owns."""
    if "any_of" in node:
        return {"anyOf": [_deepspeed_schema(member, path) for member in node["any_of"]]}
    names = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "list": "array", "map": "object"}
    schema: dict[str, Any] = {"type": names[node["type"]]} if node["type"] in names else {}
    if "choices" in node and node["type"] != "list" and not node.get("ignore_case"):
        schema["enum"] = node["choices"]
    limits = {"min": "minimum", "above": "exclusiveMinimum", "max": "maximum", "below": "exclusiveMaximum"}
    schema.update({theirs: node[ours] for ours, theirs in limits.items() if ours in node})
    if "keys" in node:
        properties = {}
        for key, inner in node["keys"].items():
            inner_path = child_path(path, key)
            if inner_path not in OWNED_KEYS and "deprecated" not in inner:
                names_of_key = [key, inner["alias"]] if "alias" in inner else [key]
                properties.update({name: _deepspeed_schema(inner, inner_path) for name in names_of_key})
        schema.update({"properties": properties, "additionalProperties": False})
    return {"anyOf": [schema, {"type": "null"}]} if node.get("nullable") else schema
