"""Every file in configs/ loads; those of configs/zero do on top of the quick starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import load_config

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
RUNS = sorted(CONFIGS.glob("*.yaml"))
ZERO = sorted((CONFIGS / "zero").glob("*.yaml"))
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3, "zero3_nvme": 3}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_whole_runs(path: Path) -> None:
    assert load_config([path]).config.run.name == path.stem


def test_there_is_a_file_for_each_kind_of_zero() -> None:
    assert {path.stem for path in ZERO} == set(STAGES)


@pytest.mark.parametrize("path", ZERO, ids=lambda path: path.stem)
@pytest.mark.parametrize("base", ["quickstart", "quickstart_bert"])
def test_zero_on_top_of_the_quick_starts(base: str, path: Path) -> None:
    config = load_config([CONFIGS / f"{base}.yaml", path]).config
    assert config.zero_stage == STAGES[path.stem]
    assert set(config.deepspeed) <= {"zero_optimization", "aio"}
    offload = config.deepspeed["zero_optimization"].get("offload_optimizer", {}).get("device")
    assert offload == {"offload": "cpu", "nvme": "nvme"}.get(path.stem.partition("_")[2])
