"""Which checkpoints are kept: the newest by number, and those that are spared."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.checkpoint.retention import (
    folder_name,
    name_set_aside,
    step_folders,
    steps_to_remove,
    suffixed_folders,
)


@pytest.mark.parametrize(
    ("steps", "limit", "spared", "removed"),
    [
        ([9, 10, 100], 2, [], [9]),
        ([100, 9, 10], 1, [100], [9, 10]),
        ([1, 2, 3, 4], 2, [1], [2]),
        ([1, 2, 3, 4], 4, [], []),
        ([1, 2, 3, 4], None, [], []),
        ([], 1, [7], []),
    ],
)
def test_the_newest_and_the_spared_are_kept(
    steps: list[int], limit: int | None, spared: list[int], removed: list[int]
) -> None:
    assert steps_to_remove(steps, limit, spared) == removed


def test_folders_are_ordered_by_number_and_others_are_ignored(tmp_path: Path) -> None:
    names = [
        folder_name(9),
        folder_name(10),
        "step-100000000",
        "step-00000011.tmp",
        "step-00000012.aside-1",
        "latest.d",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000013").write_text("a file")
    assert list(step_folders(tmp_path)) == [9, 10, 100000000]
    assert {step: path.name for step, path in suffixed_folders(tmp_path, ".tmp").items()} == {11: "step-00000011.tmp"}
    assert step_folders(tmp_path / "absent") == suffixed_folders(tmp_path / "absent", ".tmp") == {}


def test_a_name_set_aside_is_free(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.aside-1").mkdir()
    assert name_set_aside(tmp_path / "step-00000001").name == "step-00000001.aside-2"
