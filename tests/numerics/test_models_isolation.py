"""Packed documents are isolated exactly in each architecture that is not refused, sliding windows included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmtrain.models import build_model, resolve_model_config
from llmtrain.tasks import build_task
from tests.support.tiny_models import random_sequence, separate_examples, tiny_config, tiny_tokenizer

SEQ_LENGTH = 32
LENGTHS = (11, 1, 15)
COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GQA = {**COMMON, "num_key_value_heads": 1, "head_dim": 16}
FFN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
QUIET = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
OPT = {**FFN, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}
GEMMA = {**GQA, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
BERT = {**COMMON, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERN = {**COMMON, "local_attention": 8, "layer_types": ["full_attention", "sliding_attention"]}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}

CAUSAL: dict[str, dict[str, Any]] = {
    "qwen3": GQA,
    "mistral": {**GQA, "sliding_window": 4},
    "gemma3_text": GEMMA,
    "gpt_neox": {**COMMON, **QUIET},
    "opt": OPT,
    "phi": COMMON,
    "falcon": {**FFN, **QUIET, "alibi": False},
    "stablelm": {**COMMON, "num_key_value_heads": 2},
}
MASKED: dict[str, dict[str, Any]] = {
    "roberta": BERT,
    "electra": {**BERT, "embedding_size": 32},
    "distilbert": DISTIL,
    "albert": {**BERT, "embedding_size": 16},
    "modernbert": MODERN,
}
ONLY_EAGER: dict[str, dict[str, Any]] = {
    "mpnet": BERT,
    "megatron-bert": BERT,
    "rembert": BERT,
    "squeezebert": {**BERT, "embedding_size": 32},
}
XGLM = {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}
BIOGPT = {**BERT, "activation_dropout": 0.0, "layerdrop": 0.0}
CASES = [
    *((name, "causal_lm", sizes, kernel) for name, sizes in CAUSAL.items() for kernel in ("sdpa", "eager")),
    *((name, "masked_lm", sizes, kernel) for name, sizes in MASKED.items() for kernel in ("sdpa", "eager")),
    *((name, "masked_lm", sizes, "eager") for name, sizes in ONLY_EAGER.items()),
    ("xglm", "causal_lm", XGLM, "eager"),
    ("biogpt", "causal_lm", BIOGPT, "sdpa"),
]


@pytest.mark.parametrize(("architecture", "task_name", "sizes", "kernel"), CASES)
def test_packed_is_separate(architecture: str, task_name: str, sizes: dict[str, Any], kernel: str) -> None:
    config = tiny_config(
        architecture,
        SEQ_LENGTH,
        model={"task": task_name, "config_overrides": sizes, "attn_implementation": kernel},
        data={"mlm_probability": 0.5},
    )
    tokenizer = tiny_tokenizer("bert" if task_name == "masked_lm" else "gpt")
    model, task = build_model(config, resolve_model_config(config, tokenizer)), build_task(config, tokenizer)
    # Weights far from small: whatever leaks is seen.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    sequence = random_sequence(LENGTHS)
    packed = task.loss(model, task.collate([task.encode(sequence), None])).loss_sum
    separate = torch.stack(
        [task.loss(model, task.collate([e])).loss_sum for e in separate_examples(task, sequence)]
    ).sum()
    assert separate > 0
    torch.testing.assert_close(packed, separate, rtol=2e-5, atol=0)
