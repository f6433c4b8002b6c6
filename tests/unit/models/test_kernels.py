"""Faster parts have equal numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN

from llmtrain.config.schema import KernelsConfig
from llmtrain.models import apply_kernels, build_model, resolve_model_config
from llmtrain.models.kernels import PYTHON_TANH_GELUS
from tests.support.tiny_models import tiny_config, tiny_tokenizer


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast"])
def test_native_tanh_gelu(name: str) -> None:
    """Values and gradients, from the flat ends to the bend."""
    python = ACT2FN[name]
    assert type(python) in PYTHON_TANH_GELUS
    x = torch.linspace(-8, 8, 10_001, dtype=torch.float64, requires_grad=True)
    theirs, ours = python(x), torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    (their_gradient,) = torch.autograd.grad(theirs.sum(), x)
    (our_gradient,) = torch.autograd.grad(ours.sum(), x)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kernels", "num_replaced", "line"),
    [
        ("auto", 2, "in 2 places"),
        ("off", 0, "off"),
        (KernelsConfig(gelu=True), 2, "in 2 places"),
        (KernelsConfig(gelu=False), 0, "off"),
    ],
)
def test_choice(kernels: Any, num_replaced: int, line: str) -> None:
    config = tiny_config("gpt2")
    model = build_model(config, resolve_model_config(config, tiny_tokenizer()))
    lines = apply_kernels(model, kernels)
    assert len(lines) == 1
    assert line in lines[0]
    assert sum(isinstance(m, torch.nn.GELU) for m in model.modules()) == num_replaced
