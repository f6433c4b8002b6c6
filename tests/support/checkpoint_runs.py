"""Short trainings of a tiny model that are saved and resumed, for the tests of checkpoints.

Every size of the model is odd, so that no parameter divides evenly among ranks. Batches are a function of the step,
so the losses after a resume are the uninterrupted run's. `train_and_save` and `resume` are what a `RankPool` runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from llmtrain.batching import plan_batches
from llmtrain.checkpoint.fragment_source import FragmentSource
from llmtrain.checkpoint.manifest import Manifest
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.store import CheckpointStore, load_weights_only
from llmtrain.config.schema import Config
from llmtrain.dist.runtime import Dist
from llmtrain.engine import Engine, construction_context, deepspeed_config

VOCAB_SIZE, SEQ_LENGTH, GLOBAL_BATCH_SIZE = 101, 15, 6
SAVED_STEP, LAST_STEP = 3, 5


@dataclass(frozen=True)
class Setup:
    """How a run is spread and computed.

    `optimizer`: adamw, lion or muon (by llmtrain), torch (AdamW), cpu_adam, sgd, or fused (torch's AdamW,
    which DeepSpeed then takes for its FusedAdam).
    """

    stage: int = 0
    world_size: int = 1
    offload: bool = False
    offload_param: bool = False
    precision: str = "fp32"
    optimizer: str = "adamw"
    dropout: float = 0.0
    frozen: bool = False
    buffer: bool = True
    plain_bf16: bool = False
    """bf16 at DeepSpeed's own stage 0, which llmtrain's engine avoids."""
    zero: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        parts = [f"z{self.stage}", f"w{self.world_size}", self.precision]
        parts += ["offload"] * self.offload + ["offload_param"] * self.offload_param
        parts += [self.optimizer] * (self.optimizer != "adamw") + ["plain"] * self.plain_bf16
        parts += ["dropout"] * bool(self.dropout) + ["frozen"] * self.frozen
        return "-".join(parts)


@dataclass(frozen=True)
class Outcome:
    """What a run returns on each rank."""

    losses: list[float]
    path: Path | None = None
    trainer_state: dict[str, Any] | None = None
    rank_states: list[dict[str, Any]] | None = None
    optimizer: str = ""


def build_engine(setup: Setup, *, seed: int = 0) -> Engine:
    """On every rank of a pool."""
    _describe_the_cpu_once()
    config = _config(setup)
    plan = plan_batches(config.batch, setup.world_size, None)
    ds_config = deepspeed_config(config, plan, "cpu")
    if setup.plain_bf16:
        ds_config["zero_optimization"]["stage"] = 0
        ds_config["data_types"] = {"grad_accum_dtype": "bf16"}
    with construction_context(ds_config) as context:
        model = make_model(seed, dropout=setup.dropout, frozen=setup.frozen, buffer=setup.buffer)
    if setup.optimizer == "muon":
        # DeepSpeed compiles Muon's update, which takes a minute and changes no test of a checkpoint.
        torch._dynamo.config.disable = True
    if setup.optimizer in ("adamw", "lion", "muon") and not setup.plain_bf16:
        return Engine.create(model, config, ds_config, plan, torch.device("cpu"), context)
    import deepspeed

    ds_config |= {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    optimizer = _optimizer(setup.optimizer, model)
    fused = torch.optim.AdamW if setup.optimizer == "fused" else deepspeed.ops.adam.FusedAdam
    with patch("deepspeed.runtime.engine.FusedAdam", fused):
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config, dist_init_required=False)
    return Engine(engine, plan, ds_config, context)


def make_model(seed: int, *, dropout: float = 0.0, frozen: bool = False, buffer: bool = True) -> nn.Module:
    """A GPT-2 of two layers with tied embeddings and, if wanted, a persistent buffer and frozen positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB_SIZE, "n_positions": 17, "n_embd": 33, "n_layer": 2, "n_head": 3}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **drops, attn_implementation="sdpa", bos_token_id=0, eos_token_id=0))
    if buffer:
        model.transformer.register_buffer("seen", torch.tensor([seed, 7], dtype=torch.int64))
    if frozen:
        model.transformer.wpe.weight.requires_grad_(False)
    return model


def train(engine: Engine, rank: int, first: int, last: int) -> list[float]:
    """Steps `first` to `last` (from 1, inclusive); the global loss of each."""
    from deepspeed import comm

    engine.train_mode()
    losses = []
    for step in range(first, last + 1):
        inputs, targets = _batch(step)
        total = torch.zeros(1)
        for rows in engine.plan.micro_batches_of(rank):
            logits = engine.forward_model(input_ids=inputs[list(rows)]).logits.float()
            loss_sum = nn.functional.cross_entropy(logits.flatten(0, 1), targets[list(rows)].flatten(), reduction="sum")
            total += loss_sum.detach()
            engine.backward(loss_sum, targets.numel())
            engine.step(0.01 / step)
        comm.all_reduce(total)
        losses.append(float(total) / targets.numel())
    return losses


def train_and_save(setup: Setup, root: Path) -> Outcome:
    """Train to SAVED_STEP, save, train to LAST_STEP."""
    ranks = Dist.adopt()
    engine = build_engine(setup)
    losses = train(engine, ranks.rank, 1, SAVED_STEP)
    path = store(root, ranks, engine).save(
        SAVED_STEP, engine, {"step": SAVED_STEP}, {"rank": ranks.rank, "lane": 10 * ranks.rank}
    )
    kind = type(engine.optimizer).__name__
    losses += train(engine, ranks.rank, SAVED_STEP + 1, LAST_STEP)
    engine.close()
    return Outcome(losses, path, optimizer=kind)


def resume(setup: Setup, path: Path, root: Path, *, first_train: int = 0) -> Outcome:
    """Build another model, load, save again at once under `root`, train to LAST_STEP.

    `first_train`: steps that the engine makes before it loads (a load into a running engine).
    """
    ranks = Dist.adopt()
    engine = build_engine(setup, seed=1)
    train(engine, ranks.rank, 1, first_train)
    checkpoints = store(root, ranks, engine)
    loaded = checkpoints.load(path, engine)
    again = checkpoints.save(SAVED_STEP, engine, loaded.trainer_state, {"rank": ranks.rank})
    losses = train(engine, ranks.rank, SAVED_STEP + 1, LAST_STEP)
    kind = type(engine.optimizer).__name__
    engine.close()
    return Outcome(losses, again, loaded.trainer_state, loaded.rank_states, kind)


def start_from(setup: Setup, path: Path, root: Path) -> Outcome:
    """Load the weights alone into a fresh engine, save, train one step."""
    ranks = Dist.adopt()
    engine = build_engine(setup, seed=1)
    load_weights_only(path, engine, ranks)
    again = store(root, ranks, engine).save(SAVED_STEP, engine, {}, {})
    losses = train(engine, ranks.rank, SAVED_STEP + 1, SAVED_STEP + 1)
    engine.close()
    return Outcome(losses, again)


def store(root: Path, ranks: Dist, engine: Engine, **options: Any) -> CheckpointStore:
    """A store whose checkpoints can be exported."""
    dtype = torch.bfloat16 if engine.deepspeed.bfloat16_enabled() else torch.float32
    return CheckpointStore(root, ranks, model_files=ModelFiles.of(engine.module, None, dtype), **options)


def state_of(path: Path) -> dict[str, torch.Tensor]:
    """Everything that a checkpoint's fragments and scalars say, as whole tensors: "KIND/PARAMETER"."""
    manifest = Manifest.read(path)
    source = FragmentSource(path, manifest)
    state: dict[str, torch.Tensor] = {}
    for name, record in manifest.parameters.items():
        for kind in record.kinds:
            parts = [values for _, values in source.read(kind, name, 0, record.numel)]
            state[f"{kind}/{name}"] = torch.cat(parts).reshape(record.shape).clone()
        for key, value in record.scalars.items():
            state[f"{key}/{name}"] = torch.tensor(value)
    return state


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of what is not bitwise equal, or is on one side alone."""
    both = one.keys() & other.keys()
    return sorted(one.keys() ^ other.keys()) + sorted(key for key in both if not torch.equal(one[key], other[key]))


def _config(setup: Setup) -> Config:
    zero: dict[str, Any] = {"stage": setup.stage, **setup.zero}
    if setup.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if setup.offload_param:
        zero["offload_param"] = {"device": "cpu"}
    if setup.stage == 3:
        # Some parameters are kept gathered (those of up to 99 elements), most are not.
        zero.setdefault("stage3_param_persistence_threshold", 100)
    return Config.model_validate(
        {
            "model": {"architecture": "gpt2"},
            "data": {"train": [{"path": "json", "data_files": "none"}]},
            "batch": {"global_batch_size": GLOBAL_BATCH_SIZE},
            "optimizer": {
                "name": setup.optimizer if setup.optimizer in ("lion", "muon") else "adamw",
                "learning_rate": 0.01,
                "weight_decay": 0.1,
                "max_grad_norm": 0 if setup.optimizer == "muon" else 1,
            },
            "schedule": {"max_steps": LAST_STEP},
            "precision": setup.precision,
            "deepspeed": {"zero_optimization": zero},
        }
    )


def _describe_the_cpu_once() -> None:
    """DeepSpeed's CPUAdam asks it at each construction, and each time that takes more than a second."""
    import cpuinfo

    if not hasattr(cpuinfo.get_cpu_info, "cache_info"):
        cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    decayed = [p for p in model.parameters() if p.requires_grad and len(getattr(p, "ds_shape", p.shape)) > 1]
    others = [p for p in model.parameters() if p.requires_grad and len(getattr(p, "ds_shape", p.shape)) == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if name == "cpu_adam":
        built: Any = DeepSpeedCPUAdam(groups, lr=0.01, adamw_mode=True)
        return built  # type: ignore[no-any-return]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.01)


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB_SIZE, (GLOBAL_BATCH_SIZE, SEQ_LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]
