"""The models that `model.preset` names, with the facts that were published about them.

A preset is a transformers model type and its sizes. Vocabulary and special tokens come from the run's own tokenizer;
`vocab_size` is the published one, for a dry run that cannot reach its tokenizer, and `num_parameters` the count that
goes with it. Dropout is what the architecture has by default in transformers.

GPT-3 (Brown et al. 2020, table 2.1) is built from GPT-2's architecture: dense attention in all layers, where the paper
alternates dense and locally banded sparse ones. The paper's table has two misprints, told by d_model = n_heads x d_head
and by the parameters: "XL" has 24 heads of 128 at d_model 2048 (16 heads of 128 are 2048, and give the 1.3B), and "13B"
has d_model 5140 at 40 heads of 128 (40 x 128 = 5120). Its "350M" has 356 million, as its dimensions give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmtrain.config.suggest import nearest
from llmtrain.errors import Problem

GPT2_VOCABULARY = 50_257
BERT_VOCABULARY = 30_522
LLAMA2_VOCABULARY = 32_000
LLAMA3_VOCABULARY = 128_256


@dataclass(frozen=True)
class Preset:
    """One published model."""

    architecture: str
    """transformers' model type."""
    sizes: Mapping[str, Any]
    """Keys of its transformers configuration."""
    vocab_size: int
    """The published vocabulary."""
    num_parameters: int
    """With the published vocabulary, tied weights counted once."""
    source: str


def _gpt(layers: int, heads: int, width: int, positions: int, num_parameters: int, source: str) -> Preset:
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": positions}
    return Preset("gpt2", sizes, GPT2_VOCABULARY, num_parameters, source)


def _gpt2(layers: int, heads: int, width: int, num_parameters: int) -> Preset:
    return _gpt(
        layers, heads, width, 1024, num_parameters, "Radford et al. 2019; sizes as in the openai/gpt-2 repository"
    )


def _gpt3(layers: int, heads: int, width: int, num_parameters: int) -> Preset:
    return _gpt(layers, heads, width, 2048, num_parameters, "Brown et al. 2020, table 2.1")


def _bert(layers: int, heads: int, width: int, num_parameters: int, source: str) -> Preset:
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
    }
    return Preset("bert", sizes, BERT_VOCABULARY, num_parameters, source)


def _llama(
    layers: int,
    heads: tuple[int, int],
    widths: tuple[int, int],
    num_parameters: int,
    source: str,
    vocab_size: int = LLAMA2_VOCABULARY,
    **more: Any,
) -> Preset:
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "hidden_size": widths[0],
        "intermediate_size": widths[1],
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        **more,
    }
    return Preset("llama", sizes, vocab_size, num_parameters, source)


TURC = "Turc et al. 2019 (BERT miniatures)"
DEVLIN = "Devlin et al. 2019"
MOBILE_LLM = "Liu et al. 2024 (MobileLLM)"

PRESETS: Mapping[str, Preset] = {
    "gpt2-124m": _gpt2(12, 12, 768, 124_439_808),
    "gpt2-355m": _gpt2(24, 16, 1024, 354_823_168),
    "gpt2-774m": _gpt2(36, 20, 1280, 774_030_080),
    "gpt2-1558m": _gpt2(48, 25, 1600, 1_557_611_200),
    "gpt3-125m": _gpt3(12, 12, 768, 125_226_240),
    "gpt3-350m": _gpt3(24, 16, 1024, 355_871_744),
    "gpt3-760m": _gpt3(24, 16, 1536, 760_300_032),
    "gpt3-1.3b": _gpt3(24, 16, 2048, 1_315_723_264),
    "gpt3-2.7b": _gpt3(32, 32, 2560, 2_651_553_280),
    "gpt3-6.7b": _gpt3(32, 32, 4096, 6_658_404_352),
    "gpt3-13b": _gpt3(40, 40, 5120, 12_853_386_240),
    "gpt3-175b": _gpt3(96, 96, 12288, 174_604_259_328),
    "bert-tiny": _bert(2, 2, 128, 4_416_698, TURC),
    "bert-mini": _bert(4, 4, 256, 11_201_594, TURC),
    "bert-small": _bert(4, 8, 512, 28_795_194, TURC),
    "bert-medium": _bert(8, 8, 512, 41_404_730, TURC),
    "bert-base": _bert(12, 12, 768, 109_514_298, DEVLIN),
    "bert-large": _bert(24, 16, 1024, 335_174_458, DEVLIN),
    "llama-60m": _llama(8, (8, 8), (512, 1376), 58_073_600, "Zhao et al. 2024 (GaLore), llama_60m", rms_norm_eps=1e-6),
    "llama-125m": _llama(30, (9, 3), (576, 1536), 124_635_456, MOBILE_LLM, tie_word_embeddings=True),
    "llama-350m": _llama(32, (15, 5), (960, 2560), 345_355_200, MOBILE_LLM, tie_word_embeddings=True),
    "llama-1.3b": _llama(
        24, (16, 16), (2048, 5504), 1_345_423_360, "Xia et al. 2023 (Sheared-LLaMA-1.3B)", max_position_embeddings=4096
    ),
    "llama-8b": _llama(
        32,
        (32, 8),
        (4096, 14336),
        8_030_261_248,
        "Grattafiori et al. 2024 (Llama 3 8B)",
        LLAMA3_VOCABULARY,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    ),
}


def unknown_preset(name: str) -> Problem:
    """The problem of a name that is not in the table."""
    meant = nearest(name, PRESETS, cutoff=0.4)
    listed = f"the presets are {', '.join(PRESETS)}"
    remedy = f"did you mean {meant}? {listed}" if meant else listed
    return Problem("model.preset", "is not in the table of presets", remedy, name)
