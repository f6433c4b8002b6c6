"""New weights, drawn alike for a whole and for a partitioned model.

transformers draws the weights of a model in the order in which its modules are made, and under ZeRO-3 in another order,
on the accelerator, in the precision of the run (a normal drawn in bf16 takes a few hundred values). Here both are made
without weights, and then one walk over the modules draws them: on the CPU, in fp32, children before their parents, each
module gathered for its turn where it is partitioned. So the same seed gives the same weights, bit for bit, at every
ZeRO stage, world size and device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import deepspeed.comm
import torch
from transformers import PreTrainedModel


@torch.no_grad()
def initialize_weights(model: PreTrainedModel) -> None:
    """Draw all weights of a model from the CPU's default generator, by the model's own rules."""
    _initialize_children_first(model, model)
    model.tie_weights()


def _initialize_children_first(module: torch.nn.Module, owner: Any) -> None:
    """`owner` is the innermost transformers model round the module: its rules count."""
    for child in module.children():
        _initialize_children_first(child, child if isinstance(child, PreTrainedModel) else owner)
    # A rule may set a child's weights too (GPT-2 scales its residual projections in the block).
    parameters = list(module.parameters(recurse=False))
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            parameters += child.parameters(recurse=False)
    partitioned = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not partitioned:
        owner._init_weights(module)
        return
    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0):
        if deepspeed.comm.get_rank() == 0:
            with _in_fp32_on_cpu(partitioned):
                owner._init_weights(module)


@contextmanager
def _in_fp32_on_cpu(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """For the block, gathered parameters are fp32 tensors on the CPU; after it they are back, with the new values."""
    gathered = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.to("cpu", torch.float32, copy=True)
    yield
    for parameter, data in zip(parameters, gathered, strict=True):
        data.copy_(parameter.data)
        parameter.data = data
