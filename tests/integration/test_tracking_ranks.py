"""Tracking on real ranks: the run folder is claimed together, and accelerate's trackers leave the ranks alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import yaml
from accelerate.state import PartialState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llmtrain.config.schema import RunConfig, TrackingConfig
from llmtrain.errors import ConfigError
from llmtrain.tracking import EvalReport, RunFolder, RunInfo, build_console, build_trackers
from tests.support.ranks import RankPool
from tests.unit.tracking.test_reports import STEP

CONFIG: dict[str, Any] = {
    "run": {"name": "demo", "seed": 42, "stop_at_step": None},
    "data": {"train": [{"path": "json"}]},
    "deepspeed": {},
}


def all_gather(value: Any) -> list[Any]:
    """Of the ranks' real process group."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def track_a_run(output_dir: str, report_to: list[str]) -> dict[str, Any]:
    """What a trainer does with tracking; returns what it left in the process."""
    rank = torch.distributed.get_rank()
    run = RunConfig(name="demo", output_dir=output_dir)
    folder = RunFolder.of(run)
    threads, environment = torch.get_num_threads(), dict(os.environ)
    folder.prepare(run, rank=rank, all_gather=all_gather)
    tracking = TrackingConfig(report_to=report_to)
    console = build_console(is_main=rank == 0)
    trackers = build_trackers(tracking, folder, console, is_main=rank == 0)
    trackers.start(RunInfo("demo", CONFIG))
    trackers.log_step(STEP)
    trackers.log_eval(EvalReport(7, 2.0, 10, eval_set="books", num_tokens_seen=70))
    trackers.finish("done")
    return {
        "accelerate_state": dict(PartialState._shared_state),
        "threads_changed": torch.get_num_threads() != threads,
        "environment_changed": dict(os.environ) != environment,
    }


def claim(output_dir: str) -> str:
    """The outcome of claiming the run folder."""
    run = RunConfig(name="demo", output_dir=output_dir)
    try:
        RunFolder.of(run).prepare(run, rank=torch.distributed.get_rank(), all_gather=all_gather, patience_seconds=0.2)
    except ConfigError as error:
        return str(error)
    return "claimed"


def test_tensorboard_has_the_figures_and_nothing_else_of_the_process_is_changed(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    results = two_ranks.run(track_a_run, str(tmp_path), ["tensorboard"])
    untouched = {"accelerate_state": {}, "threads_changed": False, "environment_changed": False}
    assert results == [untouched, untouched]

    folder = tmp_path / "demo" / "tensorboard"
    events = EventAccumulator(str(folder))
    events.Reload()
    assert {"train/loss", "train/learning_rate", "num_tokens_seen", "eval/books/loss"} <= set(events.Tags()["scalars"])
    assert "step" not in events.Tags()["scalars"], "the step is the axis"
    (loss,) = events.Scalars("train/loss")
    assert (loss.step, loss.value) == (7, 2.5)
    (eval_loss,) = events.Scalars("eval/books/loss")
    assert (eval_loss.step, eval_loss.value) == (7, 2.0)
    (parameters,) = folder.glob("*/hparams.yml")
    assert yaml.safe_load(parameters.read_text()) == {
        "run.name": "demo",
        "run.seed": 42,
        "run.stop_at_step": "",
        "data.train": '[{"path": "json"}]',
        "deepspeed": "{}",
    }
    assert len((tmp_path / "demo" / "metrics.jsonl").read_text().splitlines()) == 2


def test_ranks_claim_the_folder_together_or_are_refused_together(two_ranks: RankPool, tmp_path: Path) -> None:
    assert two_ranks.run(claim, str(tmp_path)) == ["claimed", "claimed"]
    assert list((tmp_path / "demo").iterdir()) == []
    (tmp_path / "demo" / "metrics.jsonl").touch()
    first, second = two_ranks.run(claim, str(tmp_path))
    assert first == second
    assert "folder in use" in first
