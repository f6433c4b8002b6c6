"""Masked language modelling: what is hidden, and how often."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmtrain.errors import ConfigError
from llmtrain.tasks import MaskedLm, build_task
from tests.support.tiny_models import TinySequence, random_sequence, tiny_config, tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert")
LENGTH = 200_000


def _task(seq_length: int = LENGTH, **data: object) -> MaskedLm:
    task = build_task(tiny_config("bert", seq_length=seq_length, data=data), TOKENIZER)
    assert isinstance(task, MaskedLm)
    return task


def _within_four_sigma(count: int, num_trials: int, probability: float) -> bool:
    sigma = math.sqrt(num_trials * probability * (1 - probability))
    return abs(count - num_trials * probability) < 4 * sigma


@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_shares_of_masked_random_and_kept_tokens(probability: float) -> None:
    sequence = random_sequence([LENGTH])
    example = _task(mlm_probability=probability).encode(sequence)
    chosen = example.labels != -100
    num_chosen = int(chosen.sum())
    assert _within_four_sigma(num_chosen, LENGTH, probability)
    assert (example.labels[chosen] == sequence.input_ids[chosen]).all()
    assert (example.input_ids[~chosen] == sequence.input_ids[~chosen]).all()
    is_masked = example.input_ids[chosen] == TOKENIZER.mask_token_id
    is_kept = example.input_ids[chosen] == sequence.input_ids[chosen]
    assert _within_four_sigma(int(is_masked.sum()), num_chosen, 0.8)
    # A random token is the original one in 1 of 95 cases.
    assert _within_four_sigma(int(is_kept.sum()), num_chosen, 0.1 + 0.1 / 95)


def test_special_tokens_are_neither_chosen_nor_drawn() -> None:
    ids = np.tile(np.arange(10, dtype=np.int32), LENGTH // 10)
    example = _task(mlm_probability=0.9).encode(TinySequence(ids, (LENGTH,)))
    is_special = np.isin(ids, TOKENIZER.all_special_ids)
    assert (example.labels[is_special] == -100).all()
    assert (example.input_ids[is_special] == ids[is_special]).all()
    drawn = np.unique(example.input_ids[~is_special])
    assert set(drawn) == set(range(5, 100)) | {TOKENIZER.mask_token_id}


def test_the_draw_is_a_function_of_the_key() -> None:
    task = _task(seq_length=64)
    ids = random_sequence([64]).input_ids
    draws = [task.encode(TinySequence(ids, (64,), key)).labels.tolist() for key in [(42, 0, 0, 3), (42, 1, 0, 3)]]
    again = task.encode(TinySequence(ids, (64,), (42, 0, 0, 3))).labels.tolist()
    assert draws[0] == again
    assert draws[0] != draws[1]


def test_a_sequence_without_a_chosen_token_counts_nothing() -> None:
    example = _task(seq_length=8).encode(TinySequence(np.array([2, 3], dtype=np.int32), (2,)))
    assert example.num_supervised_tokens == 0


def test_a_mask_token_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.name_or_path.* no mask token.*causal_lm"):
        build_task(tiny_config("bert"), tiny_tokenizer("gpt"))
