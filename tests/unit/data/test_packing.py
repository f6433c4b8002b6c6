"""Cutting documents into sequences."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrain.data.packing import Cutter, DocumentFraming, SequenceBuilder, TokenArray

END = DocumentFraming(prefix=(), suffix=(0,))
FRAME = DocumentFraming(prefix=(101,), suffix=(102,), each_part=True)


def tokens(*values: int) -> TokenArray:
    return np.array(values, dtype=np.int32)


def parts(cutter: Cutter, document: TokenArray, room: int) -> list[list[int]]:
    prepared, used, found = cutter.prepare(document), 0, []
    while used < len(prepared):
        part, used = cutter.cut(prepared, used, room)
        found.append(part.tolist())
    return found


def test_a_framed_document_is_cut_as_it_is() -> None:
    for is_packing in (True, False):
        assert parts(Cutter(END, is_packing), tokens(1, 2, 3, 4), 2) == [[1, 2], [3, 4], [0]]
    assert parts(Cutter(FRAME, is_packing=True), tokens(1, 2, 3), 3) == [[101, 1, 2], [3, 102]]


def test_each_window_of_a_masked_document_is_framed() -> None:
    assert parts(Cutter(FRAME, is_packing=False), tokens(1, 2, 3), 4) == [[101, 1, 2, 102], [101, 3, 102]]


def test_framing_keeps_the_type_of_tokens() -> None:
    assert END.frame(tokens(7)).dtype == np.int32
    assert DocumentFraming((), ()).frame(tokens(7)).tolist() == [7]


def test_packing_fills_a_sequence_and_says_where_documents_are() -> None:
    builder = SequenceBuilder(5, is_packing=True)
    builder.add(tokens(1, 0), continues=True)
    assert builder.room == 3
    builder.add(tokens(2, 3, 4), continues=False)
    assert builder.room == 0
    sequence = builder.build((1, 2, 3, 4))
    assert sequence is not None
    assert sequence.input_ids.tolist() == [1, 0, 2, 3, 4]
    assert (sequence.document_lengths, sequence.key, sequence.continues) == ((2, 3), (1, 2, 3, 4), True)
    with pytest.raises(AssertionError):
        builder.add(tokens(5), continues=False)


def test_without_packing_a_sequence_has_one_document() -> None:
    builder = SequenceBuilder(5, is_packing=False)
    assert builder.build((0,)) is None
    builder.add(tokens(1, 0), continues=False)
    assert builder.room == 0
