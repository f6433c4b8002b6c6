"""Whole runs on one and two ranks: the same losses, the same data, whatever is cut short and resumed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrain.callbacks import Callback
from llmtrain.tracking.reports import EvalReport, StepReport
from tests.support.ranks import RankPool
from tests.support.training import (
    Outcome,
    documents,
    losses,
    metrics,
    status,
    tiny_tokenizer,
    train,
    write_config,
    write_documents,
)

NUM_DOCUMENTS = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, tokenizers and the tiny configuration."""
    folder = tmp_path_factory.mktemp("runs")
    write_documents(folder / "train.jsonl", documents(NUM_DOCUMENTS))
    write_documents(folder / "eval.jsonl", documents(23, start=500))
    for task in ("causal_lm", "masked_lm"):
        tiny_tokenizer(folder, task)
    config = {
        "run": {"output_dir": str(folder / "runs")},
        "tokenizer": {"name_or_path": str(folder / "tokenizer-causal_lm")},
        "data": {
            "train": [{"path": "json", "data_files": str(folder / "train.jsonl")}],
            "eval": [{"path": "json", "data_files": str(folder / "eval.jsonl")}],
            "seq_length": 32,
            "shuffle_buffer": 32,
            "trace": True,
        },
        "eval": {"eval_steps": 4},
    }
    write_config(folder / "tiny.yaml", **config)
    return folder


def _train_all(config: Path, runs: Sequence[tuple[str, Sequence[str]]]) -> list[Outcome]:
    return [train(config, [f"run.name={name}", *overrides]) for name, overrides in runs]


def _run(pool: RankPool, folder: Path, *runs: tuple[str, Sequence[str]]) -> list[Outcome]:
    """Train each (name, overrides) in turn; rank 0's outcomes."""
    outcomes: list[list[Outcome]] = pool.run(_train_all, folder / "tiny.yaml", runs)
    for others in outcomes[1:]:
        assert [other.error for other in others] == [outcome.error for outcome in outcomes[0]]
    return outcomes[0]


def _trace(run: Path) -> list[tuple[int, int]]:
    """(step, row) of every document; the last line of a row counts within its step."""
    lines = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    return sorted({(line["step"], line["row"]) for line in lines})


@pytest.mark.parametrize("stage", [0, 3])
def test_losses_do_not_depend_on_the_number_of_ranks_or_the_split(
    folder: Path, one_rank: RankPool, two_ranks: RankPool, stage: int
) -> None:
    zero = f"deepspeed.zero_optimization.stage={stage}"
    one, two = f"one-{stage}", f"two-{stage}"
    assert _run(one_rank, folder, (one, ["batch.per_device_train_batch_size=8"]))[0].error == ""
    assert _run(two_ranks, folder, (two, [zero]))[0].error == ""

    expected, actual = losses(folder / "runs" / one), losses(folder / "runs" / two)
    assert len(expected) == 8
    assert actual == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0] - 0.5
    norms = [[line["grad_norm"] for line in metrics(folder / "runs" / name)] for name in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert _trace(folder / "runs" / one) == _trace(folder / "runs" / two)
    eval_losses = [[line["eval_loss"] for line in metrics(folder / "runs" / name, "eval")] for name in (one, two)]
    assert eval_losses[1] == pytest.approx(eval_losses[0], rel=1e-5)


def test_a_run_that_is_interrupted_and_resumed_elsewhere_is_the_uninterrupted_run(
    folder: Path, one_rank: RankPool, two_ranks: RankPool
) -> None:
    resume = "run.resume_from_checkpoint=auto"
    whole, cut = _run(two_ranks, folder, ("whole", []), ("cut", ["run.stop_at_step=3"]))
    assert whole.error == ""
    assert "stop_at_step=3" in cut.reason
    assert status(folder / "runs" / "cut")["status"] == "interrupted"
    assert status(folder / "runs" / "cut")["exit_status"] == 75
    _run(one_rank, folder, ("cut", [resume, "run.stop_at_step=5", "deepspeed.zero_optimization.stage=3"]))
    done = _run(two_ranks, folder, ("cut", [resume]))[0]

    assert done == whole
    assert losses(folder / "runs" / "cut") == pytest.approx(losses(folder / "runs" / "whole"), rel=1e-5)
    assert _trace(folder / "runs" / "cut") == _trace(folder / "runs" / "whole")
    assert status(folder / "runs" / "cut") == status(folder / "runs" / "whole")

    before = {path: path.stat().st_mtime_ns for path in sorted((folder / "runs" / "cut").rglob("*"))}
    again = _run(two_ranks, folder, ("cut", [resume]))[0]
    assert again.error == ""
    assert {path: path.stat().st_mtime_ns for path in sorted((folder / "runs" / "cut").rglob("*"))} == before


def test_every_document_once_per_epoch_and_both_epochs_to_the_end(folder: Path, two_ranks: RankPool) -> None:
    overrides = ["schedule.max_steps=null", "schedule.num_train_epochs=2", "schedule.lr_scheduler_type=constant"]
    outcome = _run(two_ranks, folder, ("epochs", overrides))[0]
    assert outcome.reason == "schedule.num_train_epochs=2 reached"

    lines = metrics(folder / "runs" / "epochs")
    first_epoch = {line["step"] for line in lines if line["epoch"] == 0}
    rows = [
        [row for step, row in _trace(folder / "runs" / "epochs") if (step in first_epoch) is first]
        for first in (True, False)
    ]
    for of_epoch in rows:
        assert Counter(of_epoch) == Counter(range(NUM_DOCUMENTS))
    assert status(folder / "runs" / "epochs")["step"] == len(lines)
    last_evaluation = metrics(folder / "runs" / "epochs", "eval")
    assert max(line["step"] for line in last_evaluation) == len(lines)


def test_evaluation_does_not_depend_on_the_batch_size(folder: Path, one_rank: RankPool, two_ranks: RankPool) -> None:
    sizes = [1, 3, 7]
    runs = [
        (
            f"batch-{size}",
            [f"eval.per_device_eval_batch_size={size}", "schedule.max_steps=1", "schedule.warmup_steps=0"],
        )
        for size in sizes
    ]
    _run(one_rank, folder, *runs)
    _run(
        two_ranks,
        folder,
        ("batch-two-ranks", ["eval.per_device_eval_batch_size=3", "schedule.max_steps=1", "schedule.warmup_steps=0"]),
    )
    names = [name for name, _ in runs] + ["batch-two-ranks"]
    lines = [metrics(folder / "runs" / name, "eval")[0] for name in names]
    assert len({line["num_supervised_tokens"] for line in lines}) == 1
    assert [line["eval_loss"] for line in lines] == pytest.approx([lines[0]["eval_loss"]] * len(lines), rel=1e-6)
    assert lines[0]["eval_perplexity"] == pytest.approx(math.exp(lines[0]["eval_loss"]))


def test_named_sets_and_the_best_checkpoint(folder: Path, two_ranks: RankPool) -> None:
    data_eval = json.dumps(
        {
            name: [{"path": "json", "data_files": str(folder / f"{file}.jsonl")}]
            for name, file in (("held", "eval"), ("seen", "train"))
        }
    )
    overrides = [
        f"data.eval={data_eval}",
        "eval.eval_steps=1",
        "eval.metric_for_best_model=eval_seen_loss",
        "eval.greater_is_better=true",
        "eval.early_stopping_patience=2",
        "checkpoint.save_strategy=steps",
        "checkpoint.save_total_limit=1",
    ]
    outcome = _run(two_ranks, folder, ("best", overrides))[0]
    assert "early stopping" in outcome.reason
    run = folder / "runs" / "best"
    seen = [line for line in metrics(run, "eval") if line["eval_set"] == "seen"]
    assert {line["eval_set"] for line in metrics(run, "eval")} == {"held", "seen"}
    best = max(seen, key=lambda line: line["eval_loss"])["step"]
    last = status(run)["step"]
    assert {path.name for path in (run / "checkpoints").glob("step-*")} == {f"step-{step:08d}" for step in (best, last)}


class _Poison(Callback):
    """Makes a weight NaN after step 3."""

    def on_step_end(self, report: StepReport) -> None:
        if report.step == 3:
            with torch.no_grad():
                next(iter(_MODULES[-1].parameters())).fill_(math.nan)


_MODULES: list[torch.nn.Module] = []


def _train_poisoned(config: Path, overrides: Sequence[str]) -> Outcome:
    from llmtrain.engine import Engine

    create = Engine.create

    def remember(*args: Any, **kwargs: Any) -> Engine:
        engine = create(*args, **kwargs)
        _MODULES.append(engine.module)
        return engine

    Engine.create = remember  # type: ignore[method-assign]
    try:
        return train(config, overrides, [_Poison()])
    finally:
        Engine.create = create  # type: ignore[method-assign]


def test_bad_steps_are_skipped_counted_and_end_the_run_before_anything_is_saved(
    folder: Path, one_rank: RankPool
) -> None:
    overrides = [
        "run.name=bad",
        "fault.max_bad_steps=3",
        "checkpoint.save_steps=2",
        "checkpoint.save_strategy=steps",
        "deepspeed.zero_optimization.stage=0",
        "eval.eval_strategy=no",
    ]
    outcome = one_rank.run(_train_poisoned, folder / "tiny.yaml", overrides)[0]
    assert outcome.error == "TrainingError"
    assert "3 steps in a row" in outcome.reason
    assert "step 6" in outcome.reason
    # Step 4 was due to be saved, with weights that are not finite.
    assert [path.name for path in (folder / "runs" / "bad" / "checkpoints").glob("step-*")] == ["step-00000002"]
    assert [line["loss"] for line in metrics(folder / "runs" / "bad")][3:] == [None] * 3
    assert status(folder / "runs" / "bad")["status"] == "failed"


def test_a_bad_record_ends_the_run_after_a_checkpoint(folder: Path, two_ranks: RankPool) -> None:
    lines = (folder / "train.jsonl").read_text().splitlines()
    lines[60] = '{"text": "cut sho'
    (folder / "bad.jsonl").write_text("\n".join(lines))
    overrides = [
        f"data.train.0.data_files={folder / 'bad.jsonl'}",
        "data.shuffle_buffer=1",
        "checkpoint.save_strategy=epoch",
    ]
    outcome = _run_unequal(two_ranks, folder, "bad-record", overrides)
    assert "line 61" in outcome.reason
    run = folder / "runs" / "bad-record"
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert saved == [f"step-{status(run)['step']:08d}"]


def _run_unequal(pool: RankPool, folder: Path, name: str, overrides: Sequence[str]) -> Outcome:
    """The outcome of the rank that failed by itself."""
    outcomes: list[list[Outcome]] = pool.run(_train_all, folder / "tiny.yaml", [(name, overrides)])
    failed = [outcome for (outcome,) in outcomes if outcome.error != "RankFailedError"]
    assert failed
    assert all(outcome.error for (outcome,) in outcomes)
    return failed[0]


class _Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_step_end(self, report: StepReport) -> None:
        self.calls.append(f"step {report.step}")

    def on_evaluate(self, reports: Sequence[EvalReport]) -> None:
        self.calls.append(f"evaluate {reports[0].step}")

    def on_save(self, checkpoint: Path) -> None:
        self.calls.append(f"save {checkpoint.name}")

    def on_end(self, reason: str) -> None:
        self.calls.append(f"end {reason}")


def _record_calls(config: Path, overrides: Sequence[str]) -> list[str]:
    recorder = _Recorder()
    train(config, overrides, [recorder])
    return recorder.calls


def test_callbacks_are_called_on_every_rank_in_order(folder: Path, two_ranks: RankPool) -> None:
    overrides = ["run.name=calls", "schedule.max_steps=4", "tracking.logging_steps=3", "checkpoint.save_strategy=epoch"]
    calls = two_ranks.run(_record_calls, folder / "tiny.yaml", overrides)
    expected = [*(f"step {step}" for step in range(1, 5)), "evaluate 4", "save step-00000004"]
    assert calls == [[*expected, "end schedule.max_steps=4 reached"]] * 2


def test_tokens_end_the_run_and_masked_lm_trains(folder: Path, two_ranks: RankPool) -> None:
    bert = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    overrides = [
        "model.task=masked_lm",
        "model.architecture=bert",
        f"model.config_overrides={json.dumps(bert)}",
        f"tokenizer.name_or_path={folder / 'tokenizer-masked_lm'}",
        "schedule.max_steps=null",
        "schedule.max_tokens=1000",
    ]
    outcome = _run(two_ranks, folder, ("tokens", overrides))[0]
    assert outcome.reason == "schedule.max_tokens=1000 reached"
    lines = metrics(folder / "runs" / "tokens")
    assert lines[-1]["num_tokens_seen"] >= 1000 > lines[-2]["num_tokens_seen"]
    assert lines[0]["loss"] == pytest.approx(math.log(320), rel=0.05)
