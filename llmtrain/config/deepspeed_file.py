"""Read a ds_config JSON: what llmtrain owns is taken over into its own keys, the rest is a `deepspeed:` block.

Files made for Hugging Face's Trainer are full of "auto", which says that the Trainer's arguments decide. Here the YAML
decides, so an owned key with "auto" is dropped; elsewhere DeepSpeed itself would drop it and take its default, and so
does this (with a note). An optimizer or a schedule that has no equal here is refused with the key to use. The schedules
taken over are the same curves, one step apart: DeepSpeed's first step has the learning rate 0, llmtrain's that of one
step of warm-up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtrain.config.deepspeed_keys import AUTO, Node, allows_auto, known_name
from llmtrain.config.provenance import child_path
from llmtrain.config.suggest import listed, nearest
from llmtrain.config.yaml_loader import read_text
from llmtrain.errors import ConfigError, Problem

PLAIN_KEYS = {
    "train_batch_size": "batch.global_batch_size",
    "train_micro_batch_size_per_gpu": "batch.per_device_train_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "gradient_clipping": "optimizer.max_grad_norm",
}
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "muon": "muon"}
"""DeepSpeed's Adam is AdamW unless `adam_w_mode` is false."""
OPTIMIZER_PARAMS = {
    "lr": "optimizer.learning_rate",
    "eps": "optimizer.adam_epsilon",
    "weight_decay": "optimizer.weight_decay",
}
SAME_HERE: dict[str, Any] = {
    "adam_w_mode": True,
    "bias_correction": True,
    "amsgrad": False,
    "fp32_optimizer_states": True,
    "momentum": 0.95,
}
"""Parameters of optimizers that llmtrain has at these values and no others."""
SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
SCHEDULER_PARAMS = {
    "warmup_max_lr": "optimizer.learning_rate",
    "warmup_num_steps": "schedule.warmup_steps",
    "total_num_steps": "schedule.max_steps",
    "cos_min_ratio": "schedule.min_lr_rate",
}


@dataclass(frozen=True)
class Carried:
    """A setting that goes from the file to a key of llmtrain's."""

    path: str
    value: Any
    source: str
    """Where it stands in the file."""
    is_implied: bool = False
    """DeepSpeed's default, which an explicit value elsewhere outdoes."""


@dataclass
class DeepSpeedFile:
    """A ds_config JSON, taken apart."""

    name: str
    block: dict[str, Any]
    carried: list[Carried] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_deepspeed_file(path: Path, table: Node) -> DeepSpeedFile:
    """Read and take apart. Raises `ConfigError` for a file that is missing or no JSON object."""
    file = DeepSpeedFile(str(path), _read_json(path))
    block = file.block
    if "bfloat16" in block and "bf16" not in block:
        block["bf16"] = block.pop("bfloat16")
    for key, target in PLAIN_KEYS.items():
        _carry(file, target, block.pop(key, AUTO), key)
    _take_precision(file)
    _take_optimizer(file, block.pop("optimizer", None))
    _take_scheduler(file, block.pop("scheduler", None))
    file.block = _without_auto(block, table, "", file)
    return file


def _read_json(path: Path) -> dict[str, Any]:
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(Problem("deepspeed", "is a YAML file", f"pass it with --config {path}", value=str(path)))

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        if repeated:
            raise ConfigError(Problem(str(path), f"sets {listed(repeated)} twice", "remove one of them"))
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ConfigError(Problem(str(path), f"holds {constant}, which is no number that can be used"))

    try:
        content = json.loads(read_text(path), object_pairs_hook=without_repeats, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(Problem(f"{path}:{error.lineno}", f"is not valid JSON: {error.msg}")) from None
    if not isinstance(content, dict):
        raise ConfigError(Problem(str(path), "does not hold a JSON object"))
    return content


def _carry(file: DeepSpeedFile, path: str, value: Any, source: str, *, is_implied: bool = False) -> None:
    known = [(setting.path, setting.value) for setting in file.carried]
    if value != AUTO and value is not None and (path, value) not in known:
        file.carried.append(Carried(path, value, source, is_implied))


def _take_precision(file: DeepSpeedFile) -> None:
    """Take `enabled` of fp16 and bf16 out of the block; the two decide `precision` together."""
    enabled: dict[str, Any] = {}
    for name in ("fp16", "bf16"):
        section = file.block.get(name)
        if isinstance(section, dict) and "enabled" in section:
            enabled[name] = section.pop("enabled")
            if not section:
                del file.block[name]
    source = " and ".join(f"{name}.enabled" for name in enabled)
    chosen = [name for name, value in enabled.items() if value is True]
    for name, value in enabled.items():
        if value not in (True, False, AUTO) or not isinstance(value, bool | str):
            file.problems.append(_problem(file, f"{name}.enabled", "must be true or false", "", value))
    if len(chosen) == 2:
        file.problems.append(_problem(file, "fp16.enabled", "and bf16.enabled are both true", "set one of them", None))
    elif chosen:
        _carry(file, "precision", chosen[0], source)
    elif False in enabled.values() and AUTO not in enabled.values():
        # A file that speaks of one of the two alone leaves the other open; DeepSpeed would compute in fp32.
        _carry(file, "precision", "fp32", source, is_implied=len(enabled) == 1)


def _take_optimizer(file: DeepSpeedFile, spec: Any) -> None:
    if spec is None:
        return
    found = _typed_section(file, "optimizer", spec, {name.lower(): name for name in OPTIMIZERS})
    if found is None:
        return
    kind, params = found
    _carry(file, "optimizer.name", OPTIMIZERS[kind], "optimizer.type")
    if kind == "lion" and "betas" not in params:
        _carry(file, "optimizer.adam_beta2", 0.99, "the default of DeepSpeed's Lion", is_implied=True)
    for key, value in params.items():
        source = f"optimizer.params.{key}"
        if key in OPTIMIZER_PARAMS:
            _carry(file, OPTIMIZER_PARAMS[key], value, source)
        elif key == "betas":
            _take_betas(file, value, source)
        elif key == "torch_adam":
            continue  # who computes AdamW, not what it computes
        elif key in SAME_HERE:
            if value not in (SAME_HERE[key], AUTO):
                rule = f"has no equal in llmtrain, where it is {SAME_HERE[key]}"
                file.problems.append(_problem(file, source, rule, "remove it", value))
        else:
            known = [*OPTIMIZER_PARAMS, "betas", *SAME_HERE, "torch_adam"]
            meant = nearest(key, known)
            remedy = f"did you mean {meant}?" if meant else "see the keys of llmtrain's optimizer section"
            file.problems.append(
                _problem(file, source, "is not a parameter that llmtrain can take over", remedy, value)
            )


def _take_betas(file: DeepSpeedFile, value: Any, source: str) -> None:
    if isinstance(value, list) and len(value) == 2:
        for number, beta in enumerate(value, start=1):
            _carry(file, f"optimizer.adam_beta{number}", beta, source)
    elif value != AUTO:
        file.problems.append(_problem(file, source, "must be a list of two numbers", "such as [0.9, 0.95]", value))


def _take_scheduler(file: DeepSpeedFile, spec: Any) -> None:
    if spec is None:
        return
    found = _typed_section(file, "scheduler", spec, {name.lower(): name for name in SCHEDULERS})
    if found is None:
        return
    kind, params = found
    _carry(file, "schedule.lr_scheduler_type", SCHEDULERS[kind], "scheduler.type")
    steps = params.get("warmup_num_steps", 1000)
    if "warmup_num_steps" not in params:
        _carry(file, "schedule.warmup_steps", steps, f"the default of DeepSpeed's {kind}", is_implied=True)
    if kind == "WarmupDecayLR":
        _carry(file, "schedule.min_lr_rate", 0.0, "scheduler.type")
    if kind == "WarmupCosineLR" and "cos_min_ratio" not in params:
        _carry(file, "schedule.min_lr_rate", 0.0001, f"the default of DeepSpeed's {kind}", is_implied=True)
    file.problems += _scheduler_problems(file, kind, params, steps)
    for key, value in params.items():
        if key in SCHEDULER_PARAMS:
            _carry(file, SCHEDULER_PARAMS[key], value, f"scheduler.params.{key}")


def _scheduler_problems(file: DeepSpeedFile, kind: str, params: dict[str, Any], steps: Any) -> Iterator[Problem]:
    path = "scheduler.params"
    if params.get("warmup_type", "log") not in ("linear", AUTO) and steps not in (0, 1, AUTO):
        rule = "is a logarithmic warm-up (DeepSpeed's default), and llmtrain's is linear"
        yield _problem(file, f"{path}.warmup_type", rule, "set warmup_type: linear", params.get("warmup_type", "log"))
    for key in ("warmup_min_lr", "warmup_min_ratio"):
        if params.get(key, 0) not in (0, AUTO):
            yield _problem(file, f"{path}.{key}", "has no equal: llmtrain's warm-up starts at 0", "set 0", params[key])
    if kind == "WarmupDecayLR" and "warmup_max_lr" not in params:
        rule = "is missing: DeepSpeed's default of 0.001 would outdo optimizer.params.lr"
        yield _problem(file, f"{path}.warmup_max_lr", rule, "set it, or leave out scheduler and set schedule", None)
    known = [*SCHEDULER_PARAMS, "warmup_type", "warmup_min_lr", "warmup_min_ratio"]
    for key in params:
        if key not in (*known, "last_batch_iteration"):
            meant = nearest(key, known)
            remedy = f"did you mean {meant}?" if meant else f"the keys are {listed(known)}"
            yield _problem(file, f"{path}.{key}", "is not a parameter that llmtrain can take over", remedy, params[key])


def _typed_section(
    file: DeepSpeedFile, name: str, spec: Any, types: dict[str, str]
) -> tuple[str, dict[str, Any]] | None:
    """The type and the params of an optimizer or scheduler section; None (with problems) where it cannot be used."""
    ours = "optimizer.name" if name == "optimizer" else "schedule.lr_scheduler_type"
    if not isinstance(spec, dict) or not isinstance(spec.get("params", {}), dict):
        file.problems.append(_problem(file, name, "must hold type and params", f"or set {ours} instead", None))
        return None
    for key in spec:
        if key not in ("type", "params", "legacy_fusion"):
            meant = nearest(key, ("type", "params"))
            remedy = f"did you mean {meant}?" if meant else "its keys are type and params"
            file.problems.append(_problem(file, f"{name}.{key}", "is not a known key", remedy, None))
    kind = types.get(str(spec.get("type")).lower())
    if kind is None:
        rule = f"is none that llmtrain has ({listed(types.values())})"
        remedy = f"remove {name} and set {ours}"
        file.problems.append(_problem(file, f"{name}.type", rule, remedy, spec.get("type")))
        return None
    return kind, spec.get("params", {})


def _problem(file: DeepSpeedFile, path: str, rule: str, remedy: str, value: Any) -> Problem:
    problem = Problem(f"deepspeed.{path}", rule, remedy, origin=file.name)
    return problem if value is None else Problem(problem.path, rule, remedy, value, file.name)


def _without_auto(block: dict[str, Any], node: Node, path: str, file: DeepSpeedFile) -> dict[str, Any]:
    """The block without the keys that are "auto" where DeepSpeed has no such value."""
    result = {}
    for key, value in block.items():
        inner = node.get("keys", {}).get(known_name(key, node) or "", {})
        if value == AUTO and inner and not allows_auto(inner):
            file.notes.append(f'{child_path(path, key)} is "auto" in {file.name}: DeepSpeed\'s default is taken')
        elif isinstance(value, dict):
            result[key] = _without_auto(value, inner, child_path(path, key), file)
        else:
            result[key] = value
    return result
