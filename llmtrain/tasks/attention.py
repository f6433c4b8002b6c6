"""What the model is given so that attention sees what it may see, and nothing else.

A batch holds documents end to end and padding after them. Where documents are isolated, no token may attend to another
document; padding counts as a document of its own, so that no row of the attention is empty. By attention kernel:

    eager, sdpa          an additive float mask (B, 1, T, T); exact on both, whereas a boolean one is silently wrong on
                         eager, and restarted positions alone are no isolation
    flash_attention_2    the rows end to end as one, with the document boundaries as cumulative lengths
    flex_attention       restarted positions, from which transformers derives its block mask (causal models only)

Where a batch needs no more than the model does by itself, it is left to the model's fastest path: a causal model needs
nothing for padding, which comes last and is not supervised.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from llmtrain.tasks.base import PADDING_DOCUMENT, Batch, Model


@dataclass(frozen=True)
class ModelTraits:
    """What decides how a model is fed."""

    parameters: frozenset[str]
    """Names that its forward takes."""
    kernel: str
    """transformers' name of the attention kernel."""
    dtype: torch.dtype
    position_offset: int
    """Position of the first token: 0, or in RoBERTa's family the one after the padding's."""
    windows: dict[str, int | None]
    """By kind of layer, as transformers names them: how far attention reaches, None for any distance."""


def traits_of(model: Model) -> ModelTraits:
    """The traits of a transformers model, or of a wrapper (such as DeepSpeed's engine) that has it as `module`."""
    module: Any = getattr(model, "module", model)
    config = module.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    table = getattr(getattr(module.base_model, "embeddings", None), "position_embeddings", None)
    padding_position = getattr(table, "padding_idx", None)
    return ModelTraits(
        parameters=_parameter_names(type(module).forward),
        kernel=config._attn_implementation,
        dtype=next(module.parameters()).dtype,
        position_offset=0 if padding_position is None else padding_position + 1,
        windows={kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)},
    )


@functools.cache
def _parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def model_inputs(model: Model, batch: Batch, *, is_causal: bool, isolate_documents: bool) -> dict[str, Any]:
    """The keyword arguments of the model's forward for a batch; the logits come back in the order of its tokens."""
    traits = traits_of(model)
    documents = batch["document_ids"]
    # Looking at the values makes an accelerator wait for them: there the mask is made whatever they are.
    is_isolated = isolate_documents and (not documents.is_cpu or bool((documents > 0).any()))
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"]}
    if is_isolated:
        inputs["position_ids"] = batch["position_ids"]
        inputs.update(_isolation(traits, inputs, documents, is_causal=is_causal))
    else:
        seq_length = documents.shape[1]
        inputs["position_ids"] = torch.arange(seq_length, device=documents.device).expand(documents.shape)
        if not is_causal:
            inputs["attention_mask"] = (documents != PADDING_DOCUMENT).long()
    inputs["position_ids"] = inputs["position_ids"] + traits.position_offset
    if "position_ids" not in traits.parameters:
        del inputs["position_ids"]
    if "use_cache" in traits.parameters:
        inputs["use_cache"] = False
    return inputs


def _isolation(
    traits: ModelTraits, inputs: dict[str, Any], documents: torch.Tensor, *, is_causal: bool
) -> dict[str, Any]:
    if traits.kernel == "flex_attention":
        return {}
    if traits.kernel == "flash_attention_2":
        return _as_one_row(inputs, documents)
    masks = {
        kind: additive_mask(documents, traits.dtype, is_causal=is_causal, window=window)
        for kind, window in traits.windows.items()
    }
    return {"attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}


def additive_mask(
    documents: torch.Tensor, dtype: torch.dtype, *, is_causal: bool, window: int | None = None
) -> torch.Tensor:
    """0 where a query may see a key, the least number of `dtype` elsewhere.

    Args:
        documents: (B, T) document ids.
        window: how far a token sees, counted as transformers does: a causal model sees `window` tokens, itself among
            them; others see `window` tokens to each side.

    Returns:
        (B, 1, T, T), of `dtype`.
    """
    is_visible = documents[:, :, None] == documents[:, None, :]
    positions = torch.arange(documents.shape[1], device=documents.device)
    distance = positions[:, None] - positions[None, :]
    if is_causal:
        is_visible &= distance >= 0
    if window is not None:
        is_visible &= distance < window if is_causal else distance.abs() <= window
    mask = torch.zeros(is_visible.shape, dtype=dtype, device=documents.device)
    return mask.masked_fill_(~is_visible, torch.finfo(dtype).min).unsqueeze(1)


def _as_one_row(inputs: dict[str, Any], documents: torch.Tensor) -> dict[str, Any]:
    """All rows end to end, and where each document starts, as transformers hands them to flash-attention's varlen."""
    num_rows, seq_length = documents.shape
    is_start = torch.ones_like(documents, dtype=torch.bool)
    is_start[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = is_start.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(starts, (0, 1), value=num_rows * seq_length).to(torch.int32)
    return {
        "input_ids": inputs["input_ids"].reshape(1, -1),
        "position_ids": inputs["position_ids"].reshape(1, -1),
        "cu_seq_lens_q": cumulative,
        "cu_seq_lens_k": cumulative,
        "max_length_q": seq_length,
        "max_length_k": seq_length,
    }
