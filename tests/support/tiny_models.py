"""Tiny models, tokenizers, configurations and sequences for the tests of models and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from llmtrain.config.schema import Config
from llmtrain.tasks.base import Example, Task

GPT2_SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64}
LLAMA_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
BERT_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
SIZES: dict[str, dict[str, Any]] = {"gpt2": GPT2_SIZES, "llama": LLAMA_SIZES, "bert": BERT_SIZES}
NO_DROPOUT: dict[str, dict[str, float]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def tiny_config(architecture: str = "gpt2", seq_length: int = 32, **sections: dict[str, Any]) -> Config:
    """A configuration of a model of two layers; `sections` adds keys to sections (model={"task": …})."""
    model = {
        "task": "masked_lm" if architecture == "bert" else "causal_lm",
        "architecture": architecture,
        "config_overrides": {**SIZES.get(architecture, {}), **NO_DROPOUT.get(architecture, {})},
    }
    raw: dict[str, Any] = {
        "model": {**model, **sections.pop("model", {})},
        "data": {"train": [{"path": "text"}], "seq_length": seq_length, **sections.pop("data", {})},
        "batch": {},
        "optimizer": {"learning_rate": 1e-3},
        "schedule": {"max_steps": 1},
        "precision": "fp32",
        **sections,
    }
    raw["model"] = {key: value for key, value in raw["model"].items() if value is not None}
    return Config.model_validate(raw)


def tiny_tokenizer(kind: str = "gpt", vocab_size: int = 100, **special_tokens: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of words `w0 w1 …`; `gpt` has eos = bos = pad, `bert` has the five of BERT, at the first ids."""
    kinds: dict[str, dict[str, str | None]] = {
        "gpt": {"eos_token": "<eos>", "bos_token": "<eos>", "pad_token": "<eos>"},
        "bert": {
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        },
    }
    specials = {**kinds[kind], **special_tokens}
    names = list(dict.fromkeys(token for token in specials.values() if token))
    words = [*names, *(f"w{i}" for i in range(vocab_size - len(names)))]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[-1]))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


@dataclass(frozen=True)
class TinySequence:
    """A packed sequence, with what the tasks read of it."""

    input_ids: npt.NDArray[np.int32]
    document_lengths: tuple[int, ...]
    key: tuple[int, ...] = (42, 0, 0, 0)


def random_sequence(document_lengths: Sequence[int], seed: int = 0, vocab_size: int = 100) -> TinySequence:
    """Documents of random ordinary tokens (ids from 5)."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, vocab_size, size=sum(document_lengths)).astype(np.int32)
    return TinySequence(ids, tuple(document_lengths), key=(42, 0, 0, seed))


def separate_examples(task: Task, sequence: TinySequence) -> list[Example]:
    """Each document as an example of its own, with the tokens and labels that it has in the packed one."""
    packed = task.encode(sequence)
    ends = np.cumsum(sequence.document_lengths)
    parts = [slice(end - length, end) for end, length in zip(ends, sequence.document_lengths, strict=True)]
    return [
        Example(
            packed.input_ids[part],
            packed.labels[part],
            position_ids=np.arange(part.stop - part.start),
            document_ids=np.zeros(part.stop - part.start, dtype=np.int64),
        )
        for part in parts
    ]


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of each parameter."""
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
