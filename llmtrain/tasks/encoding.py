"""What all tasks do alike with a packed sequence: number its documents and positions, and pad examples to a batch."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from llmtrain.tasks.base import IGNORE_INDEX, PADDING_DOCUMENT, Batch, Example, IntArray


def document_ids(document_lengths: SequenceOf[int]) -> IntArray:
    """The number of its document for each token: [2, 3] gives [0, 0, 1, 1, 1]."""
    return np.repeat(np.arange(len(document_lengths), dtype=np.int64), document_lengths)


def position_ids(document_lengths: SequenceOf[int], *, restart: bool) -> IntArray:
    """Positions from 0: of the whole sequence, or (`restart`) anew in each document."""
    lengths = np.asarray(document_lengths, dtype=np.int64)
    positions = np.arange(lengths.sum(), dtype=np.int64)
    if restart:
        positions -= np.repeat(np.cumsum(lengths) - lengths, lengths)
    return positions


def collate(examples: SequenceOf[Example | None], seq_length: int, pad_token_id: int) -> Batch:
    """A (len(examples), seq_length) batch.

    Padding is known by its document id, -1, never by its token, which may be one that the text has too. It counts its
    positions from 0, as a document of its own.
    """
    shape = (len(examples), seq_length)
    batch = {
        "input_ids": np.full(shape, pad_token_id, dtype=np.int64),
        "labels": np.full(shape, IGNORE_INDEX, dtype=np.int64),
        "position_ids": np.zeros(shape, dtype=np.int64),
        "document_ids": np.full(shape, PADDING_DOCUMENT, dtype=np.int64),
    }
    for row, example in enumerate(examples):
        length = len(example.input_ids) if example else 0
        assert length <= seq_length, f"a sequence of {length} tokens in a batch of seq_length {seq_length}"
        batch["position_ids"][row, length:] = np.arange(seq_length - length)
        if example:
            for name, padded in batch.items():
                padded[row, :length] = getattr(example, name)
    return {name: torch.from_numpy(padded) for name, padded in batch.items()}


def padding_token_id(tokenizer: object) -> int:
    """The token that fills what is padded: never seen by the loss, so any serves where the tokenizer has none."""
    for name in ("pad_token_id", "eos_token_id"):
        token_id = getattr(tokenizer, name, None)
        if token_id is not None:
            return int(token_id)
    return 0
