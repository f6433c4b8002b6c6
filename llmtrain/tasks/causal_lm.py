"""Causal language modelling (GPT): each token is predicted from those before it.

A packed sequence of two documents, isolated (`data.packing.isolate_documents`) and in a batch of seq_length 8:

    input_ids      a0   a1   a2   eos  b0   b1   eos  pad
    document_ids   0    0    0    0    1    1    1    -1
    position_ids   0    1    2    3    0    1    2    0
    labels         a1   a2   eos  -100 b1   eos  -100 -100

Labels stand at the logits that predict them, so nothing is shifted later. The last token of a document predicts
nothing: the next document does not follow from it. Not isolated, the sequence is one text: positions run on, and `eos`
at 3 predicts b0. The last token of a sequence never has a label, for what follows it is in another sequence.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmtrain.config.schema import Config, PackingConfig
from llmtrain.errors import Problem
from llmtrain.tasks.attention import model_inputs
from llmtrain.tasks.base import IGNORE_INDEX, Batch, Example, LossOutput, Model, PackedSequence
from llmtrain.tasks.encoding import collate, document_ids, padding_token_id, position_ids
from llmtrain.tasks.loss import sum_of_token_losses


@dataclass(frozen=True)
class CausalLm:
    """See the module's docstring."""

    seq_length: int
    pad_token_id: int
    isolate_documents: bool

    @classmethod
    def from_config(cls, config: Config, tokenizer: Any) -> Self:
        """The task that a configuration describes."""
        packing = config.data.packing
        return cls(
            seq_length=config.data.seq_length,
            pad_token_id=padding_token_id(tokenizer),
            # Without packing a sequence holds one document, and causal attention does not see the padding after it.
            isolate_documents=isinstance(packing, PackingConfig) and packing.isolate_documents,
        )

    @staticmethod
    def problems(config: Config, tokenizer: Any) -> list[Problem]:
        """What in the configuration and the tokenizer cannot work with this task."""
        if config.data.packing and tokenizer.eos_token_id is None:
            rule = "has no end-of-sequence token, which closes each document of a packed sequence"
            remedy = "give the tokenizer an eos_token, or set data.packing: false"
            return [Problem("tokenizer.name_or_path", rule, remedy, config.tokenizer.name_or_path)]
        return []

    def encode(self, sequence: PackedSequence) -> Example:
        """The sequence with its labels."""
        input_ids = np.asarray(sequence.input_ids, dtype=np.int64)
        labels = np.full_like(input_ids, IGNORE_INDEX)
        labels[:-1] = input_ids[1:]
        if self.isolate_documents:
            labels[np.cumsum(sequence.document_lengths) - 1] = IGNORE_INDEX
        return Example(
            input_ids=input_ids,
            labels=labels,
            position_ids=position_ids(sequence.document_lengths, restart=self.isolate_documents),
            document_ids=document_ids(sequence.document_lengths),
        )

    def collate(self, examples: SequenceOf[Example | None]) -> Batch:
        """A batch of `len(examples)` rows; None is a row of padding without a supervised token."""
        return collate(examples, self.seq_length, self.pad_token_id)

    def loss(self, model: Model, batch: Batch) -> LossOutput:
        """The summed loss of the supervised tokens, and their count."""
        inputs = model_inputs(model, batch, is_causal=True, isolate_documents=self.isolate_documents)
        logits = model(**inputs).logits
        return LossOutput(
            loss_sum=sum_of_token_losses(logits, batch["labels"]),
            num_supervised_tokens=(batch["labels"] != IGNORE_INDEX).sum(),
        )
