"""The transformers configuration of a model before the run's tokenizer and sequences are known: base and overrides."""

from __future__ import annotations

import re
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from llmtrain.config.schema import ModelConfig
from llmtrain.config.suggest import nearest
from llmtrain.errors import ConfigError, Problem
from llmtrain.models.names import locate
from llmtrain.models.presets import PRESETS, unknown_preset

OWNED_KEYS = {
    "attn_implementation": "model.attn_implementation",
    "_attn_implementation": "model.attn_implementation",
    "dtype": "precision",
    "torch_dtype": "precision",
    "model_type": "model.architecture",
}
"""Keys of a transformers configuration that a key of llmtrain decides."""


def sized_config(model: ModelConfig) -> PretrainedConfig:
    """The configuration that preset, architecture or name_or_path stands for, with config_overrides.

    Raises:
        ConfigError: no such model, or an override that it does not have.
    """
    if model.name_or_path:
        saved = saved_config(model)
        overrides = _checked_overrides(saved, model)
        return _made(type(saved), _without_derived(saved, overrides), overrides, model) if overrides else saved
    if model.preset and model.preset not in PRESETS:
        raise ConfigError(unknown_preset(model.preset))
    sizes: dict[str, Any] = {}
    if model.preset:
        preset = PRESETS[model.preset]
        sizes = {"vocab_size": preset.vocab_size, **preset.sizes}
    config_class = _config_class(preset.architecture if model.preset else str(model.architecture))
    return _made(config_class, sizes, _checked_overrides(config_class(), model), model)


def canonical(config: PretrainedConfig, key: str) -> str:
    """The configuration's own name of a key that may be given by transformers' common one (hidden_size: n_embd)."""
    return str(config.attribute_map.get(key, key))


def is_set_by_user(config: PretrainedConfig, model: ModelConfig, key: str) -> bool:
    """Whether config_overrides sets a key, under whichever of its names."""
    return canonical(config, key) in {canonical(config, name) for name in model.config_overrides}


def is_from_scratch(model: ModelConfig) -> bool:
    """Whether the weights are new."""
    return model.name_or_path is None or model.init == "scratch"


def saved_config(model: ModelConfig) -> PretrainedConfig:
    """The configuration as it is saved under `name_or_path`, without overrides.

    Raises:
        ConfigError: nothing, or something else, is there.
    """
    named = locate(str(model.name_or_path))
    try:
        return AutoConfig.from_pretrained(
            named.name, trust_remote_code=model.trust_remote_code, local_files_only=named.local_files_only
        )
    except (OSError, ValueError) as error:
        raise named.failure(error, "model") from error


def _config_class(architecture: str) -> Any:
    if architecture not in CONFIG_MAPPING:
        meant = nearest(architecture, CONFIG_MAPPING.keys())
        remedy = f"did you mean {meant}?" if meant else "such as gpt2, llama, qwen3, bert, roberta"
        raise ConfigError(Problem("model.architecture", "is not a model type of transformers", remedy, architecture))
    return CONFIG_MAPPING[architecture]


def _checked_overrides(base: PretrainedConfig, model: ModelConfig) -> dict[str, Any]:
    """The overrides under the configuration's own names."""
    problems = [problem for key in model.config_overrides if (problem := _key_problem(base, key))]
    if problems:
        raise ConfigError(problems)
    return {canonical(base, key): value for key, value in model.config_overrides.items()}


def _made(
    config_class: type[PretrainedConfig], given: dict[str, Any], overrides: dict[str, Any], model: ModelConfig
) -> PretrainedConfig:
    try:
        return config_class.from_dict({**given, **overrides})
    except Exception as error:  # transformers' strict dataclasses have their own tree, remote code raises what it likes
        raise ConfigError(_value_problem(model, error)) from error


def _without_derived(saved: PretrainedConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """What was saved, without what its class had derived from the values that are overridden."""
    given: dict[str, Any] = saved.to_dict()
    layers, width, heads = (
        canonical(saved, key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    if layers in overrides:
        given.pop("layer_types", None)
    if {width, heads} & set(overrides) and given.get("head_dim") == given.get(width, 0) // given.get(heads, 1):
        given.pop("head_dim", None)
    return {key: value for key, value in given.items() if key not in overrides}


def _key_problem(base: PretrainedConfig, key: str) -> Problem | None:
    path = f"model.config_overrides.{key}"
    if key in OWNED_KEYS:
        return Problem(path, "is decided by another key", f"set {OWNED_KEYS[key]}")
    known = [*(name for name in base.to_dict() if name not in OWNED_KEYS), *base.attribute_map]
    if key in known:
        return None
    meant = nearest(key, known)
    remedy = f"did you mean {meant}?" if meant else f"its keys are {', '.join(sorted(known))}"
    return Problem(path, f"is not a key of a {base.model_type} configuration", remedy)


def _value_problem(model: ModelConfig, error: Exception) -> Problem:
    field = re.search(r"field '(\w+)'", str(error))
    named = field.group(1) if field and field.group(1) in model.config_overrides else None
    reason = " ".join(str(error).split())
    if named:
        return Problem(f"model.config_overrides.{named}", f"is refused: {reason}", value=model.config_overrides[named])
    return Problem("model.config_overrides", f"are refused: {reason}", value=model.config_overrides)
