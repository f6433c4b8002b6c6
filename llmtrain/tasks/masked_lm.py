"""Masked language modelling (BERT): some tokens are hidden, and predicted from all others of their document.

Of the tokens that are not special (nor padding) each is chosen with probability `data.mlm_probability`. A chosen one
is replaced by the mask token in 80 % of the cases, by a random token in 10 %, and left as it is in 10 %; it is the
label of its own position, and all other positions have none (Devlin et al. 2019, section 3.1, with a draw for each
token instead of an exact count, as transformers' collator does). A sequence in which nothing was chosen is allowed: it
counts nothing.

What is chosen is drawn from a generator keyed by the sequence's (seed, epoch, lane, index): it is the same whoever
draws it, whenever, and another in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmtrain.config.schema import Config, PackingConfig
from llmtrain.errors import Problem
from llmtrain.tasks.attention import model_inputs
from llmtrain.tasks.base import IGNORE_INDEX, Batch, Example, IntArray, LossOutput, Model, PackedSequence
from llmtrain.tasks.encoding import collate, document_ids, padding_token_id, position_ids
from llmtrain.tasks.loss import sum_of_token_losses

MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1
MASKING_STREAM = 0x6D6C6D
"""Ends the generator's key, so that what else is drawn for the same sequence is independent of the masking."""


@dataclass(frozen=True, eq=False)
class MaskedLm:
    """See the module's docstring."""

    seq_length: int
    pad_token_id: int
    isolate_documents: bool
    mask_token_id: int
    mlm_probability: float
    ordinary_ids: IntArray
    """The vocabulary without its special tokens, ascending: what may be chosen, what random tokens are drawn from."""

    @classmethod
    def from_config(cls, config: Config, tokenizer: Any) -> Self:
        """The task that a configuration describes."""
        packing = config.data.packing
        vocabulary = np.unique(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64))
        return cls(
            seq_length=config.data.seq_length,
            pad_token_id=padding_token_id(tokenizer),
            isolate_documents=isinstance(packing, PackingConfig) and packing.isolate_documents,
            mask_token_id=int(tokenizer.mask_token_id),
            mlm_probability=config.data.mlm_probability,
            ordinary_ids=np.setdiff1d(vocabulary, np.asarray(tokenizer.all_special_ids, dtype=np.int64)),
        )

    @staticmethod
    def problems(config: Config, tokenizer: Any) -> list[Problem]:
        """What in the configuration and the tokenizer cannot work with this task."""
        if tokenizer.mask_token_id is None:
            rule = "has no mask token, which masked_lm puts in the place of what is to be predicted"
            remedy = "take a tokenizer of the BERT kind, or set model.task: causal_lm"
            return [Problem("tokenizer.name_or_path", rule, remedy, config.tokenizer.name_or_path)]
        return []

    def encode(self, sequence: PackedSequence) -> Example:
        """The sequence with some tokens hidden, and those as labels."""
        original = np.asarray(sequence.input_ids, dtype=np.int64)
        generator = np.random.default_rng([*sequence.key, MASKING_STREAM])
        is_chosen = generator.random(len(original)) < self.mlm_probability
        is_chosen &= np.isin(original, self.ordinary_ids)
        share = generator.random(len(original))
        random_ids = generator.choice(self.ordinary_ids, size=len(original))
        is_random = is_chosen & (share >= MASKED_SHARE) & (share < MASKED_SHARE + RANDOM_SHARE)
        input_ids = np.where(is_chosen & (share < MASKED_SHARE), self.mask_token_id, original)
        return Example(
            input_ids=np.where(is_random, random_ids, input_ids),
            labels=np.where(is_chosen, original, IGNORE_INDEX),
            position_ids=position_ids(sequence.document_lengths, restart=self.isolate_documents),
            document_ids=document_ids(sequence.document_lengths),
        )

    def collate(self, examples: SequenceOf[Example | None]) -> Batch:
        """A batch of `len(examples)` rows; None is a row of padding without a supervised token."""
        return collate(examples, self.seq_length, self.pad_token_id)

    def loss(self, model: Model, batch: Batch) -> LossOutput:
        """The summed loss of the supervised tokens, and their count. Segment ids are left to the model: all 0."""
        inputs = model_inputs(model, batch, is_causal=False, isolate_documents=self.isolate_documents)
        logits = model(**inputs).logits
        return LossOutput(
            loss_sum=sum_of_token_losses(logits, batch["labels"]),
            num_supervised_tokens=(batch["labels"] != IGNORE_INDEX).sum(),
        )
