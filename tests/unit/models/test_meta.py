"""What is known of a model without building it."""

from __future__ import annotations

from typing import Any

import pytest

from llmtrain.config.schema import Config
from llmtrain.flops import TERA, flops_per_token
from llmtrain.models import build_model, model_facts, resolve_model_config
from tests.support.tiny_models import tiny_config, tiny_tokenizer


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_facts_are_those_of_the_built_model(architecture: str) -> None:
    config = tiny_config(architecture)
    model_config = resolve_model_config(config, tiny_tokenizer("bert" if architecture == "bert" else "gpt"))
    facts = model_facts(config, model_config)
    model = build_model(config, model_config)
    counts = {name: p.numel() for name, p in model.named_parameters()}
    tables = [n for n in counts if n.rpartition(".")[0].rpartition(".")[2] in TABLES or n == "lm_head.weight"]
    assert facts.num_parameters == sum(counts.values())
    assert facts.num_parameters_non_embedding == facts.num_parameters - sum(counts[name] for name in tables)
    assert facts.num_matmul_parameters == facts.num_parameters_non_embedding + model_config.vocab_size * 64
    assert facts.flops_per_token == flops_per_token(facts.num_matmul_parameters, 2, 64, 32)


TABLES = {"wte", "wpe", "embed_tokens", "word_embeddings", "position_embeddings", "token_type_embeddings"}


def test_a_large_model_is_described_at_once() -> None:
    """GPT-3 175B: 700 GB of weights, none of them made. Its training took 3.14e23 FLOPs by the paper (300 B tokens)."""
    model: dict[str, Any] = {"preset": "gpt3-175b", "architecture": None, "config_overrides": {}}
    config = tiny_config(seq_length=2048, model=model)
    facts = model_facts(config, resolve_model_config(config))
    assert facts.num_layers == 96
    assert facts.hidden_size == 12288
    # Brown et al. 2020, appendix D: 6 N without attention; ours has attention on top.
    assert 3.14e23 < 300e9 * facts.flops_per_token < 1.05 * 3.14e23


def test_only_the_active_experts_count() -> None:
    overrides = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 128,
        "head_dim": 16,
    }
    config: Config = tiny_config("mixtral", model={"config_overrides": overrides})
    facts = model_facts(config, resolve_model_config(config))
    experts = 2 * 8 * 3 * 64 * 128
    assert facts.num_parameters - facts.num_matmul_parameters == experts * 6 // 8 + 128 * 64
    assert facts.flops_per_token < TERA
