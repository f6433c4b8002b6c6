"""Causal language modelling: what an example and a batch hold."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from llmtrain.errors import ConfigError
from llmtrain.tasks import CausalLm, build_task
from tests.support.tiny_models import TinySequence, random_sequence, tiny_config, tiny_tokenizer

DOCUMENTS = TinySequence(np.array([10, 11, 12, 0, 20, 21, 0], dtype=np.int32), (4, 3))


def _task(**data: object) -> CausalLm:
    task = build_task(tiny_config(seq_length=8, data=data), tiny_tokenizer())
    assert isinstance(task, CausalLm)
    return task


def test_the_table_of_the_docstring() -> None:
    task = _task()
    batch = task.collate([task.encode(DOCUMENTS)])
    assert batch["input_ids"].tolist() == [[10, 11, 12, 0, 20, 21, 0, 0]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, -1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0]]
    assert batch["labels"].tolist() == [[11, 12, 0, -100, 21, 0, -100, -100]]


def test_without_isolation_the_sequence_is_one_text() -> None:
    example = _task(packing={"isolate_documents": False}).encode(DOCUMENTS)
    assert example.labels.tolist() == [11, 12, 0, 20, 21, 0, -100]
    assert example.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert example.num_supervised_tokens == 6


def test_without_packing_a_sequence_is_one_document() -> None:
    example = _task(packing=False).encode(TinySequence(np.array([10, 11, 0], dtype=np.int32), (3,)))
    assert example.labels.tolist() == [11, 0, -100]


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (8,)])
def test_each_document_has_one_label_less_than_tokens(lengths: tuple[int, ...]) -> None:
    example = _task().encode(random_sequence(lengths))
    assert example.num_supervised_tokens == sum(lengths) - len(lengths)


def test_a_missing_sequence_is_a_row_of_padding() -> None:
    task = _task()
    batch = task.collate([None, task.encode(DOCUMENTS), None])
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == dict.fromkeys(batch, (3, 8))
    assert (batch["document_ids"][[0, 2]] == -1).all()
    assert (batch["labels"][[0, 2]] == -100).all()


def test_tasks_go_to_data_workers() -> None:
    task = _task()
    assert pickle.loads(pickle.dumps(task)) == task


def test_packing_needs_an_end_of_sequence_token() -> None:
    tokenizer = tiny_tokenizer(eos_token=None, bos_token=None, pad_token=None)
    with pytest.raises(ConfigError, match=r"tokenizer\.name_or_path.* no end-of-sequence token.*data\.packing: false"):
        build_task(tiny_config(), tokenizer)
    build_task(tiny_config(data={"packing": False}), tokenizer)
