"""From a run's configuration to the model's: sizes, vocabulary, special tokens, positions; and all that cannot work.

`resolve_model_config` builds no weights. What it returns is what `build_model` builds, and what is exported.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError, Problem
from llmtrain.models.isolation import isolation_problem
from llmtrain.models.meta import meta_model
from llmtrain.models.sizes import canonical, is_from_scratch, is_set_by_user, sized_config


def resolve_model_config(config: Config, tokenizer: Any = None) -> PretrainedConfig:
    """The transformers configuration of the run's model.

    Args:
        tokenizer: None where it cannot be had (a dry run without a network): then the vocabulary is the published one.

    Raises:
        ConfigError: with every problem that is found.
    """
    model_config = sized_config(config.model)
    problems = [*_task_problems(config, model_config), *_set_vocabulary(config, model_config, tokenizer)]
    if problems:
        raise ConfigError(problems)
    if tokenizer is not None and is_from_scratch(config.model):
        _set_special_tokens(model_config, tokenizer)
    model = meta_model(config, model_config)
    problems = [
        *_set_positions(config, model_config, model),
        *_attention_problems(config),
        *([problem] if (problem := isolation_problem(config, model)) else []),
    ]
    if config.model.gradient_checkpointing and not model.supports_gradient_checkpointing:
        rule = f"is not supported by transformers' {type(model).__name__}"
        problems.append(Problem("model.gradient_checkpointing", rule, "set it to false", True))
    if problems:
        raise ConfigError(problems)
    return model_config


def vocabulary_size(tokenizer: Any) -> int:
    """Rows that an embedding needs for a tokenizer: its greatest id and one (some vocabularies have gaps)."""
    return max(len(tokenizer), 1 + max(int(token_id) for token_id in tokenizer.get_vocab().values()))


def _task_problems(config: Config, model_config: PretrainedConfig) -> list[Problem]:
    task, model_type = config.model.task, model_config.model_type
    is_known = {
        "causal_lm": model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked_lm": model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    if hasattr(model_config, "auto_map") and config.model.trust_remote_code:
        return []
    if not is_known[task]:
        others = [other for other, known in is_known.items() if known and other != task]
        remedy = f"set model.task: {others[0]}" if others else "take another model"
        return [Problem("model.task", f"does not fit a {model_type} model", remedy, task)]
    if getattr(model_config, "is_encoder_decoder", False):
        rule = f"does not fit a {model_type} model, which is an encoder with a decoder"
        return [Problem("model.task", rule, "take a model of one stack, such as gpt2, llama, bert", task)]
    if task == "causal_lm" and is_known["masked_lm"] and not getattr(model_config, "is_decoder", False):
        rule = f"does not fit a {model_type} model, whose attention sees the tokens to be predicted"
        remedy = "set model.task: masked_lm, or model.config_overrides.is_decoder: true"
        return [Problem("model.task", rule, remedy, task)]
    return []


def _set_vocabulary(config: Config, model_config: PretrainedConfig, tokenizer: Any) -> list[Problem]:
    """Give the configuration its number of embedding rows; the problems of it."""
    num_tokens = vocabulary_size(tokenizer) if tokenizer is not None else 0
    requested = config.model.config_overrides.get("vocab_size")
    if is_from_scratch(config.model):
        if requested is not None and requested < num_tokens:
            rule = f"is smaller than the tokenizer's vocabulary of {num_tokens}"
            remedy = "remove it: the tokenizer decides"
            return [Problem("model.config_overrides.vocab_size", rule, remedy, requested)]
        multiple = config.model.pad_vocab_to_multiple_of
        num_rows = requested or num_tokens or model_config.vocab_size
        model_config.vocab_size = -(-num_rows // multiple) * multiple
        return []
    # A pretrained embedding keeps its rows: padding rows would take part in its softmax and change its loss.
    if num_tokens > model_config.vocab_size:
        rule = f"has {num_tokens} tokens, more than the {model_config.vocab_size} rows of the pretrained embedding"
        remedy = f"take the model's own tokenizer, or add rows by model.config_overrides.vocab_size: {num_tokens}"
        name = config.tokenizer.name_or_path or config.model.name_or_path
        return [Problem("tokenizer.name_or_path", rule, remedy, name)]
    return []


def _set_special_tokens(model_config: PretrainedConfig, tokenizer: Any) -> None:
    """Take the special ids from the tokenizer.

    Padding is known by length, and models do nothing with `pad_token_id` but keep its row of the embedding from
    learning. So a padding token that the text has too (pad = eos) is not told to the model.
    """
    model_config.bos_token_id = tokenizer.bos_token_id
    model_config.eos_token_id = tokenizer.eos_token_id
    in_text = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    model_config.pad_token_id = None if tokenizer.pad_token_id in in_text else tokenizer.pad_token_id
    for name in ("cls_token_id", "sep_token_id"):
        if hasattr(model_config, name):
            setattr(model_config, name, getattr(tokenizer, name))


def learned_positions(model: Any) -> int | None:
    """Positions that a model's table has rows for; None where positions are not learned (rotary, ALiBi)."""
    rows = [
        table.num_embeddings - (table.padding_idx + 1 if table.padding_idx is not None else getattr(table, "offset", 0))
        for name, table in model.named_modules()
        if isinstance(table, torch.nn.Embedding)
        and ("position" in name.rpartition(".")[2] or name.rpartition(".")[2] == "wpe")
    ]
    return min(rows, default=None)


def _set_positions(config: Config, model_config: PretrainedConfig, model: Any) -> list[Problem]:
    """Make room for the sequences where that is free (rotary, from scratch); else the problem of those too long."""
    seq_length = config.data.seq_length
    learned = learned_positions(model)
    limit = learned if learned is not None else getattr(model_config, "max_position_embeddings", None)
    if limit is None or seq_length <= limit:
        return []
    key = canonical(model_config, "max_position_embeddings")
    is_scratch = is_from_scratch(config.model)
    is_free = is_scratch and learned is None and not is_set_by_user(model_config, config.model, key)
    if is_free:
        model_config.max_position_embeddings = seq_length
        return []
    remedy = f"set data.seq_length to at most {limit}"
    if is_scratch:
        needed = seq_length + getattr(model_config, "max_position_embeddings", limit) - limit
        remedy += f", or model.config_overrides.{key}: {needed}"
    return [Problem("data.seq_length", f"is beyond the {limit} positions of the model", remedy, seq_length)]


def _attention_problems(config: Config) -> list[Problem]:
    kernel = config.model.attn_implementation
    if kernel == "flex_attention" and not torch.accelerator.is_available():
        rule = "needs a GPU (torch has no usable kernel for it on a CPU)"
        return [Problem("model.attn_implementation", rule, "set it to sdpa", kernel)]
    if kernel == "flash_attention_2" and config.precision == "fp32":
        rule = "computes in bf16 or fp16 only, and precision is fp32"
        return [Problem("model.attn_implementation", rule, "set precision: bf16, or this key to sdpa", kernel)]
    return []
