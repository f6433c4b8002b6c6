#!/usr/bin/env python
"""Write llmtrain/config/deepspeed_keys.json: every key that the installed DeepSpeed reads, with its type and limits.

    python scripts/generate_deepspeed_keys.py            write the table
    python scripts/generate_deepspeed_keys.py --check    say how the repository's table differs; status 1 if it does

`llmtrain.config` checks the `deepspeed:` block against the table, because it must not import deepspeed. Two kinds of
readers are looked at: pydantic models are walked field by field; code that asks a plain dict is run on a `Recorder`, a
dict that writes down what it is asked for, so the keys come from the code that reads them, not from its documentation.
What neither tells (a default of None has no type) is added by hand in `TYPES_OF_UNTYPED_KEYS`; a key that is in none of
these stops the generator, which is how a new release of DeepSpeed shows what is new in it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import deepspeed
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.module_inject.auto_ep_presets.base import AutoEPConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config as ds_config
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from pydantic import BaseModel

TABLE = Path(__file__).resolve().parents[1] / "llmtrain" / "config" / "deepspeed_keys.json"

Node = dict[str, Any]

MODELS: dict[str, type[BaseModel]] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "csv_monitor": CSVConfig,
    "comet": CometConfig,
    "hybrid_engine": ds_config.HybridEngineConfig,
    "weight_quantization": WeightQuantConfig,
    "compile": CompileConfig,
    "tensor_parallel": TPTrainingConfig,
}
"""The sections that DeepSpeed hands to a pydantic model."""

OWNED = ("optimizer", "scheduler")
"""Sections that llmtrain owns: known by name, never looked into."""

DTYPES = ["fp32", "fp16", "bf16"]
TYPES_OF_UNTYPED_KEYS: dict[str, Node] = {
    "train_batch_size": {"type": "int"},
    "train_micro_batch_size_per_gpu": {"type": "int"},
    "gradient_accumulation_steps": {"type": "int"},
    "steps_per_print": {"type": "int", "nullable": True, "min": 1},
    "communication_data_type": {"type": "str", "choices": DTYPES, "nullable": True, "ignore_case": True},
    "seq_parallel_communication_data_type": {"type": "str", "choices": DTYPES, "nullable": True},
    "gradient_allreduce_op": {"type": "str", "choices": ["mean", "sum"], "ignore_case": True},
    "vocabulary_size": {"type": "int", "nullable": True, "min": 1},
    "log_level": {
        "type": "str",
        "choices": ["debug", "info", "warning", "error", "critical"],
        "nullable": True,
    },
    "sequence_parallel_size": {"type": "int", "min": 1},
    "datastates_ckpt": {"type": "map"},
    "activation_checkpointing.number_checkpoints": {"type": "int", "nullable": True, "min": 1},
    "autotuning.arg_mappings": {"type": "map", "nullable": True},
    "autotuning.metric_path": {"type": "str", "nullable": True},
    "autotuning.model_info_path": {"type": "str", "nullable": True},
    "autotuning.max_train_batch_size": {"type": "int", "nullable": True, "min": 1},
    "autotuning.model_info.num_params": {"type": "int", "nullable": True},
    "autotuning.model_info.hidden_size": {"type": "int", "nullable": True},
    "autotuning.model_info.num_layers": {"type": "int", "nullable": True},
    "checkpoint.tag_validation": {"type": "str", "choices": ["Warn", "Ignore", "Fail"], "ignore_case": True},
    "checkpoint.writer.type": {"type": "str", "choices": ["MOCK", "PYTHON", "FAST"], "ignore_case": True},
    "checkpoint.writer.data_parallel": {
        "type": "str",
        "choices": ["REPLICA", "SOCKET", "MACHINE"],
        "ignore_case": True,
        "nullable": True,
    },
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics": {"type": "map"},
    "data_efficiency.data_sampling.dynamic_batching.max_batch_size": {"type": "int", "nullable": True, "min": 1},
    "data_efficiency.data_sampling.dynamic_batching.max_tokens": {"type": "int", "min": 1},
    "data_types.grad_accum_dtype": {"type": "str", "choices": DTYPES, "nullable": True},
    "data_types.param_dtype": {"type": "str", "choices": DTYPES, "nullable": True},
    "data_types.buffer_dtype": {"type": "str", "choices": DTYPES, "nullable": True},
    "data_types.keep_in_fp32_modules": {
        "type": "union",
        "any_of": [{"type": "str", "choices": ["auto"]}, {"type": "list", "items": "str"}],
    },
    "flops_profiler.output_file": {"type": "str", "nullable": True},
    "pipeline.stages": {"type": "union", "any_of": [{"type": "int", "min": 1}, {"type": "str", "choices": ["auto"]}]},
    "torch_autocast.dtype": {"type": "str", "choices": [*DTYPES, "float16", "float32", "bfloat16"]},
    "torch_autocast.lower_precision_safe_modules": {"type": "list", "items": "str", "nullable": True},
}
"""Keys whose default in DeepSpeed does not tell their type."""

NOT_RECORDED: dict[str, Node] = {
    "data_efficiency.data_sampling.curriculum_learning": {"curriculum_metrics": None},
    "data_efficiency.data_sampling.dynamic_batching": {"max_tokens": None},
}
"""Keys that are read only where a feature is on, and copied whole."""

READ_UNDER_A_LAUNCHER = ("sequence_parallel_size",)
"""Keys that are read only where torch.distributed is initialised."""

NAMES_OF_OLD = {"bfloat16": "bf16"}
"""Names that DeepSpeed still reads for another name."""


class Recorder(dict[str, Any]):
    """A dict that writes down which keys it is asked for, and the defaults they are asked with."""

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        super().__init__(content or {})
        self.asked: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        if self.asked.get(key) is None:
            self.asked[key] = default
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.setdefault(str(key), None)
        return super().__contains__(key)

    def keys(self) -> Recorder:  # type: ignore[override]  # DeepSpeed asks `key in config.keys()`
        return self

    def __copy__(self) -> Recorder:
        # DeepSpeed copies a section before it writes its defaults into it.
        copied = Recorder(dict(self.items()))
        copied.asked = self.asked
        return copied


def record() -> Recorder:
    """What DeepSpeedConfig asks for, with a Recorder in the place of every section that is a plain dict."""
    sections: dict[str, Any] = {
        "train_batch_size": 1,
        "activation_checkpointing": Recorder(),
        "flops_profiler": Recorder(),
        "autotuning": Recorder({"model_info": Recorder()}),
        "aio": Recorder(),
        "torch_autocast": Recorder(),
        "data_types": Recorder(),
        "checkpoint": Recorder({"writer": Recorder(), "parallel_write": Recorder()}),
        "data_efficiency": Recorder(
            {
                "data_sampling": Recorder({"curriculum_learning": Recorder(), "dynamic_batching": Recorder()}),
                "data_routing": Recorder({"random_ltd": Recorder()}),
            }
        ),
    }
    root = Recorder(sections)
    ds_config.DeepSpeedConfig(root)
    root.pop("train_batch_size")
    # Sections that were not given above are asked for with a default of {} or by name alone.
    return root


def build_table() -> Node:
    """The whole table, as JSON holds it."""
    root = record()
    removed_top = dict(ds_config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    removed_zero = dict(ds_config._REMOVED_ZERO_CONFIG_KEYS)
    keys: dict[str, Node] = {}
    for key in (*root.asked, *READ_UNDER_A_LAUNCHER):
        if key in removed_top:
            continue
        if key in NAMES_OF_OLD:
            keys[key] = {"type": "map", "deprecated": NAMES_OF_OLD[key]}
        elif key in OWNED:
            keys[key] = {"type": "map"}
        elif key in MODELS:
            keys[key] = model_node(MODELS[key])
        elif key == "timers":
            keys[key] = map_node({"throughput": model_node(DeepSpeedThroughputTimerConfig)})
        elif key == "expert_parallel":
            keys[key] = map_node(dict(expert_parallel_keys()))
        elif key == "pipeline":
            keys[key] = map_node(
                {k: recorded_node(f"{key}.{k}", v) for k, v in ds_config.get_pipeline_config({}).items()}
            )
        else:
            section = root.get(key)
            keys[key] = recorded_node(key, section if isinstance(section, Recorder) else root.asked.get(key))
    missing = sorted(set(MODELS) - set(keys))
    assert not missing, f"DeepSpeed no longer reads {missing}"
    keys["zero_optimization"]["removed"] = {key: first_sentence(text) for key, text in removed_zero.items()}
    return {
        "deepspeed_version": deepspeed.__version__,
        "type": "map",
        "keys": dict(sorted(keys.items())),
        "removed": {key: first_sentence(text) for key, text in sorted(removed_top.items())},
    }


def recorded_node(path: str, default: Any) -> Node:
    """The node of a key of a plain dict, from the hand-made table or the type of its default."""
    if isinstance(default, Recorder):
        default.asked.update(NOT_RECORDED.get(path, {}))
        children = {
            key: default.get(key) if isinstance(default.get(key), Recorder) else value
            for key, value in list(default.asked.items())
        }
        node = map_node({key: recorded_node(f"{path}.{key}", value) for key, value in children.items()})
        if path.endswith("random_ltd"):
            node.pop("keys")  # copied whole, and read by code that wraps a model's layers
        return node
    if path in TYPES_OF_UNTYPED_KEYS:
        return TYPES_OF_UNTYPED_KEYS[path]
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(default, kind):
            return {"type": name}
    raise SystemExit(f"DeepSpeed reads {path} (default {default!r}): say its type in TYPES_OF_UNTYPED_KEYS")


def map_node(keys: dict[str, Node]) -> Node:
    """A section with exactly these keys."""
    return {"type": "map", "keys": dict(sorted(keys.items()))}


def model_node(model: type[BaseModel]) -> Node:
    """A section that a pydantic model reads."""
    hints = get_type_hints(model)
    keys: dict[str, Node] = {}
    for name, field in model.model_fields.items():
        node = annotation_node(hints[name])
        if node is None:
            continue  # an object of Python's, which no file can hold
        node.update(limits(field.metadata))
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if extra.get("deprecated"):
            node["deprecated"] = str(extra["new_param"])
        if field.default == "auto":
            allow_auto(node)
        if field.alias:
            node["alias"] = field.alias
        keys[name] = node
    return map_node(keys)


def allow_auto(node: Node) -> None:
    """Mark a key for which "auto" is a value; in a union it is the only text."""
    node["auto"] = True
    for member in node.get("any_of", []):
        if member["type"] == "str":
            member["choices"] = ["auto"]


def expert_parallel_keys() -> Iterator[tuple[str, Node]]:
    """The fields of DeepSpeed's dataclass; its parser asks for each by its name."""
    for name, hint in get_type_hints(AutoEPConfig).items():
        if not name.startswith("_"):
            node = annotation_node(hint) or {"type": "any"}
            if getattr(AutoEPConfig, name, None) == "auto":
                allow_auto(node)
            yield name, node


def limits(metadata: list[Any]) -> Node:
    """The limits of a pydantic field."""
    names = {"ge": "min", "gt": "above", "le": "max", "lt": "below"}
    return {ours: getattr(item, theirs) for item in metadata for theirs, ours in names.items() if hasattr(item, theirs)}


def annotation_node(hint: Any) -> Node | None:
    """The node of a Python type; None for one that JSON cannot hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return union_node(arguments)
    if origin is Literal:
        return {"type": "str", "choices": list(arguments)}
    if hint is list or origin is list:
        items = annotation_node(arguments[0]) if arguments else None
        node: Node = {"type": "list"}
        if items is not None:
            node.update({"items": items["type"]} | ({"choices": items["choices"]} if "choices" in items else {}))
        return node
    if hint is tuple or origin is tuple:
        return {"type": "list"}
    if hint is dict or origin is dict:
        return {"type": "map"}
    return class_node(hint)


def class_node(hint: Any) -> Node | None:
    """The node of a class."""
    if not isinstance(hint, type) or hint is object:
        return None
    if issubclass(hint, Enum):
        choices = list(dict.fromkeys(member.value for member in hint))
        return {"type": "int" if issubclass(hint, int) else "str", "choices": choices}
    if issubclass(hint, BaseModel):
        return model_node(hint)
    names = {bool: "bool", int: "int", float: "float", str: "str", Path: "str"}
    return {"type": names[hint]} if hint in names else None


def union_node(arguments: tuple[Any, ...]) -> Node | None:
    """The node of Optional[X] or of a union."""
    nodes = [annotation_node(argument) for argument in arguments if argument is not type(None)]
    if any(node is None for node in nodes):
        return None
    known = [node for node in nodes if node is not None]
    node: Node = known[0] if len(known) == 1 else {"type": "union", "any_of": known}
    if type(None) in arguments:
        node["nullable"] = True
    return node


def first_sentence(text: str) -> str:
    """DeepSpeed's own words, without the link."""
    return text.split(" See http")[0].strip()


def table_text() -> str:
    """The table as the repository keeps it."""
    return json.dumps(build_table(), indent=1) + "\n"


def difference() -> list[str]:
    """What differs between the table in the repository and DeepSpeed, as a unified diff; empty where nothing does."""
    lines = [text.splitlines() for text in (TABLE.read_text(encoding="utf-8"), table_text())]
    return list(difflib.unified_diff(*lines, "in the repository", "from DeepSpeed", lineterm="", n=8))


def main() -> int:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        TABLE.write_text(table_text(), encoding="utf-8")
        return 0
    lines = difference()
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
