"""Models with weights: reproducible, resumable by name, in the state that training wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError
from llmtrain.models import build_model, resolve_model_config
from tests.support.tiny_models import tiny_config, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def _build(config: Config) -> Any:
    return build_model(config, resolve_model_config(config, TOKENIZER))


def _named(name: Path, **model: Any) -> Config:
    return tiny_config(model={"architecture": None, "config_overrides": {}, "name_or_path": str(name), **model})


def test_the_seed_decides_the_weights() -> None:
    first, again = _build(tiny_config()), _build(tiny_config())
    other = _build(tiny_config(run={"seed": 1}))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)


def test_building_leaves_the_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    _build(tiny_config())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_weights_follow_the_models_own_rules(architecture: str) -> None:
    """Standard deviations of transformers' initialisation, GPT-2's scaled residual projections among them."""
    model = _build(tiny_config(architecture))
    assert model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            assert (parameter == (0.0 if name.endswith("bias") else 1.0)).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            expected = 0.02 / 2 if "c_proj" in name else 0.02  # 1 / sqrt(2 x 2 layers)
            assert parameter.std().item() == pytest.approx(expected, rel=0.06), name


def test_tied_weights_are_one() -> None:
    model = _build(tiny_config("gpt2"))
    assert model.lm_head.weight is model.transformer.wte.weight


def test_gradient_checkpointing() -> None:
    assert _build(tiny_config(model={"gradient_checkpointing": True})).is_activation_checkpointing
    assert not _build(tiny_config()).is_activation_checkpointing


def test_pretrained_weights_are_the_saved_ones(tmp_path: Path) -> None:
    saved = _build(tiny_config(run={"seed": 5}))
    saved.save_pretrained(tmp_path)
    loaded = _build(_named(tmp_path))
    expected = saved.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    scratch = _build(_named(tmp_path, init="scratch"))
    assert not torch.equal(scratch.transformer.wte.weight, saved.transformer.wte.weight)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_rows_for_new_tokens_are_average_ones(architecture: str, tmp_path: Path) -> None:
    saved = _build(tiny_config(architecture))
    saved.save_pretrained(tmp_path)
    config = _named(tmp_path, config_overrides={"vocab_size": 130})
    model = build_model(config, resolve_model_config(config, tiny_tokenizer(vocab_size=130)))
    assert model.config.vocab_size == 130
    for get in ("get_input_embeddings", "get_output_embeddings"):
        old, new = getattr(saved, get)().weight, getattr(model, get)().weight
        assert torch.equal(new[:128], old)
        torch.testing.assert_close(new[128:], old.mean(dim=0).expand(2, -1))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    _build(tiny_config()).config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.name_or_path='.*' gives no model with weights"):
        _build(_named(tmp_path))


def test_overrides_that_do_not_fit_the_weights(tmp_path: Path) -> None:
    _build(tiny_config()).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.config_overrides.* other shapes than the pretrained weights"):
        _build(_named(tmp_path, config_overrides={"n_embd": 32}))
