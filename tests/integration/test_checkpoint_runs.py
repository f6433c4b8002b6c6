"""Checkpoints of real engines beyond the matrix of sizes: what else they hold, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.export import export_checkpoint
from llmtrain.checkpoint.final import export_final
from llmtrain.checkpoint.fragments import EngineState
from llmtrain.checkpoint.manifest import Manifest
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.cli import checkpoint_commands
from llmtrain.dist.runtime import Dist
from llmtrain.errors import CheckpointError
from tests.support.checkpoint_runs import (
    SAVED_STEP,
    Setup,
    build_engine,
    differences,
    make_model,
    resume,
    start_from,
    state_of,
    store,
    train,
    train_and_save,
)
from tests.support.ranks import RankPool


@pytest.mark.parametrize("setup", [Setup(0, 2, dropout=0.2), Setup(3, 2, dropout=0.2)], ids=str)
def test_dropout_goes_on_where_it_was(setup: Setup, two_ranks: RankPool, tmp_path: Path) -> None:
    original = two_ranks.run(train_and_save, setup, tmp_path / "a")[0]
    resumed = two_ranks.run(resume, setup, original.path, tmp_path / "b")[0]
    assert resumed.losses == original.losses[SAVED_STEP:]


def test_dropout_on_another_number_of_ranks_can_be_repeated(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    original = two_ranks.run(train_and_save, Setup(2, 2, dropout=0.2), tmp_path / "a")[0]
    runs = [one_rank.run(resume, Setup(2, 1, dropout=0.2), original.path, tmp_path / name)[0] for name in ("b", "c")]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses != original.losses[SAVED_STEP:]


@pytest.mark.parametrize(
    "target", [Setup(0, 2, frozen=True), Setup(2, 2, frozen=True), Setup(3, 1, frozen=True)], ids=str
)
def test_frozen_parameters_and_buffers_come_back(
    target: Setup, one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    original = two_ranks.run(train_and_save, Setup(3, 2, precision="bf16", frozen=True), tmp_path / "a")[0]
    record = Manifest.read(original.path).parameters["transformer.wpe.weight"]
    assert (record.role, record.dtype, record.moments) == ("frozen", "BF16", [])
    assert Manifest.read(original.path).parameters["transformer.seen"].role == "buffer"
    pool = two_ranks if target.world_size == 2 else one_rank
    resumed = pool.run(resume, target, original.path, tmp_path / "b")[0]
    one, other = state_of(original.path), state_of(resumed.path)
    assert other["weight/transformer.seen"].tolist() == [0, 7]
    positions = make_model(0).transformer.wpe.weight
    assert torch.equal(other["weight/transformer.wpe.weight"], positions.bfloat16().to(torch.float32))
    frozen = "weight/transformer.wpe.weight"
    assert differences({**one, frozen: one[frozen].float()}, other) == []


@pytest.mark.parametrize("setup", [Setup(3, 2), Setup(2, 2, precision="bf16"), Setup(0, 2)], ids=str)
def test_an_engine_that_has_trained_takes_a_checkpoint(setup: Setup, two_ranks: RankPool, tmp_path: Path) -> None:
    original = two_ranks.run(train_and_save, setup, tmp_path / "a")[0]
    resumed = two_ranks.run(resume, setup, original.path, tmp_path / "b", first_train=2)[0]
    assert differences(state_of(original.path), state_of(resumed.path)) == []
    assert resumed.losses == original.losses[SAVED_STEP:]


def test_init_from_takes_the_weights_alone(one_rank: RankPool, two_ranks: RankPool, tmp_path: Path) -> None:
    original = two_ranks.run(train_and_save, Setup(2, 2, precision="bf16"), tmp_path / "a")[0]
    started = one_rank.run(start_from, Setup(3, 1, optimizer="sgd"), original.path, tmp_path / "b")[0]
    one, other = state_of(original.path), state_of(started.path)
    weights = {key for key in one if key.startswith("weight/")}
    assert weights == set(other)
    assert all(torch.equal(one[key], other[key]) for key in weights)
    assert abs(started.losses[0] - original.losses[SAVED_STEP]) < 1e-3


@pytest.mark.parametrize(
    ("optimizer", "moment"), [("sgd", "momentum_buffer"), pytest.param("lion", "exp_avg", marks=pytest.mark.faults)]
)
def test_any_optimizer_resumes_at_another_stage(
    optimizer: str, moment: str, one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    source = Setup(2, 2, offload=True, optimizer=optimizer)
    original = two_ranks.run(train_and_save, source, tmp_path / "a")[0]
    assert Manifest.read(original.path).parameters["transformer.ln_f.bias"].moments == [moment]
    resumed = one_rank.run(resume, Setup(3, 1, offload=True, optimizer=optimizer), original.path, tmp_path / "b")[0]
    assert differences(state_of(original.path), state_of(resumed.path)) == []
    assert resumed.losses == pytest.approx(original.losses[SAVED_STEP:], abs=1e-4)


def _save_before_the_first_step(setup: Setup, root: Path) -> Path:
    engine = build_engine(setup)
    return store(root, Dist.adopt(), engine).save(0, engine, {}, {})


def test_a_checkpoint_from_before_the_first_step_resumes(two_ranks: RankPool, tmp_path: Path) -> None:
    path = two_ranks.run(_save_before_the_first_step, Setup(2, 2), tmp_path / "a")[0]
    resumed = two_ranks.run(resume, Setup(3, 2), path, tmp_path / "b", first_train=1)[0]
    assert differences(state_of(path), state_of(resumed.path)) == []


# --- refusals -----------------------------------------------------------------------------------------------------


def _error_of_save(setup: Setup, root: Path) -> str:
    engine = build_engine(setup)
    train(engine, Dist.adopt().rank, 1, 1)
    try:
        store(root, Dist.adopt(), engine).save(1, engine, {}, {})
    except CheckpointError as error:
        return str(error)
    return ""


def _error_of_load(setup: Setup, path: Path) -> str:
    engine = build_engine(setup)
    try:
        store(path.parent, Dist.adopt(), engine).load(path, engine)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_layout_that_deepspeed_describes_wrongly_is_refused(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    zero = {"round_robin_gradients": True}
    errors = two_ranks.run(_error_of_save, Setup(2, 2, zero=zero), tmp_path / "a")
    assert all("master weights are not the model's parameters" in error for error in errors)
    assert all("round_robin_gradients" in error for error in errors)
    assert not any((tmp_path / "a").iterdir())
    good = two_ranks.run(train_and_save, Setup(2, 2), tmp_path / "b")[0]
    assert all("round_robin" in error for error in two_ranks.run(_error_of_load, Setup(2, 2, zero=zero), good.path))
    # On one rank the order of the parameters does not matter, and the layout is what it says.
    assert one_rank.run(_error_of_save, Setup(2, 1, zero=zero), tmp_path / "c") == [""]


def test_another_optimizer_and_another_model_are_refused(two_ranks: RankPool, tmp_path: Path) -> None:
    original = two_ranks.run(train_and_save, Setup(2, 2), tmp_path / "a")[0]
    errors = two_ranks.run(_error_of_load, Setup(2, 2, optimizer="sgd"), original.path)
    assert errors[0] == errors[1]
    assert "its optimizer is adam, this run's is sgd: model.init_from takes its weights alone" in errors[0]
    errors = two_ranks.run(_error_of_load, Setup(2, 2, buffer=False), original.path)
    assert "the model has no parameter transformer.seen" in errors[0]


class FullDisk(Disk):
    """Has no space for the files of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before(self, operation: str, path: Path) -> None:
        if operation == "write" and path.name == self.name:
            raise OSError(28, "No space left on device", str(path))


def _save_on_a_full_disk(setup: Setup, root: Path, names: list[str]) -> dict[str, str]:
    """A good checkpoint, then one failing save for each name, then a good one again; the errors."""
    ranks = Dist.adopt()
    engine = build_engine(setup)
    train(engine, ranks.rank, 1, 1)
    store(root, ranks, engine).save(1, engine, {}, {})
    errors = {}
    for name in names:
        try:
            store(root, ranks, engine, disk=FullDisk(name)).save(2, engine, {}, {})
        except CheckpointError as error:
            errors[name] = str(error)
    if ranks.rank == 0:
        errors["left"] = " ".join(sorted(path.name for path in root.iterdir()))
    store(root, ranks, engine).save(2, engine, {}, {})
    return errors


def test_a_save_that_fails_on_one_rank_fails_on_all(two_ranks: RankPool, tmp_path: Path) -> None:
    names = {
        "rank-00001.safetensors": 1,
        "rank-00000.random.safetensors": 0,
        "trainer_state.json": 0,
        "manifest.json": 0,
    }
    errors = two_ranks.run(_save_on_a_full_disk, Setup(2, 2), tmp_path, list(names))
    for name, rank in names.items():
        assert errors[0][name] == errors[1][name]
        assert "the checkpoint of step 2 could not be saved (earlier ones are untouched)" in errors[0][name]
        assert f"rank {rank}: OSError: [Errno 28] No space left on device" in errors[0][name]
    assert errors[0]["left"] == "latest step-00000001"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001", "step-00000002"]


# --- the folder of a run ------------------------------------------------------------------------------------------


def _save_steps(setup: Setup, root: Path, steps: list[int], **options: Any) -> list[str]:
    """Save each step; a negative one is the best so far. What was said."""
    ranks = Dist.adopt()
    engine = build_engine(setup)
    said: list[str] = []
    checkpoints = store(root, ranks, engine, say=said.append, **options)
    if source := checkpoints.find("auto"):
        checkpoints.load(source, engine)
    for step in steps:
        if step < 0:
            checkpoints.protect_best(-step)
        checkpoints.save(abs(step), engine, {}, {})
    return said


def test_retention_spares_the_newest_the_best_and_the_source(one_rank: RankPool, tmp_path: Path) -> None:
    def kept() -> list[str]:
        return sorted(path.name.removeprefix("step-000000") for path in tmp_path.iterdir())

    one_rank.run(_save_steps, Setup(0), tmp_path, [8, 9, -10, 11], save_total_limit=1)
    assert kept() == ["10", "11", "latest"]
    (tmp_path / "step-00000005.tmp").mkdir()
    one_rank.run(_save_steps, Setup(0), tmp_path, [12, -13, 14, 15], save_total_limit=2)
    assert kept() == ["11", "13", "14", "15", "latest"]
    assert (tmp_path / "latest").read_text() == "step-00000015\n"


def test_what_a_save_makes_obsolete_is_set_aside_not_removed(one_rank: RankPool, tmp_path: Path) -> None:
    said = one_rank.run(_save_steps, Setup(0), tmp_path, [10, 20, 20, 15], save_total_limit=5)[0]
    assert [text for text in said if "aside" in text] == [
        "checkpoint step-00000020 is now step-00000020.aside-1: a new checkpoint of the same step takes its place",
        "checkpoint step-00000020 is now step-00000020.aside-2: the run went back before it and is at step 15 now",
    ]
    names = ["latest", "step-00000010", "step-00000015", "step-00000020.aside-1", "step-00000020.aside-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


# --- export -------------------------------------------------------------------------------------------------------


def _train_save_export(setup: Setup, root: Path) -> None:
    """Save and export in the same state, and train on."""
    ranks = Dist.adopt()
    engine = build_engine(setup)
    train(engine, ranks.rank, 1, 2)
    store(root, ranks, engine).save(2, engine, {}, {})
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    export_final(engine, ModelFiles.of(engine.module, None, dtype), root / "final", ranks)
    EngineState(engine, ranks.rank, ranks.world_size).check_all()
    train(engine, ranks.rank, 3, 3)


@pytest.mark.parametrize(
    "setup",
    [Setup(0, 2, buffer=False), Setup(2, 2, precision="bf16", buffer=False), Setup(3, 2, buffer=False)],
    ids=str,
)
def test_engine_and_checkpoint_export_the_same_model(
    setup: Setup, two_ranks: RankPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    from transformers import AutoModelForCausalLM

    two_ranks.run(_train_save_export, setup, tmp_path)
    state = state_of(tmp_path / "step-00000002")
    parser = argparse.ArgumentParser()
    checkpoint_commands.add_checkpoint_commands(parser.add_subparsers())
    arguments = parser.parse_args(["export", str(tmp_path / "step-00000002"), str(tmp_path / "exported")])
    assert arguments.run(arguments) == 0
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    assert str(dtype).removeprefix("torch.") in capsys.readouterr().out
    final, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("final", "exported"))
    assert final.keys() == exported.keys() == {key.removeprefix("weight/") for key in state if "weight/" in key}
    assert all(torch.equal(final[name], exported[name]) for name in final)
    assert all(torch.equal(final[name], state[f"weight/{name}"].to(dtype)) for name in final)
    for name in ("final", "exported"):
        model, info = AutoModelForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert model.dtype == dtype
        assert model.lm_head.weight is model.transformer.wte.weight


def test_an_export_takes_another_dtype_and_refuses_a_folder_in_use(one_rank: RankPool, tmp_path: Path) -> None:
    from llmtrain.errors import ConfigError

    one_rank.run(_train_save_export, Setup(2, 1, precision="bf16", buffer=False), tmp_path)
    checkpoint = tmp_path / "step-00000002"
    assert export_checkpoint(checkpoint, tmp_path / "fp32", dtype=torch.float32) == torch.float32
    loaded = load_file(tmp_path / "fp32" / "model.safetensors")
    state = state_of(checkpoint)
    assert all(torch.equal(value, state[f"weight/{name}"]) for name, value in loaded.items())
    with pytest.raises(ConfigError, match="is in use; name a folder that is empty or new"):
        export_checkpoint(checkpoint, tmp_path / "fp32")
    (checkpoint / "rank-00000.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors has 1 bytes"):
        export_checkpoint(checkpoint, tmp_path / "other")
