"""Whether the documents of a packed sequence can be kept apart in a model.

`llmtrain.tasks.attention` keeps them apart by the attention mask and by restarted positions. That is exact where
attention is the only place in which tokens meet, and where the model takes both as transformers' attention interface
defines them. Elsewhere documents would leak into one another without a word, so isolation is refused there.
"""

from __future__ import annotations

import inspect
from typing import Any

from llmtrain.config.schema import Config, PackingConfig
from llmtrain.errors import Problem

MASKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
VERIFIED_WITHOUT_INTERFACE = frozenset(
    {"biogpt", "falcon", "megatron-bert", "mpnet", "rembert", "squeezebert", "stablelm", "xglm"}
)
"""Model types that do not declare the attention interface, and yet isolate exactly (tests/numerics)."""
LEAKING = frozenset({"mobilebert", "esm", "esmc"})
"""Model types that declare it, and yet mix tokens elsewhere (convolutions over neighbours, rescaled embeddings)."""


def isolates(config: Config) -> bool:
    """Whether a configuration asks for isolated documents."""
    return isinstance(config.data.packing, PackingConfig) and config.data.packing.isolate_documents


def isolation_problem(config: Config, model: Any) -> Problem | None:
    """The problem of a configuration that asks for isolation in a model that cannot have it.

    Args:
        model: the model, which may be on the meta device.
    """
    reason = _why_not(config, model) if isolates(config) else None
    if reason is None:
        return None
    remedy = "set it to false, or data.packing: false (one document a sequence)"
    rule = f"cannot be had in a {model.config.model_type} model: {reason}"
    return Problem("data.packing.isolate_documents", rule, remedy, True)


def _why_not(config: Config, model: Any) -> str | None:
    text_config = model.config.get_text_config()
    model_type = text_config.model_type
    unknown_layers = set(getattr(text_config, "layer_types", None) or ()) - MASKABLE_LAYERS
    if model._is_stateful or unknown_layers:
        return f"it has layers without an attention mask ({', '.join(sorted(unknown_layers)) or 'recurrent ones'})"
    if model_type in LEAKING:
        return "its tokens meet outside of attention too"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward takes no position_ids, so positions cannot restart"
    if not model._supports_attention_backend and model_type not in VERIFIED_WITHOUT_INTERFACE:
        return "it does not take a prepared attention mask"
    if config.model.attn_implementation == "flex_attention" and config.model.task == "masked_lm":
        return "flex_attention has no block mask of documents for it (sdpa has a mask)"
    return None
