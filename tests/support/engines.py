"""A tiny GPT-2 trained by the engine and by a plain PyTorch loop on the same batches, to be compared.

`train_on_ranks` is what a `RankPool` runs; `train_plainly` is the oracle. Batches are a function of the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from llmtrain.batching import plan_batches
from llmtrain.config.schema import Config
from llmtrain.engine import Engine, StepOutcome, construction_context, deepspeed_config

VOCAB_SIZE, SEQ_LENGTH, GLOBAL_BATCH_SIZE, LEARNING_RATE = 128, 16, 8, 1e-2
IGNORED = -100
ADAM_EPSILON = 1e-4
"""Large, or AdamW would make steps of full size out of the rounding errors of gradients that are zero (key biases)."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scenario:
    """One training: what is not named here is the same for all."""

    stage: int = 0
    precision: str = "fp32"
    accumulation: int = 1
    offload: bool = False
    optimizer: str = "adamw"
    max_grad_norm: float = 1.0
    num_steps: int = 4
    labels: str = "uneven"
    poison_step: int | None = None
    """At this step (from 0) the loss of the last rank is NaN."""
    is_built_in_pieces: bool = False
    """At stage 3 the model is built within `deepspeed.zero.Init`."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    zero: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """What a training left behind: per step the loss and the outcome, per step the weights, if asked for."""

    loss_sums: list[float]
    outcomes: list[StepOutcome]
    weights: list[dict[str, Array]]
    moments: list[list[Array]]
    optimizer: str


def make_config(scenario: Scenario) -> Config:
    """The scenario as a whole configuration."""
    zero: dict[str, Any] = {"stage": scenario.stage, **scenario.zero}
    if scenario.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return Config.model_validate(
        {
            "model": {"architecture": "gpt2"},
            "data": {"train": [{"path": "json", "data_files": "none"}]},
            "batch": {
                "global_batch_size": GLOBAL_BATCH_SIZE,
                "gradient_accumulation_steps": scenario.accumulation,
            },
            "optimizer": {
                "name": scenario.optimizer,
                "learning_rate": LEARNING_RATE,
                "weight_decay": 0.1,
                "adam_epsilon": ADAM_EPSILON,
                "max_grad_norm": scenario.max_grad_norm,
            },
            "schedule": {"max_steps": scenario.num_steps},
            "precision": scenario.precision,
            "deepspeed": {"zero_optimization": zero, **scenario.deepspeed},
        }
    )


def make_model() -> nn.Module:
    """A GPT-2 of two layers, tied embeddings, without dropout; the same weights in every process."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=SEQ_LENGTH,
            n_embd=64,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _make_model_in_pieces(ds_config: dict[str, Any]) -> nn.Module:
    import deepspeed

    whole = dict(make_model().named_parameters())
    with deepspeed.zero.Init(config_dict_or_path=ds_config):
        model = make_model()
    for name, parameter in model.named_parameters():
        assert parameter.numel() == 0, f"{name} is not partitioned"
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if parameter.numel():
                parameter.copy_(whole[name])
    return model


def global_batch(step: int, labels: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of a step, each (G, T).

    `labels`: `all` supervises every position, `uneven` none to all of a sequence, `one` a single label in the even
    sequences and all in the odd ones (so that of two ranks one has 1 and the other T x G / 2), `none_on_last` no label
    in the odd sequences.
    """
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(VOCAB_SIZE, (GLOBAL_BATCH_SIZE, SEQ_LENGTH + 1), generator=generator)
    inputs, targets = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    if labels == "uneven":
        for row in range(GLOBAL_BATCH_SIZE):
            targets[row, (row * 5 + step) % (SEQ_LENGTH + 1) :] = IGNORED
    elif labels == "one":
        targets[::2] = IGNORED
        targets[0, 3] = tokens[0, 4]
    elif labels == "none_on_last":
        targets[1::2] = IGNORED
    return inputs, targets


def loss_sum_of(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the token losses."""
    logits = model(input_ids=inputs).logits.float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def learning_rate_of(step: int) -> float:
    """Another one each step."""
    return LEARNING_RATE / (1 + step)


def train_plainly(scenario: Scenario) -> Trained:
    """The oracle: one process, whole batches, torch's AdamW and clipping."""
    model = make_model()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=ADAM_EPSILON, foreach=False)
    result = Trained([], [], [], [], "oracle")
    for step in range(scenario.num_steps):
        inputs, labels = global_batch(step, scenario.labels)
        loss_sum = loss_sum_of(model, inputs, labels)
        (loss_sum / int((labels != IGNORED).sum())).backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), scenario.max_grad_norm or float("inf")))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_of(step)
        skipped = step == scenario.poison_step
        if not skipped:
            optimizer.step()
        optimizer.zero_grad()
        result.loss_sums.append(float(loss_sum.detach()))
        result.outcomes.append(StepOutcome(norm, skipped, overflow=False, loss_scale=None))
        result.weights.append({name: _copied(p) for name, p in model.named_parameters()})
    return result


def train_on_ranks(scenario: Scenario) -> Trained:
    """What one rank of a pool does."""
    import deepspeed.comm

    rank, world_size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    config = make_config(scenario)
    plan = plan_batches(config.batch, world_size, None)
    ds_config = deepspeed_config(config, plan, "cpu")
    with construction_context(ds_config) as context:
        model = _make_model_in_pieces(ds_config) if scenario.is_built_in_pieces else make_model()
    if scenario.optimizer == "muon":
        # DeepSpeed compiles Muon's update with torch.compile, which takes minutes on CPU.
        torch.compiler.set_stance("force_eager")
    engine = Engine.create(model, config, ds_config, plan, torch.device("cpu"), context)
    engine.train_mode()
    result = Trained([], [], [], [], type(engine.optimizer).__name__)
    for step in range(scenario.num_steps):
        inputs, labels = global_batch(step, scenario.labels)
        num_supervised_tokens = int((labels != IGNORED).sum())
        loss_total = 0.0
        for index, rows in enumerate(plan.micro_batches_of(rank)):
            loss_sum = loss_sum_of(engine.forward_model, inputs[list(rows)], labels[list(rows)])
            loss_total += float(loss_sum.detach())
            if step == scenario.poison_step and rank == world_size - 1 and index == 0:
                loss_sum = loss_sum * float("nan")
            engine.backward(loss_sum, num_supervised_tokens)
            outcome = engine.step(learning_rate_of(step))
            assert (outcome is None) == (index < scenario.accumulation - 1)
        assert outcome is not None
        result.loss_sums.append(loss_total)
        result.outcomes.append(outcome)
        with engine.gathered_parameters():
            weights = {name: _copied(p) for name, p in engine.module.named_parameters()}
        result.weights.append(weights if rank == 0 else {})
        result.moments.append(_moments(engine))
    engine.close()
    return result


def _copied(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().clone().numpy()


def _moments(engine: Engine) -> list[Array]:
    """Every tensor of the optimizer's state on this rank, step counts too."""
    inner = engine.optimizer
    inner = getattr(inner, "optimizer", inner)
    return [
        _copied(torch.as_tensor(value).flatten())
        for state in inner.state.values()
        for _, value in sorted(state.items())
        if isinstance(value, torch.Tensor | int | float)
    ]
