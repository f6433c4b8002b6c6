"""`--dry-run` of every whole-run file, and of every ZeRO part on top of the quick start, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrain.config import load_config
from llmtrain.data.sample_data import write_sample_data
from llmtrain.data.tokenizer_training import train_tokenizer
from llmtrain.dry_run import describe
from tests.support.ranks import ROOT

CONFIGS = ROOT / "configs"
WHOLE_RUNS = sorted(path.name for path in CONFIGS.glob("*.yaml"))
ZERO_PARTS = sorted(path.name for path in (CONFIGS / "zero").glob("*.yaml"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scripts/quickstart.sh` makes before it trains, with tokenizers of the same size trained on less."""
    folder = tmp_path_factory.mktemp("workspace")
    _, held_out = write_sample_data(folder / "sample-data")
    train_tokenizer([held_out], folder / "sample-data" / "tokenizer", 4096, "causal_lm")
    train_tokenizer([held_out], folder / "sample-data" / "tokenizer-bert", 4096, "masked_lm")
    return folder


@pytest.fixture(autouse=True)
def _offline(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _describe(world_size: int, *configs: str, overrides: tuple[str, ...] = ()) -> str:
    return "\n".join(describe(load_config([CONFIGS / name for name in configs], overrides), world_size))


def test_there_are_presets() -> None:
    assert {"quickstart.yaml", "quickstart_bert.yaml", "gpt2_124m.yaml", "bert_base.yaml"} <= set(WHOLE_RUNS)
    assert {"zero1.yaml", "zero2.yaml", "zero3.yaml", "zero2_offload.yaml", "zero3_offload.yaml"} <= set(ZERO_PARTS)


@pytest.mark.parametrize("name", WHOLE_RUNS)
def test_every_whole_run_passes(name: str) -> None:
    text = _describe(2, name)
    assert "# batch plan" in text
    assert "x 2 ranks" in text
    assert '"train_batch_size"' in text
    is_known = name.startswith("quickstart")
    assert ("is not known:" in text) is not is_known
    assert ("hub" in text) or is_known


@pytest.mark.parametrize("part", ZERO_PARTS)
def test_every_zero_part_passes_on_the_quick_start(part: str) -> None:
    assert f'"stage": {part.removeprefix("zero")[0]}' in _describe(2, "quickstart.yaml", f"zero/{part}")


def test_what_is_shown_is_what_a_run_would_do() -> None:
    text = _describe(2, "quickstart.yaml", overrides=("batch.per_device_train_batch_size=4",))
    assert "16 sequences a step = micro-batch 4 x accumulation 2 x 2 ranks; 16 lanes" in text
    assert "4,096 tokens a step; the run is at most 170 steps, 696,320 tokens" in text
    # 4 layers of 12 x 256^2 + 13 x 256, two norms, 4,096 tokens and 256 positions of 256.
    parameters = 4 * (12 * 256**2 + 13 * 256) + 2 * 256 + (4096 + 256) * 256
    assert f"{parameters:,} parameters" in text
    assert "per_device_train_batch_size: 4  # command line" in text
    assert " supervised" in text.rpartition("sequence 0:")[2].splitlines()[0]
