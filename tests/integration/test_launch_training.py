"""A user's run from the command line: the real launchers, W&B offline, the exported folder, the ends it can come to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.support.ranks import free_port
from tests.support.train_jobs import train_job
from tests.support.training import documents, metrics, status, tiny_tokenizer, write_config, write_documents
from tests.support.wandb_file import read_wandb_file

ENDS_WITHIN_SECONDS = 30.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 run of four steps that saves, evaluates and follows itself in W&B."""
    folder = tmp_path_factory.mktemp("launched")
    write_documents(folder / "train.jsonl", documents(120))
    write_documents(folder / "eval.jsonl", documents(20, start=500))
    tiny_tokenizer(folder)
    return write_config(
        folder / "tiny.yaml",
        run={"output_dir": str(folder / "runs")},
        tokenizer={"name_or_path": str(folder / "tokenizer-causal_lm")},
        data={
            "train": [{"path": "json", "data_files": str(folder / "train.jsonl")}],
            "eval": [{"path": "json", "data_files": str(folder / "eval.jsonl")}],
            "seq_length": 32,
        },
        schedule={"lr_scheduler_type": "constant", "warmup_steps": 2, "max_steps": 4},
        precision="bf16",
        eval={"eval_steps": 2},
        checkpoint={"save_strategy": "steps", "save_steps": 2},
        tracking={"report_to": ["wandb", "tensorboard"], "logging_steps": 1},
    )


def _run_folder(config: Path, name: str) -> Path:
    return config.parent / "runs" / name


def test_the_deepspeed_command_trains_evaluates_saves_and_exports(config: Path) -> None:
    with train_job(config, "run.name=whole") as job:
        returncode, output = job.end(240.0)
        job.assert_nothing_is_left()
    run = _run_folder(config, "whole")
    assert returncode == 0, output
    assert status(run) == {"status": "done", "step": 4, "reason": "schedule.max_steps=4 reached", "exit_status": 0}
    assert output.count("step 4/4 | loss") == 1
    assert "Warning" not in output

    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["step"] for line in metrics(run, "eval")] == [2, 4]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-00000002", "step-00000004"]

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(run / "final", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert len(transformers.AutoTokenizer.from_pretrained(run / "final")) <= model.config.vocab_size

    recorded = read_wandb_file(next((run / "wandb").glob("offline-run-*/*.wandb")))
    assert [row["train/loss"] for row in recorded.history if "train/loss" in row] == pytest.approx(
        [line["loss"] for line in lines]
    )
    assert any((run / "tensorboard").rglob("events.*"))


@pytest.mark.faults
def test_a_rank_that_is_killed_ends_the_run_with_its_name(config: Path) -> None:
    with train_job(config, "run.name=killed", "schedule.max_steps=100000") as job:
        run = _run_folder(config, "killed")
        job.wait_for_line('"step": 3,', run / "metrics.jsonl")
        os.kill(job.ranks()[1], signal.SIGKILL)
        returncode, output = job.end(ENDS_WITHIN_SECONDS)
        job.assert_nothing_is_left()
    assert returncode != 0
    assert "rank 1 died" in output
    assert status(run)["status"] == "failed"
    assert "rank 1" in status(run)["reason"]


@pytest.mark.faults
def test_a_rank_that_raises_ends_the_run_with_its_reason(config: Path) -> None:
    lines = (config.parent / "train.jsonl").read_text().splitlines()
    lines[100] = '{"text": 7}'
    bad = config.parent / "bad.jsonl"
    bad.write_text("\n".join(lines))
    with train_job(config, "run.name=raised", f"data.train.0.data_files={bad}", "data.shuffle_buffer=1") as job:
        returncode, output = job.end(240.0)
        job.assert_nothing_is_left()
    assert returncode == 1
    assert output.count("line 101") == 1, output
    assert "Traceback" not in output
    run = _run_folder(config, "raised")
    assert status(run)["status"] == "failed"
    assert "line 101" in status(run)["reason"]
    assert "rank " in status(run)["reason"]


@pytest.mark.faults
def test_a_run_that_is_terminated_saves_and_goes_on(config: Path) -> None:
    run = _run_folder(config, "stopped")
    with train_job(config, "run.name=stopped", "schedule.max_steps=100000") as job:
        job.wait_for_line('"step": 5,', run / "metrics.jsonl")
        # The deepspeed command itself passes nothing on: the ranks notice that it is gone.
        job.process.terminate()
        job.end(ENDS_WITHIN_SECONDS)
        job.assert_nothing_is_left(ENDS_WITHIN_SECONDS)
    assert status(run)["status"] == "interrupted"
    assert status(run)["exit_status"] == 75
    step = status(run)["step"]
    assert (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").exists()

    arguments = ("run.resume_from_checkpoint=auto", f"schedule.max_steps={step + 3}")
    with train_job(config, "run.name=stopped", *arguments, world_size=1) as job:
        returncode, output = job.end(240.0)
        job.assert_nothing_is_left()
    assert returncode == 0, output
    assert f"resuming after step {step}" in output
    assert [line["step"] for line in sorted(metrics(run), key=lambda line: line["step"])] == list(range(1, step + 4))


def _torchrun() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]


def _accelerate() -> list[str]:
    options = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu"]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, f"--main_process_port={free_port()}"]


def _python() -> list[str]:
    return [sys.executable]


@pytest.mark.launch
@pytest.mark.parametrize("launcher", [_torchrun, _accelerate, _python])
def test_other_launchers_give_the_same_run(config: Path, launcher: Callable[[], list[str]]) -> None:
    name = launcher.__name__.strip("_")
    overrides = (f"run.name={name}", "precision=fp32", "tracking.report_to=[]")
    with train_job(config, *overrides, launcher=launcher()) as job:
        returncode, output = job.end(240.0)
        job.assert_nothing_is_left()
    assert returncode == 0, output
    losses = [line["loss"] for line in metrics(_run_folder(config, name))]
    with train_job(config, *overrides, "run.overwrite=true", world_size=1) as job:
        assert job.end(240.0)[0] == 0
    assert losses == pytest.approx([line["loss"] for line in metrics(_run_folder(config, name))], rel=1e-5)
