"""The quick starts give one loss series under every ZeRO stage, with offload, and on one and two ranks.

`configs/quickstart*.yaml` in fp32 (their dropout is 0), the first 20 steps within 1e-5, on sequences of a quarter of
their length so that it takes minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.ranks import ROOT, RankPool
from tests.support.training import Outcome, losses, train

pytestmark = pytest.mark.verify

STAGES = {
    "0": ["deepspeed.zero_optimization.stage=0"],
    "1": ["deepspeed.zero_optimization.stage=1"],
    "2": [],
    "3": ["deepspeed.zero_optimization.stage=3"],
    "2+offload": ["deepspeed.zero_optimization.offload_optimizer={device: cpu}"],
}
NUM_STEPS = 20


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scripts/quickstart.sh` makes before it trains; the tokenizers are trained on less."""
    from llmtrain.data.sample_data import write_sample_data
    from llmtrain.data.tokenizer_training import train_tokenizer

    folder = tmp_path_factory.mktemp("series")
    _, held_out = write_sample_data(folder)
    for task in ("causal_lm", "masked_lm"):
        train_tokenizer([held_out], folder / task, 4096, task)
    return folder


def _train_each(config: Path, runs: Sequence[Sequence[str]]) -> list[Outcome]:
    return [train(config, overrides) for overrides in runs]


@pytest.mark.parametrize(("name", "task"), [("quickstart", "causal_lm"), ("quickstart_bert", "masked_lm")])
def test_the_loss_series_is_the_same_everywhere(
    workspace: Path, one_rank: RankPool, two_ranks: RankPool, name: str, task: str
) -> None:
    common = [
        f"run.output_dir={workspace / 'runs'}",
        f"tokenizer.name_or_path={workspace / task}",
        f"data.train.0.data_files={workspace / 'train.jsonl'}",
        "data.eval=null",
        "eval.eval_steps=null",
        "data.seq_length=64",
        "batch.per_device_train_batch_size=4",
        "precision=fp32",
        f"run.stop_at_step={NUM_STEPS}",
        "checkpoint.save_strategy=no",
        "tracking={report_to: [], logging_steps: 1}",
    ]
    series = {}
    for pool in (one_rank, two_ranks):
        names = {stage: f"{name}-{pool.world_size}-{stage}" for stage in STAGES}
        runs = [[*common, *overrides, f"run.name={names[stage]}"] for stage, overrides in STAGES.items()]
        for outcome in pool.run(_train_each, ROOT / "configs" / f"{name}.yaml", runs, timeout_seconds=600.0)[0]:
            assert "stop_at_step" in outcome.reason
        series.update({run: losses(workspace / "runs" / run) for run in names.values()})
    expected = series[f"{name}-1-0"]
    assert len(expected) == NUM_STEPS
    assert expected[-1] < expected[0] - 1.0
    for run, actual in series.items():
        assert actual == pytest.approx(expected, rel=1e-5), run
