"""What the model is given, by kernel and by what the batch holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from llmtrain.models import build_model, resolve_model_config
from llmtrain.tasks import Task, build_task
from llmtrain.tasks import attention as subject
from llmtrain.tasks.attention import additive_mask, model_inputs
from tests.support.tiny_models import random_sequence, separate_examples, tiny_config, tiny_tokenizer


def _model_and_task(architecture: str) -> tuple[Any, Task]:
    config = tiny_config(architecture, seq_length=16)
    tokenizer = tiny_tokenizer("bert" if architecture == "bert" else "gpt")
    return build_model(config, resolve_model_config(config, tokenizer)), build_task(config, tokenizer)


def test_additive_mask() -> None:
    documents = torch.tensor([[0, 0, 1, -1]])
    low = torch.finfo(torch.bfloat16).min
    causal = additive_mask(documents, torch.bfloat16, is_causal=True)
    assert causal.dtype == torch.bfloat16
    assert causal[0, 0].tolist() == [[0, low, low, low], [0, 0, low, low], [low, low, 0, low], [low, low, low, 0]]
    both_ways = additive_mask(documents, torch.float32, is_causal=False)
    assert (both_ways[0, 0] == 0).tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]


@pytest.mark.parametrize(("architecture", "is_causal"), [("gpt2", True), ("bert", False)])
def test_batches_of_whole_documents_are_left_to_the_model(architecture: str, is_causal: bool) -> None:
    model, task = _model_and_task(architecture)
    one_each = task.collate([task.encode(random_sequence([16])), task.encode(random_sequence([9])), None])
    inputs = model_inputs(model, one_each, is_causal=is_causal, isolate_documents=True)
    if is_causal:
        assert "attention_mask" not in inputs
    else:
        assert inputs["attention_mask"].sum(dim=1).tolist() == [16, 9, 0]
    assert inputs["position_ids"].tolist() == [list(range(16))] * 3
    two_in_a_row = task.collate([task.encode(random_sequence([8, 8]))])
    inputs = model_inputs(model, two_in_a_row, is_causal=is_causal, isolate_documents=True)
    assert inputs["attention_mask"].shape == (1, 1, 16, 16)


def test_flash_attention_gets_one_row_with_its_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = _model_and_task("gpt2")
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    batch = task.collate([task.encode(random_sequence([7, 5])), task.encode(random_sequence([16]))])
    inputs = model_inputs(model, batch, is_causal=True, isolate_documents=True)
    assert "attention_mask" not in inputs
    assert inputs["input_ids"].shape == (1, 32)
    assert inputs["cu_seq_lens_q"].tolist() == [0, 7, 12, 16, 32]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["max_length_q"] == 16


def _varlen_reference(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cu_seq_lens_q: torch.Tensor,
    is_causal: bool | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of each piece between two cumulative lengths by itself, as varlen flash-attention computes it."""
    assert attention_mask is None
    causal = module.is_causal if is_causal is None else is_causal
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    bounds = cu_seq_lens_q.tolist()
    pieces = [
        torch.nn.functional.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=causal
        )
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_boundaries_reach_the_attention_kernel(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of flash-attention, with a kernel that runs everywhere in its place: packed equals separate."""
    model, task = _model_and_task(architecture)
    sequence = random_sequence([7, 5])
    separate = sum(task.loss(model, task.collate([e])).loss_sum for e in separate_examples(task, sequence))
    AttentionInterface.register("varlen_reference", _varlen_reference)
    AttentionMaskInterface.register("varlen_reference", flash_attention_mask)
    model.set_attn_implementation("varlen_reference")
    traits = subject.traits_of

    def flash_traits(model: Any) -> subject.ModelTraits:
        found = traits(model)
        return subject.ModelTraits(**{**vars(found), "kernel": "flash_attention_2"})

    monkeypatch.setattr(subject, "traits_of", flash_traits)
    packed = task.loss(model, task.collate([task.encode(sequence)])).loss_sum
    torch.testing.assert_close(packed, separate)
