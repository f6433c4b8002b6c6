"""Tiny models of several architectures, on CPU, from scratch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "bert": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 16,
    },
    "llama": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
    },
    "mixtral": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "num_local_experts": 2,
    },
}


def tiny_model(architecture: str) -> Any:
    """A model with weights that are all different."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, vocab_size=101, **_SIZES[architecture])
    model = (AutoModelForMaskedLM if architecture == "bert" else AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model
