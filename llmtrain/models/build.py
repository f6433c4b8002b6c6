"""The model with its weights.

The caller holds the engine's construction context (an `HfDeepSpeedConfig` that lives as long as the engine): under
ZeRO-3 each rank then gets its part of the weights only, here and in transformers' own loading.

Weights are made in fp32; DeepSpeed casts them to the run's precision and keeps its masters from there. Where a run
starts from the weights of a checkpoint (`model.init_from`), the model is built as always, and the checkpoint part fills
it once the engine has it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import (
    deepspeed_config,
    is_deepspeed_zero3_enabled,
    prevent_arange_dtype_change,
)
from transformers.modeling_utils import set_zero3_state

from llmtrain.config.schema import Config, ModelConfig
from llmtrain.errors import ConfigError, Problem
from llmtrain.models.initialize import initialize_weights
from llmtrain.models.meta import auto_class
from llmtrain.models.names import locate
from llmtrain.models.sizes import is_from_scratch, saved_config


def build_model(
    config: Config, model_config: PretrainedConfig, *, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """The run's model, in training mode: from scratch by `run.seed`, or pretrained.

    The weights are the same on every rank, at every world size and at every ZeRO stage.

    Args:
        model_config: as `resolve_model_config` gives it.
        dtype: of the parameters; under ZeRO-3 the DeepSpeed configuration decides.

    Raises:
        ConfigError: the pretrained weights are not there, or do not fit.
    """
    with _seeded(config.run.seed):
        build = _from_scratch if is_from_scratch(config.model) else _pretrained
        model = build(config.model, copy.deepcopy(model_config), dtype)
    if config.model.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model


def _from_scratch(model: ModelConfig, model_config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    with _partitioned_construction(), no_init_weights():
        built: PreTrainedModel = auto_class(model.task).from_config(
            model_config,
            dtype=dtype,
            attn_implementation=model.attn_implementation,
            trust_remote_code=model.trust_remote_code,
        )
    initialize_weights(built)
    return built


def _pretrained(model: ModelConfig, model_config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    named = locate(str(model.name_or_path))
    num_rows = model_config.vocab_size
    model_config.vocab_size = saved_config(model).vocab_size
    try:
        built: PreTrainedModel = auto_class(model.task).from_pretrained(
            named.name,
            config=model_config,
            dtype=dtype,
            attn_implementation=model.attn_implementation,
            trust_remote_code=model.trust_remote_code,
            local_files_only=named.local_files_only,
        )
    except (OSError, ValueError) as error:
        raise named.failure(error, "model with weights") from error
    except RuntimeError as error:
        rule = f"give other shapes than the pretrained weights have: {' '.join(str(error).split())}"
        raise ConfigError(Problem("model.config_overrides", rule, value=model.config_overrides)) from error
    if num_rows != model_config.vocab_size:
        _resize_vocabulary(built, num_rows)
    _let_padding_row_learn(built)
    return built


def _resize_vocabulary(model: PreTrainedModel, num_rows: int) -> None:
    """Add rows for new tokens: each the mean of the old ones, so that they are as likely as an average token.

    Source: Hewitt 2021, "Initializing new word embeddings for pretrained language models".
    """
    old_rows = model.config.vocab_size
    model.resize_token_embeddings(num_rows, mean_resizing=False)
    tables = {id(table.weight): table.weight for table in (model.get_input_embeddings(), model.get_output_embeddings())}
    for weight in tables.values():
        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0), torch.no_grad():
            if weight.numel() and num_rows > old_rows:
                weight[old_rows:] = weight[:old_rows].float().mean(dim=0)


def _let_padding_row_learn(model: PreTrainedModel) -> None:
    """An embedding row that is padding and something else as well (pad = eos) is trained as every other one is."""
    table = model.get_input_embeddings()
    config = model.config.get_text_config()
    if getattr(table, "padding_idx", None) is not None and table.padding_idx in _flat(
        config.bos_token_id, config.eos_token_id
    ):
        table.padding_idx = None


def _flat(*token_ids: Any) -> set[int]:
    """The ids of fields that hold one, several or none."""
    listed = [ids if isinstance(ids, list) else [ids] for ids in token_ids]
    return {token_id for ids in listed for token_id in ids if token_id is not None}


@contextmanager
def _partitioned_construction() -> Iterator[None]:
    """Under ZeRO-3, parameters that are made in the block are partitioned at once.

    transformers would do the same inside `from_config`, and then draw the weights its own way.
    """
    if not is_deepspeed_zero3_enabled():
        yield
        return
    with prevent_arange_dtype_change(), deepspeed.zero.Init(config_dict_or_path=deepspeed_config()), set_zero3_state():
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The CPU's default generator starts from `seed` in the block, and is as it was after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
