"""Under ZeRO-3 a model starts from the weights that it has without, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrain.config.schema import Config
from llmtrain.models import build_model, model_facts, resolve_model_config
from llmtrain.tasks import Task, build_task
from tests.support.ranks import RankPool
from tests.support.tiny_models import TinySequence, gradients, random_sequence, tiny_config, tiny_tokenizer

ARCHITECTURES = ("gpt2", "llama", "bert")


def _digest(name: str, tensor: torch.Tensor) -> str:
    return f"{name} {tuple(tensor.shape)} {hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest()[:16]}"


def _plain_digests(config: Config, tokenizer: Any, dtype: torch.dtype) -> dict[str, list[str]]:
    model = build_model(config, resolve_model_config(config, tokenizer))
    return {
        "parameters": [_digest(n, p.detach().to(dtype)) for n, p in model.named_parameters()],
        "buffers": [_digest(n, b) for n, b in model.named_buffers()],
    }


def _zero3_digests(config: Config, tokenizer: Any, precision: str) -> dict[str, Any]:
    """On each rank: build under ZeRO-3, gather parameter by parameter."""
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    ds_config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    if precision == "bf16":
        ds_config["bf16"] = {"enabled": True}
    torch.manual_seed(deepspeed.comm.get_rank())
    before = torch.get_rng_state()
    context = HfDeepSpeedConfig(ds_config)
    model_config = resolve_model_config(config, tokenizer)
    facts = model_facts(config, model_config)
    model = build_model(config, model_config)
    parameters, is_partitioned = [], []
    for name, parameter in model.named_parameters():
        is_partitioned.append(parameter.numel() == 0 and parameter.ds_numel > 0)
        with deepspeed.zero.GatheredParameters([parameter]):
            parameters.append(_digest(name, parameter.detach()))
    buffers = [_digest(n, b) for n, b in model.named_buffers()]
    del context
    return {
        "parameters": parameters,
        "buffers": buffers,
        "is_partitioned": all(is_partitioned),
        "num_parameters": facts.num_parameters,
        "is_rng_kept": torch.equal(before, torch.get_rng_state()),
    }


def _check(config: Config, tokenizer: Any, pool: RankPool, precision: str, *, is_partitioned: bool = True) -> None:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    expected = _plain_digests(config, tokenizer, dtype)
    facts = model_facts(config, resolve_model_config(config, tokenizer))
    for answer in pool.run(_zero3_digests, config, tokenizer, precision):
        assert answer["is_partitioned"] == is_partitioned
        assert answer["is_rng_kept"]
        assert answer["num_parameters"] == facts.num_parameters
        assert answer["parameters"] == expected["parameters"]
        assert answer["buffers"] == expected["buffers"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scratch(architecture: str, precision: str, two_ranks: RankPool) -> None:
    tokenizer = tiny_tokenizer("bert" if architecture == "bert" else "gpt")
    _check(tiny_config(architecture), tokenizer, two_ranks, precision)


@pytest.mark.parametrize("num_tokens", [100, 130])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_pretrained(architecture: str, num_tokens: int, two_ranks: RankPool, tmp_path: Path) -> None:
    """As saved, or with rows for new tokens (that table alone is whole until the engine partitions it)."""
    saved = tiny_config(architecture, run={"seed": 3})
    build_model(saved, resolve_model_config(saved, tiny_tokenizer())).save_pretrained(tmp_path)
    overrides = {"vocab_size": num_tokens} if num_tokens > 128 else {}
    model = {"architecture": None, "name_or_path": str(tmp_path), "config_overrides": overrides}
    tokenizer = tiny_tokenizer(vocab_size=num_tokens)
    _check(tiny_config(model=model), tokenizer, two_ranks, "fp32", is_partitioned=not overrides)


def _losses_under_zero3(config: Config, tokenizer: Any, task: Task, sequence: TinySequence) -> list[float]:
    """The loss of a packed sequence through DeepSpeed's engine, before and after a step in which rank 1 has nothing."""
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    context = HfDeepSpeedConfig(ds_config)
    model = build_model(config, resolve_model_config(config, tokenizer))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)
    has_data = deepspeed.comm.get_rank() == 0
    output = task.loss(engine, task.collate([task.encode(sequence) if has_data else None]))
    engine.backward(output.loss_sum)
    engine.step()
    after = task.loss(engine, task.collate([task.encode(sequence)]))
    engine.destroy()
    del context
    return [output.loss_sum.item(), after.loss_sum.item()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_through_the_engine(architecture: str, two_ranks: RankPool) -> None:
    """The task takes the engine for a model, and a rank without data takes part in the backward with zeros."""
    config = tiny_config(architecture)
    tokenizer = tiny_tokenizer("bert" if architecture == "bert" else "gpt")
    task, sequence = build_task(config, tokenizer), random_sequence([12, 9])
    model = build_model(config, resolve_model_config(config, tokenizer))
    before = task.loss(model, task.collate([task.encode(sequence)])).loss_sum
    # Half of the gradient: DeepSpeed takes the mean over two ranks, and one of them has none.
    gradient = gradients(model, before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 0.1 * gradient[name] / 2
    after = task.loss(model, task.collate([task.encode(sequence)])).loss_sum
    first, second = two_ranks.run(_losses_under_zero3, config, tokenizer, task, sequence)
    assert second[0] == 0.0
    assert first[0] == pytest.approx(before.item(), rel=1e-6)
    assert first[1] == second[1] == pytest.approx(after.item(), rel=1e-5)
