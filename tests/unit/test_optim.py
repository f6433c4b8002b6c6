"""Parameter groups, and which implementation is taken where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from llmtrain.config.schema import OptimizerConfig
from llmtrain.errors import ConfigError
from llmtrain.optim import build_optimizer, hidden_matrices, muon_scale, parameter_groups
from tests.support.engines import make_model

OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


def _config(**keys: Any) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"learning_rate": 1e-3, "weight_decay": 0.1, **keys})


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    )


@pytest.mark.parametrize("make", [make_model, _bert])
def test_matrices_and_embeddings_are_decayed_biases_and_norms_are_not(make: Any) -> None:
    model = make()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, undecayed = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.1, 0.0)
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert all(parameter.ndim == 1 for parameter in undecayed["params"])
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    assert embeddings <= {id(parameter) for parameter in decayed["params"]}
    biases_and_norms = {n for n in names.values() if n.endswith("bias") or "ln_" in n or "LayerNorm" in n}
    assert biases_and_norms
    assert biases_and_norms <= {names[id(parameter)] for parameter in undecayed["params"]}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_each_parameter_is_in_exactly_one_group_a_tied_one_once(name: str) -> None:
    model = make_model()
    assert model.lm_head.weight is model.transformer.wte.weight
    optimizer = build_optimizer(model, _config(name=name), {}, "cpu")
    grouped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted({id(parameter) for parameter in model.parameters()})


def test_frozen_parameters_are_in_no_group() -> None:
    model = make_model()
    model.transformer.wpe.requires_grad_(False)
    grouped = [id(p) for group in parameter_groups(model, 0.1) for p in group["params"]]
    assert id(model.transformer.wpe.weight) not in grouped
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="model has no parameter to train"):
        build_optimizer(model, _config(), {}, "cpu")


def test_a_group_without_parameters_is_left_out() -> None:
    groups = parameter_groups(nn.Linear(4, 4, bias=False), 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1]


def test_partitioned_parameters_are_judged_by_their_shape_in_the_model() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.ds_shape = layer.weight.shape
    layer.weight.data = torch.empty(0)
    decayed, undecayed = parameter_groups(layer, 0.1)
    assert decayed["params"] == [layer.weight]
    assert undecayed["params"] == [layer.bias]


def test_adamw_is_torchs_fused_one_with_the_configured_numbers() -> None:
    optimizer = build_optimizer(make_model(), _config(adam_beta2=0.95, adam_epsilon=1e-6), {}, "cpu")
    assert type(optimizer) is torch.optim.AdamW
    group = optimizer.param_groups[0]
    assert (group["fused"], group["lr"], group["betas"], group["eps"]) == (True, 1e-3, (0.9, 0.95), 1e-6)


def test_under_offload_adamw_is_deepspeeds_cpu_adam() -> None:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = build_optimizer(make_model(), _config(adam_beta2=0.95), OFFLOADED, "cpu")
    assert isinstance(optimizer, DeepSpeedCPUAdam)
    assert optimizer.adam_w_mode
    assert optimizer.fp32_optimizer_states
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)


@pytest.mark.parametrize(("name", "operation"), [("adamw", "adam.DeepSpeedCPUAdam"), ("lion", "lion.DeepSpeedCPULion")])
def test_a_missing_compiler_is_a_configuration_error(
    name: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Error building extension 'cpu_op'\nand a page of compiler output")

    monkeypatch.setattr(f"deepspeed.ops.{operation}", fail)
    with pytest.raises(ConfigError) as error:
        build_optimizer(make_model(), _config(name=name), OFFLOADED, "cpu")
    assert f"optimizer.name='{name}' needs an extension" in str(error.value)
    assert "(Error building extension 'cpu_op'); it needs a C++ compiler and ninja" in str(error.value)


def test_muon_is_for_hidden_matrices_alone() -> None:
    model = make_model()
    assert hidden_matrices(model) == {
        f"transformer.h.{layer}.{matrix}.weight"
        for layer in range(2)
        for matrix in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    bert = hidden_matrices(_bert())
    assert "bert.encoder.layer.0.attention.self.query.weight" in bert
    assert not any("embeddings" in name or "decoder" in name for name in bert)


def test_muon_scales_learning_rate_and_decay_so_that_one_learning_rate_suits_all() -> None:
    optimizer = build_optimizer(make_model(), _config(name="muon"), {}, "cpu")
    muon = [group for group in optimizer.param_groups if group["use_muon"]]
    adam = [group for group in optimizer.param_groups if not group["use_muon"]]
    for group in muon:
        assert group["lr"] == pytest.approx(1e-3 * group["lr_scale"])
        assert group["lr"] * group["weight_decay"] == pytest.approx(1e-3 * 0.1)
    assert [group["weight_decay"] for group in adam] == [0.1, 0.0]
    assert all("lr_scale" not in group for group in adam)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 256), (256, 64)])
def test_the_scaled_muon_update_has_adamws_usual_size(rows: int, columns: int) -> None:
    """Root mean square 0.2, against torch's own way to match AdamW (match_rms_adamw)."""
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    torch.manual_seed(0)
    gradient = torch.randn(rows, columns)
    with torch.compiler.set_stance("force_eager"):
        update = muon_update(gradient.clone(), torch.zeros(rows, columns)) * muon_scale(rows, columns)
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)
    parameter = nn.Parameter(torch.zeros(rows, columns))
    parameter.grad = gradient.clone()
    torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    cosine = nn.functional.cosine_similarity(-parameter.detach().flatten(), update.flatten(), dim=0)
    assert float(cosine) > 0.99
    assert float(parameter.detach().norm() / update.norm()) == pytest.approx(1.0, rel=0.05)
