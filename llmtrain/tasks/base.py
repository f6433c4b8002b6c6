"""What a task is: how a sequence becomes an example, examples a batch, and a batch a loss.

Data passes through here once: the data part packs documents into a `Sequence` and calls `encode`, then collects
`Example`s and calls `collate`; the trainer hands the `Batch` to `loss`. A task knows neither where documents come from
nor how the model is distributed. Shapes are static: every batch is (B, seq_length), whatever its documents are.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from llmtrain.config.schema import Config
from llmtrain.errors import Problem

Model = Callable[..., Any]
"""transformers' forward signature: a plain module, or the DeepSpeed engine round it."""

IGNORE_INDEX = -100
"""The label of a position that is not supervised."""
PADDING_DOCUMENT = -1
"""The document id of padding."""

IntArray = npt.NDArray[np.int64]
Batch = dict[str, torch.Tensor]
"""`input_ids`, `labels`, `position_ids`, `document_ids`: int64, each (B, seq_length); padding has document id -1."""


class PackedSequence(Protocol):
    """What a task needs of a packed sequence (`llmtrain.data.packing.Sequence` is one)."""

    @property
    def input_ids(self) -> npt.NDArray[np.int32]:
        """Tokens, at most seq_length of them."""

    @property
    def document_lengths(self) -> tuple[int, ...]:
        """Tokens of each document in order; their sum is the length of `input_ids`."""

    @property
    def key(self) -> tuple[int, ...]:
        """(seed, epoch, lane, index): seeds what is random in this sequence."""


@dataclass(frozen=True)
class Example:
    """One sequence ready to be put into a batch; every array is (length,), length at most seq_length.

    `labels` stand at the position of the logits that predict them: for a causal model they are shifted already.
    """

    input_ids: IntArray
    labels: IntArray
    position_ids: IntArray
    document_ids: IntArray

    @property
    def num_supervised_tokens(self) -> int:
        """Labels that count."""
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


@dataclass(frozen=True)
class LossOutput:
    """The loss of a batch: the sum over its supervised tokens, and their count (int64 scalar).

    `loss_sum` is an fp32 scalar; it has a graph also where nothing is supervised, for ZeRO needs every backward.
    """

    loss_sum: torch.Tensor
    num_supervised_tokens: torch.Tensor


class Task(Protocol):
    """One kind of training."""

    def encode(self, sequence: PackedSequence) -> Example:
        """The sequence with its labels. A function of the sequence alone, its key included."""

    def collate(self, examples: SequenceOf[Example | None]) -> Batch:
        """A batch of `len(examples)` rows; None is a row of padding without a supervised token."""

    def loss(self, model: Model, batch: Batch) -> LossOutput:
        """Run the model on the batch, which is on the model's device."""

    @classmethod
    def from_config(cls, config: Config, tokenizer: Any) -> Self:
        """The task that a configuration describes."""

    @staticmethod
    def problems(config: Config, tokenizer: Any) -> list[Problem]:
        """What in the configuration and the tokenizer cannot work with this task."""
