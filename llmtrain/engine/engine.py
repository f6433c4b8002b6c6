"""The model, its optimizer and DeepSpeed's engine round them: what the loop calls forward, backward and step on.

A step goes through three calls, once a micro-batch: `forward_model` (DeepSpeed's engine, with the model's signature),
`backward` and `step`; the last micro-batch's `step` updates the weights and returns a `StepOutcome`. DeepSpeed averages
gradients over the W ranks; so the sum of the token losses is multiplied by W / N (N: supervised tokens of the whole
global batch), and DeepSpeed's division by the accumulation is switched off. What results is the gradient of the mean
over all tokens, however the batch is split.

A step whose gradient norm is not finite changes neither weights nor moments, on any rank: the norm is a global one, so
all ranks decide alike. DeepSpeed does so itself, but at stage 0 in fp32, where it has no norm and llmtrain computes it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from llmtrain.optim import build_optimizer


@dataclass(frozen=True)
class StepOutcome:
    """What became of an optimizer step.

    Attributes:
        grad_norm: L2 norm of the whole gradient before clipping; infinite or NaN where the step was skipped for it.
        skipped: the weights and the optimizer's state were left as they were.
        overflow: skipped because the fp16 loss scale was too high; it has been lowered, and nothing is wrong.
        loss_scale: the fp16 loss scale of the next step, None in other precisions.
    """

    grad_norm: float
    skipped: bool
    overflow: bool
    loss_scale: float | None


class ConstructionContext:
    """What must be alive while a model is built under ZeRO-3, and after it.

    transformers holds `HfDeepSpeedConfig` by a weak reference; while it lives, `from_pretrained` and `generate` know
    that parameters are partitioned.
    """

    def __init__(self, ds_config: dict[str, Any]) -> None:
        from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

        self.ds_config = ds_config
        # Whatever an earlier engine of this process left behind does not count for this model.
        unset_hf_deepspeed_config()
        is_partitioned = ds_config["zero_optimization"]["stage"] == 3
        self._hf_config = HfDeepSpeedConfig(ds_config) if is_partitioned else None


@contextlib.contextmanager
def construction_context(ds_config: dict[str, Any]) -> Iterator[ConstructionContext]:
    """Hold this round building the model, and hand what it yields to `Engine.create`, which keeps it alive."""
    yield ConstructionContext(ds_config)


class Engine:
    """One rank's part of the training engine. `create` builds it; see the top for a step."""

    def __init__(self, deepspeed: Any, plan: BatchPlan, ds_config: dict[str, Any], context: Any = None) -> None:
        self.deepspeed = deepspeed
        self.plan = plan
        self.ds_config = ds_config
        self._context = context
        fp16 = ds_config.get("fp16", {})
        self._has_loss_scale = bool(fp16.get("enabled", False))
        self._can_scale_fall = self._has_loss_scale and not fp16.get("loss_scale", 0)
        self._min_loss_scale = float(fp16.get("min_loss_scale", 1))
        self._is_plain = ds_config["zero_optimization"]["stage"] == 0

    @classmethod
    def create(
        cls,
        model: nn.Module,
        config: Config,
        ds_config: dict[str, Any],
        plan: BatchPlan,
        device: torch.device,
        context: ConstructionContext | None = None,
    ) -> Engine:
        """Wrap `model` (fp32; DeepSpeed casts it). Every rank calls it, after the process group is up.

        Raises:
            ConfigError: the optimizer cannot be built on this machine.
        """
        import deepspeed

        optimizer = build_optimizer(model, config.optimizer, ds_config, device.type)
        # BF16_Optimizer prints the memory in use ten times.
        with contextlib.redirect_stdout(io.StringIO()):
            engine, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=copy.deepcopy(ds_config), dist_init_required=False
            )
        return cls(engine, plan, ds_config, context)

    @property
    def module(self) -> nn.Module:
        """The model itself, its parameters in the precision of the run."""
        module = self.deepspeed.module
        assert isinstance(module, nn.Module)
        return module

    @property
    def forward_model(self) -> Any:
        """What a task calls for the model's outputs."""
        return self.deepspeed

    @property
    def optimizer(self) -> Any:
        """DeepSpeed's optimizer; torch's own at stage 0 in fp32."""
        return self.deepspeed.optimizer

    @property
    def device(self) -> torch.device:
        """Where batches belong."""
        return torch.device(self.deepspeed.device)

    @property
    def zero_stage(self) -> int:
        """The stage that runs, which may be above the configured one (see `engine.config`)."""
        return int(self.ds_config["zero_optimization"]["stage"])

    def train_mode(self) -> None:
        """Dropout on."""
        self.deepspeed.train()

    def eval_mode(self) -> None:
        """Dropout off."""
        self.deepspeed.eval()

    def backward(self, loss_sum: torch.Tensor, num_supervised_tokens: int) -> None:
        """Accumulate the gradient of a micro-batch.

        Args:
            loss_sum: scalar, the sum of this micro-batch's token losses on this rank; 0 where none is supervised.
            num_supervised_tokens: of the whole global batch, over all ranks and micro-batches; not 0.
        """
        scale = self.plan.world_size / num_supervised_tokens
        self.deepspeed.backward(loss_sum * scale, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepOutcome | None:
        """Follow each `backward`; at the last micro-batch update the weights, and tell what became of it."""
        if not self.deepspeed.is_gradient_accumulation_boundary():
            self.deepspeed.step()
            return None
        self._set_learning_rate(learning_rate)
        if self._is_plain:
            return self._plain_step()
        scale = self.loss_scale
        self.deepspeed.step()
        skipped = not self.deepspeed.was_step_applied()
        if skipped:
            self._drop_skipped_gradients()
        overflow = skipped and self._can_scale_fall and scale is not None and scale > self._min_loss_scale
        return StepOutcome(float(self.deepspeed.get_global_grad_norm()), skipped, overflow, self.loss_scale)

    @property
    def loss_scale(self) -> float | None:
        """The fp16 loss scale, None in other precisions."""
        return float(self.optimizer.loss_scale) if self._has_loss_scale else None

    def peak_memory_bytes(self) -> int:
        """This rank's peak: of the allocator on a GPU, of the process's resident memory on CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def gathered_parameters(self) -> contextlib.AbstractContextManager[Any]:
        """Within it every rank sees whole parameters, at stage 3 too. All ranks enter it; they are for reading."""
        if self.zero_stage < 3:
            return contextlib.nullcontext()
        import deepspeed

        gathered: contextlib.AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
            list(self.module.parameters())
        )
        return gathered

    def close(self) -> None:
        """Take DeepSpeed's hooks off the model and free what it holds."""
        self.deepspeed.destroy()
        self._context = None

    def _set_learning_rate(self, learning_rate: float) -> None:
        optimizers = [self.optimizer, getattr(self.optimizer, "backup_optimizer", None)]
        for optimizer in optimizers:
            for group in optimizer.param_groups if optimizer is not None else []:
                group["lr"] = learning_rate * group.get("lr_scale", 1.0)

    def _drop_skipped_gradients(self) -> None:
        """DeepSpeed's stages 1 and 2 forget it under optimizer offload: the skipped step's gradients, accumulated in
        fp32, would be added to the next step's, and after one NaN no step would ever be finite again."""
        gradients = getattr(self.optimizer, "averaged_gradients", None)
        if self.zero_stage in (1, 2) and isinstance(gradients, dict):
            for group in gradients:
                gradients[group] = None

    def _plain_step(self) -> StepOutcome:
        """Stage 0 in fp32: the gradients are whole and all-reduced in the model's parameters."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            self.deepspeed.step()
            return StepOutcome(norm, skipped=False, overflow=False, loss_scale=None)
        self.deepspeed.zero_grad()
        # DeepSpeed counts the micro-batch, and leaves the optimizer alone.
        self.deepspeed.set_gradient_accumulation_boundary(False)
        self.deepspeed.step()
        self.deepspeed.set_gradient_accumulation_boundary(None)
        return StepOutcome(norm, skipped=True, overflow=False, loss_scale=None)
