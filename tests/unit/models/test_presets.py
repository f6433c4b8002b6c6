"""The presets' parameter counts against what was published, with the published vocabulary and no padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForPreTraining

from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError
from llmtrain.models import PRESETS, model_facts, resolve_model_config
from tests.support.tiny_models import tiny_config

# In millions, as printed. GPT-2: github.com/openai/gpt-2 (names of the released models). GPT-3: Brown et al. 2020,
# table 2.1. BERT: Turc et al. 2019, table 1, and Devlin et al. 2019, section 3; these counts include the pooler and the
# next-sentence head, which a masked LM has not. Llama: Zhao et al. 2024 (GaLore), Liu et al. 2024 (MobileLLM, table of
# its model card; without the norms), Xia et al. 2023 (Sheared-LLaMA), Grattafiori et al. 2024.
PUBLISHED_MILLIONS = {
    "gpt2-124m": "124",
    "gpt2-355m": "355",
    "gpt2-774m": "774",
    "gpt2-1558m": "1558",
    "gpt3-125m": "125",
    "gpt3-350m": "356",  # printed as 350M, see the presets' docstring
    "gpt3-760m": "760",
    "gpt3-1.3b": "1.3e3",
    "gpt3-2.7b": "2.7e3",
    "gpt3-6.7b": "6.7e3",
    "gpt3-13b": "13e3",
    "gpt3-175b": "175e3",
    "bert-tiny": "4.4",
    "bert-mini": "11.3",
    "bert-small": "29.1",
    "bert-medium": "41.7",
    "bert-base": "110.1",
    "bert-large": "336",  # printed as 340M
    "llama-60m": "58",  # called 60M
    "llama-125m": "124.6",
    "llama-350m": "345.3",
    "llama-1.3b": "1.3e3",
    "llama-8b": "8030",
}


def preset_config(preset: str) -> Config:
    """The preset with its published vocabulary, no padding, short sequences."""
    task = "masked_lm" if preset.startswith("bert") else "causal_lm"
    model: dict[str, Any] = {
        "task": task,
        "preset": preset,
        "architecture": None,
        "config_overrides": {},
        "pad_vocab_to_multiple_of": 1,
    }
    return tiny_config(model=model)


def _rounded_like(published: str, millions: float) -> str:
    """`millions` in as many digits as the published figure has."""
    mantissa, _, exponent = published.partition("e")
    decimals = len(mantissa.partition(".")[2])
    scaled = millions / 10 ** int(exponent or 0)
    return f"{scaled:.{decimals}f}" + (f"e{exponent}" if exponent else "")


def _counted_as_published(preset: str, count: int, model_config: Any) -> int:
    """The count that the publication means, from that of the preset's own model."""
    if preset.startswith("bert"):
        with torch.device("meta"):
            return sum(p.numel() for p in AutoModelForPreTraining.from_config(model_config).parameters())
    if preset in ("llama-125m", "llama-350m"):
        return count - (2 * model_config.num_hidden_layers + 1) * model_config.hidden_size
    return count


def test_every_preset_has_a_published_count() -> None:
    assert set(PUBLISHED_MILLIONS) == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_parameter_counts(preset: str) -> None:
    config = preset_config(preset)
    model_config = resolve_model_config(config)
    assert model_config.vocab_size == PRESETS[preset].vocab_size
    count = model_facts(config, model_config).num_parameters
    assert count == PRESETS[preset].num_parameters
    counted = _counted_as_published(preset, count, model_config)
    assert _rounded_like(PUBLISHED_MILLIONS[preset], counted / 1e6) == PUBLISHED_MILLIONS[preset]


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.startswith("gpt")])
def test_gpt_counts_by_hand(preset: str) -> None:
    """12 L d² in the matrices, 13 L d in biases and norms, tables of V d and P d, a last norm of 2 d."""
    sizes = PRESETS[preset].sizes
    layers, width, positions = sizes["n_layer"], sizes["n_embd"], sizes["n_positions"]
    expected = 12 * layers * width**2 + 13 * layers * width + (50_257 + positions + 2) * width
    assert PRESETS[preset].num_parameters == expected
    assert width % sizes["n_head"] == 0


def test_pretraining_heads_are_what_masked_lm_lacks() -> None:
    for name in ("bert-tiny", "bert-base"):
        config = preset_config(name)
        model_config = resolve_model_config(config)
        width = model_config.hidden_size
        pooler_and_next_sentence = width * width + width + 2 * width + 2
        masked = model_facts(config, model_config).num_parameters
        assert _counted_as_published(name, masked, model_config) == masked + pooler_and_next_sentence


@pytest.mark.parametrize(
    ("wrong", "meant"), [("gpt2-124", "gpt2-124m"), ("GPT2_124M", "gpt2-124m"), ("bert_base", "bert-base")]
)
def test_unknown_preset_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.preset='{wrong}'.*did you mean {meant}\?.*llama-8b"):
        resolve_model_config(preset_config(wrong).model_copy())
