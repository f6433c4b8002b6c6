"""The tasks' losses against transformers' own, and packed documents against the same documents one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from llmtrain.config.schema import Config
from llmtrain.models import apply_kernels, build_model, resolve_model_config
from llmtrain.tasks import build_task
from llmtrain.tasks.base import Task
from tests.support.tiny_models import (
    gradients,
    random_sequence,
    separate_examples,
    tiny_config,
    tiny_tokenizer,
)

LENGTHS = (7, 11, 1, 9)
SEQ_LENGTH = 32


def _build(config: Config) -> tuple[Any, Task]:
    tokenizer = tiny_tokenizer("bert" if config.model.task == "masked_lm" else "gpt")
    return build_model(config, resolve_model_config(config, tokenizer)), build_task(config, tokenizer)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_causal_loss_is_that_of_transformers(architecture: str) -> None:
    model, task = _build(tiny_config(architecture, SEQ_LENGTH))
    sequence = random_sequence([SEQ_LENGTH])
    ids = torch.from_numpy(sequence.input_ids.astype(np.int64))[None]
    theirs = model(input_ids=ids, labels=ids).loss
    ours = task.loss(model, task.collate([task.encode(sequence)]))
    assert ours.num_supervised_tokens.item() == SEQ_LENGTH - 1
    torch.testing.assert_close(ours.loss_sum / ours.num_supervised_tokens, theirs)
    expected = gradients(model, theirs)
    actual = gradients(model, task.loss(model, task.collate([task.encode(sequence)])).loss_sum / (SEQ_LENGTH - 1))
    torch.testing.assert_close(actual, expected)


def test_masked_loss_is_that_of_transformers() -> None:
    model, task = _build(tiny_config("bert", SEQ_LENGTH))
    example = task.encode(random_sequence([SEQ_LENGTH]))
    theirs = model(
        input_ids=torch.from_numpy(example.input_ids)[None], labels=torch.from_numpy(example.labels)[None]
    ).loss
    ours = task.loss(model, task.collate([example]))
    assert ours.num_supervised_tokens.item() == example.num_supervised_tokens > 0
    torch.testing.assert_close(ours.loss_sum / ours.num_supervised_tokens, theirs)


@pytest.mark.parametrize("attn_implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_packed_is_separate(architecture: str, attn_implementation: str) -> None:
    """Loss and gradients: several documents a row, padding after them, a row of padding alone."""
    config = tiny_config(architecture, SEQ_LENGTH, model={"attn_implementation": attn_implementation})
    model, task = _build(config)
    sequences = [random_sequence(LENGTHS, seed=1), random_sequence([20], seed=2)]
    packed = task.loss(model, task.collate([*(task.encode(s) for s in sequences), None]))
    packed_gradients = gradients(model, packed.loss_sum)
    examples = [example for s in sequences for example in separate_examples(task, s)]
    separate = [task.loss(model, task.collate([example])) for example in examples]
    total = torch.stack([output.loss_sum for output in separate]).sum()
    assert packed.num_supervised_tokens == sum(output.num_supervised_tokens for output in separate)
    torch.testing.assert_close(packed.loss_sum, total)
    torch.testing.assert_close(packed_gradients, gradients(model, total), rtol=1e-4, atol=1e-6)


def test_isolation_is_what_makes_it_so() -> None:
    """The same documents as one text have another loss: the tests above can fail."""
    config = tiny_config("gpt2", SEQ_LENGTH, data={"packing": {"isolate_documents": False}})
    model, task = _build(config)
    isolating = build_task(tiny_config("gpt2", SEQ_LENGTH), tiny_tokenizer())
    sequence = random_sequence(LENGTHS)
    batch = isolating.collate([isolating.encode(sequence)])
    assert abs(task.loss(model, batch).loss_sum - isolating.loss(model, batch).loss_sum) > 1e-3


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_packed_is_separate_in_bf16(architecture: str) -> None:
    """The mask is exact in bf16 too: what is left is the rounding of the products."""
    model, task = _build(tiny_config(architecture, SEQ_LENGTH))
    model.to(torch.bfloat16)
    sequence = random_sequence(LENGTHS, seed=3)
    packed = task.loss(model, task.collate([task.encode(sequence)])).loss_sum
    total = sum(task.loss(model, task.collate([e])).loss_sum for e in separate_examples(task, sequence))
    torch.testing.assert_close(packed, total, rtol=2e-3, atol=0)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_first_loss_is_that_of_a_uniform_guess(architecture: str) -> None:
    model, task = _build(tiny_config(architecture, 64))
    batch = task.collate([task.encode(random_sequence([40, 24], seed)) for seed in range(32)])
    output = task.loss(model, batch)
    mean = (output.loss_sum / output.num_supervised_tokens).item()
    assert mean == pytest.approx(math.log(model.config.vocab_size), abs=0.05)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_a_batch_of_padding_has_gradients_of_zero(architecture: str) -> None:
    model, task = _build(tiny_config(architecture, SEQ_LENGTH))
    output = task.loss(model, task.collate([None, None]))
    assert output.loss_sum.item() == 0.0
    assert output.num_supervised_tokens.item() == 0
    found = gradients(model, output.loss_sum)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert all((gradient == 0).all() for gradient in found.values())


@pytest.mark.parametrize("packing", [False, {"isolate_documents": True}, {"isolate_documents": False}])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_pad_is_eos_changes_nothing(architecture: str, packing: Any) -> None:
    """The token that pads is also in the text and ends it: it counts, and its embedding learns."""
    config = tiny_config(architecture, SEQ_LENGTH, data={"packing": packing})
    model, task = _build(config)
    sequence = random_sequence([11])
    sequence.input_ids[[4, 10]] = 0
    batch = task.collate([task.encode(sequence)])
    other = {**batch, "input_ids": batch["input_ids"].masked_fill(batch["document_ids"] == -1, 99)}
    expected = gradients(model, task.loss(model, other).loss_sum)
    output = task.loss(model, batch)
    assert output.num_supervised_tokens.item() == 10
    actual = gradients(model, output.loss_sum)
    torch.testing.assert_close(actual, expected)
    assert (model.get_input_embeddings().weight.grad[0] != 0).any()


@pytest.mark.parametrize("packing", [False, {"isolate_documents": True}])
def test_padding_changes_no_masked_loss(packing: Any) -> None:
    config = tiny_config("bert", SEQ_LENGTH, data={"packing": packing})
    model, task = _build(config)
    example = task.encode(random_sequence([20], seed=4))
    short = build_task(tiny_config("bert", 20, data={"packing": packing}), tiny_tokenizer("bert"))
    padded = task.loss(model, task.collate([example])).loss_sum
    torch.testing.assert_close(padded, short.loss(model, short.collate([example])).loss_sum)


def test_gradient_checkpointing_changes_nothing() -> None:
    config = tiny_config("gpt2", SEQ_LENGTH)
    model, task = _build(config)
    checkpointed = replace_model(config, gradient_checkpointing=True)
    other, _ = _build(checkpointed)
    batch = task.collate([task.encode(random_sequence(LENGTHS))])
    expected = gradients(model, task.loss(model, batch).loss_sum)
    actual = gradients(other, task.loss(other, batch).loss_sum)
    assert other.is_activation_checkpointing
    torch.testing.assert_close(actual, expected)


def test_native_gelu_changes_nothing() -> None:
    config = tiny_config("gpt2", SEQ_LENGTH)
    model, task = _build(config)
    other, _ = _build(config)
    assert apply_kernels(other, "auto")[0].startswith("gelu: torch's own")
    assert apply_kernels(model, "off")
    batch = task.collate([task.encode(random_sequence(LENGTHS))])
    torch.testing.assert_close(task.loss(other, batch).loss_sum, task.loss(model, batch).loss_sum)
    actual = gradients(other, task.loss(other, batch).loss_sum)
    torch.testing.assert_close(actual, gradients(model, task.loss(model, batch).loss_sum))


def replace_model(config: Config, **changes: Any) -> Config:
    """The configuration with other keys in `model`."""
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})
