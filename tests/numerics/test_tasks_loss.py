"""The summed token loss against torch's own cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from llmtrain.tasks import loss as subject
from llmtrain.tasks.loss import sum_of_token_losses


def _case(dtype: torch.dtype, shape: tuple[int, ...] = (3, 17, 101)) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    logits = (torch.randn(shape) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, shape[-1], shape[:-1])
    labels[torch.rand(labels.shape) < 0.3] = -100
    return logits, labels


def _reference(logits: torch.Tensor, labels: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient in fp64."""
    exact = logits.detach().double().requires_grad_()
    loss = functional.cross_entropy(exact.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum")
    (loss * scale).backward()
    assert exact.grad is not None
    return loss.detach(), exact.grad


@pytest.mark.parametrize("chunk_elements", [101, 5 * 101, 2**24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_value_and_gradient(
    dtype: torch.dtype, tolerance: float, chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "CHUNK_ELEMENTS", chunk_elements)
    logits, labels = _case(dtype)
    loss = sum_of_token_losses(logits, labels)
    (loss * 0.25).backward()
    exact_loss, exact_gradient = _reference(logits, labels, 0.25)
    assert loss.dtype == torch.float32
    # The loss is exact whatever the logits' precision; the gradient is rounded to it.
    assert loss.item() == pytest.approx(exact_loss.item(), rel=1e-6)
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad.double(), exact_gradient, rtol=tolerance, atol=1e-7)
    assert (logits.grad[labels == -100] == 0).all()


def test_bf16_sums_as_fp32_does() -> None:
    """Thousands of tokens: torch's own sum in bf16 is off by parts in a thousand, this one is not."""
    logits, labels = _case(torch.bfloat16, (4096, 64))
    exact, _ = _reference(logits, labels, 1.0)
    naive = functional.cross_entropy(logits.detach(), labels, ignore_index=-100, reduction="sum")
    assert abs(sum_of_token_losses(logits, labels).item() / exact.item() - 1) < 1e-5
    assert abs(naive.item() / exact.item() - 1) > 1e-4


def test_without_labels_the_loss_is_a_zero_with_a_graph() -> None:
    logits, labels = _case(torch.float32)
    loss = sum_of_token_losses(logits, torch.full_like(labels, -100))
    assert loss.item() == 0.0
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_extreme_logits_give_no_nan() -> None:
    logits = torch.tensor([[1e30, -1e30], [-1e30, 1e30]], requires_grad=True)
    loss = sum_of_token_losses(logits, torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
