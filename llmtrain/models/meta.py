"""The model without its weights: built on the meta device, in milliseconds and without memory, whatever its size."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.initialization import no_init_weights
from transformers.modeling_utils import set_zero3_state

from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError, Problem
from llmtrain.flops import flops_per_token


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is built; tied weights count once."""

    num_parameters: int
    num_parameters_non_embedding: int
    """Without the tables of tokens, positions and segments, and without the head."""
    num_matmul_parameters: int
    """Those that take part in a matrix product for each token: the non-embedding ones (of experts the active share) and
    the head."""
    num_layers: int
    hidden_size: int
    flops_per_token: int
    """Forward and backward, at data.seq_length; see `llmtrain.flops`."""


def auto_class(task: str) -> Any:
    """transformers' class that builds the models of a task."""
    return {"causal_lm": AutoModelForCausalLM, "masked_lm": AutoModelForMaskedLM}[task]


def meta_model(config: Config, model_config: Any) -> Any:
    """The model of a resolved configuration on the meta device, as plain (not ZeRO-3) parameters.

    Raises:
        ConfigError: the sizes give no model, or the model has no such attention kernel.
    """
    try:
        return _on_meta(config, model_config, config.model.attn_implementation)
    except Exception as error:  # models raise what they like: ValueError, ImportError, AssertionError, …
        reason = " ".join(str(error).split()).partition(" Please request")[0] or type(error).__name__
        raise ConfigError(_build_problem(config, model_config, reason)) from error


def model_facts(config: Config, model_config: Any) -> ModelFacts:
    """The facts of a resolved configuration.

    Raises:
        ConfigError: as `meta_model`.
    """
    model = meta_model(config, model_config)
    text_config = model_config.get_text_config()
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    head = model.get_output_embeddings()
    heads = {id(head.weight)} if head is not None else set()
    parameters = list(model.named_parameters())
    inner = [(name, p) for name, p in parameters if id(p) not in tables | heads]
    num_matmul = sum(_active(name, p, text_config) for name, p in inner) + (head.weight.numel() if heads else 0)
    num_heads = getattr(text_config, "num_attention_heads", None) or 1
    head_size = getattr(text_config, "head_dim", None) or text_config.hidden_size // num_heads
    return ModelFacts(
        num_parameters=sum(p.numel() for _, p in parameters),
        num_parameters_non_embedding=sum(p.numel() for _, p in inner),
        num_matmul_parameters=num_matmul,
        num_layers=text_config.num_hidden_layers,
        hidden_size=text_config.hidden_size,
        flops_per_token=flops_per_token(
            num_matmul, text_config.num_hidden_layers, num_heads * head_size, config.data.seq_length
        ),
    )


def _on_meta(config: Config, model_config: Any, attn_implementation: str) -> Any:
    # `set_zero3_state` tells transformers that somebody else cares for ZeRO-3: meta parameters cannot be partitioned.
    with torch.device("meta"), set_zero3_state(), no_init_weights():
        model = auto_class(config.model.task).from_config(
            copy.deepcopy(model_config),
            attn_implementation=attn_implementation,
            trust_remote_code=config.model.trust_remote_code,
        )
    model.tie_weights()
    return model


def _build_problem(config: Config, model_config: Any, reason: str) -> Problem:
    """Whose fault it is that no model can be built: that of the attention kernel if it works with another."""
    kernel = config.model.attn_implementation
    others = [other for other in ("sdpa", "eager") if other != kernel and _can_build(config, model_config, other)]
    if others:
        rule = f"cannot be used for {model_config.model_type}: {reason}"
        return Problem("model.attn_implementation", rule, f"set it to {' or '.join(others)}", kernel)
    key = "model.config_overrides" if config.model.config_overrides else f"model.{_source_key(config)}"
    return Problem(key, f"gives no {model_config.model_type} model: {reason}")


def _can_build(config: Config, model_config: Any, attn_implementation: str) -> bool:
    try:
        _on_meta(config, model_config, attn_implementation)
    except Exception:  # see `meta_model`
        return False
    return True


def _source_key(config: Config) -> str:
    model = config.model
    return "preset" if model.preset else "architecture" if model.architecture else "name_or_path"


def _active(name: str, parameter: torch.Tensor, text_config: Any) -> int:
    """Elements of a parameter that one token uses: of experts only the share that it is routed to."""
    num_experts = getattr(text_config, "num_local_experts", None) or getattr(text_config, "num_experts", None)
    if num_experts and ".experts." in name:
        return parameter.numel() * int(text_config.num_experts_per_tok) // int(num_experts)
    return parameter.numel()
