"""The sum of the token losses, in fp32, without an fp32 copy of the logits.

Summing in bf16 is wrong by parts in a thousand, and casting the logits to fp32 keeps the largest tensor of the whole
step twice more (the cast, and its log-softmax for the backward). So the logits are cast a chunk of rows at a time,
forward and backward, and only the logits themselves are kept between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from llmtrain.tasks.base import IGNORE_INDEX

CHUNK_ELEMENTS = 2**24
"""Logits that are held in fp32 at once: 64 MiB."""


def sum_of_token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy summed over the labels that are not -100.

    Args:
        logits: (..., V) in any floating type.
        labels: (...) int64, at the positions of the logits that predict them.

    Returns:
        An fp32 scalar. Without any label it is 0 and its gradient is 0, not NaN.
    """
    vocab_size = logits.shape[-1]
    total: torch.Tensor = _TokenLosses.apply(logits.reshape(-1, vocab_size), labels.reshape(-1))  # type: ignore[no-untyped-call]
    return total


class _TokenLosses(torch.autograd.Function):
    """Sum of the cross entropies of (N, V) logits; recomputes the softmax in the backward."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, labels)
        total = logits.new_zeros((), dtype=torch.float32)
        for rows in _chunks(logits):
            total += functional.cross_entropy(
                logits[rows].float(), labels[rows], ignore_index=IGNORE_INDEX, reduction="sum"
            )
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, labels = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for rows in _chunks(logits):
            is_supervised = labels[rows] != IGNORE_INDEX
            target = labels[rows].clamp(min=0).unsqueeze(-1)
            difference = functional.softmax(logits[rows], dim=-1, dtype=torch.float32)
            difference.scatter_add_(-1, target, difference.new_full((), -1.0).expand(target.shape))
            difference *= (is_supervised * grad_output).unsqueeze(-1)
            gradient[rows] = difference
        return gradient, None


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    num_rows, vocab_size = logits.shape
    step = max(1, CHUNK_ELEMENTS // vocab_size)
    for start in range(0, num_rows, step):
        yield slice(start, start + step)
