"""One rank's error is every rank's error, with the reason of each."""

from __future__ import annotations

from typing import Any

import pytest

from llmtrain.checkpoint.agreement import OneRank, agree
from llmtrain.errors import CheckpointError


class Others:
    """Rank 0 of several, whose answers are given."""

    rank = 0

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.world_size = 1 + len(answers)

    def all_gather_objects(self, value: Any) -> list[Any]:
        return [value, *self.answers]


def test_no_error_is_no_error() -> None:
    for ranks in (OneRank(), Others(None, None)):
        try:
            agree(ranks, None, "x")
        except CheckpointError as error:
            pytest.fail(f"raised {error}")


def test_another_ranks_error_is_raised_here() -> None:
    with pytest.raises(CheckpointError, match=r"^not saved: rank 2: OSError: disk full$"):
        agree(Others(None, "OSError: disk full"), None, "not saved")


def test_equal_reasons_are_said_once() -> None:
    with pytest.raises(CheckpointError, match=r"^x: rank 0 \(and 2 others\): gone; rank 2: full$") as raised:
        agree(Others("gone", "full", "gone"), CheckpointError("gone"), "x")
    assert isinstance(raised.value.__cause__, CheckpointError)
