"""Parameters go by Hugging Face's names, tied ones once, whatever wraps the model."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from llmtrain.checkpoint.names import names_of_buffers, names_of_parameters, plain_name


class Late(nn.Module):
    """The tied parameter's dropped name comes first."""

    all_tied_weights_keys = {"head.weight": "body.weight"}

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5, bias=False)
        self.body = nn.Embedding(5, 3)
        self.head.weight = self.body.weight
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("left_out", torch.zeros(2), persistent=False)
        self.norm = nn.BatchNorm1d(3)


def test_a_tied_parameter_goes_by_the_name_that_is_saved() -> None:
    module = Late()
    assert list(names_of_parameters(module)) == ["body.weight", "norm.weight", "norm.bias"]
    assert names_of_parameters(module)["body.weight"] is module.head.weight


def test_only_persistent_buffers_are_named() -> None:
    assert list(names_of_buffers(Late())) == [
        "kept",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]


def test_what_torch_compile_puts_into_names_is_left_out() -> None:
    wrapped = nn.Sequential(nn.Linear(2, 2))
    wrapped[0] = torch.compile(wrapped[0], backend="eager")  # type: ignore[assignment]
    assert any("_orig_mod" in name for name, _ in wrapped.named_parameters())
    assert list(names_of_parameters(wrapped)) == ["0.weight", "0.bias"]
    assert plain_name("_orig_mod.a._orig_mod.b") == "a.b"


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama"])
def test_the_names_are_those_that_transformers_saves(architecture: str, tmp_path: object) -> None:
    from tests.unit.checkpoint.models import tiny_model

    model = tiny_model(architecture)
    model.save_pretrained(tmp_path)
    saved = load_file(f"{tmp_path}/model.safetensors")
    assert {**names_of_parameters(model), **names_of_buffers(model)}.keys() == saved.keys()
