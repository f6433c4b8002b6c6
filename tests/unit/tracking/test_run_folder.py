"""Claiming a run folder, and what is written into it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmtrain.config.schema import RunConfig
from llmtrain.errors import ConfigError, ExitStatus
from llmtrain.tracking import RunFolder, RunStatus


def alone(value: Any) -> list[Any]:
    """The gather of one rank."""
    return [value]


def folder_in(tmp_path: Path, **keys: Any) -> tuple[RunFolder, RunConfig]:
    """The folder runs/demo and its configuration."""
    run = RunConfig(name="demo", output_dir=str(tmp_path / "runs"), **keys)
    return RunFolder.of(run), run


def prepare(folder: RunFolder, run: RunConfig, **keys: Any) -> None:
    """As the only rank."""
    folder.prepare(run, rank=0, all_gather=alone, **keys)


def used(tmp_path: Path) -> RunFolder:
    """A folder in which a run has trained."""
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    folder.write_config("run: {}\n", {"run.name": "default"})
    folder.write_status("interrupted", 40, "SIGTERM", ExitStatus.INTERRUPTED)
    writer = folder.metrics()
    writer.append("{}")
    writer.close()
    (folder.checkpoints / "step-00000040").mkdir(parents=True)
    (folder.path / "wandb").mkdir()
    return folder


def names(folder: RunFolder) -> list[str]:
    """What the folder holds."""
    return sorted(entry.name for entry in folder.path.iterdir())


def problem_of(error: pytest.ExceptionInfo[ConfigError]) -> tuple[str, str]:
    """Path and text of the one problem."""
    (problem,) = error.value.problems
    return problem.path, str(problem)


def test_a_new_folder_is_made_with_its_parents_and_left_empty(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    assert folder.path == tmp_path / "runs" / "demo"
    assert names(folder) == []


def test_a_folder_in_use_is_refused_with_the_three_remedies(tmp_path: Path) -> None:
    before = names(used(tmp_path))
    folder, run = folder_in(tmp_path)
    with pytest.raises(ConfigError) as error:
        prepare(folder, run)
    path, text = problem_of(error)
    assert error.value.exit_status == 2
    assert path == "run.name"
    assert "interrupted" in text
    assert "step 40" in text
    for remedy in ("another run.name", "run.resume_from_checkpoint=auto", "run.overwrite=true"):
        assert remedy in text
    assert names(folder) == before


def test_a_folder_with_a_strangers_file_is_in_use_too(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="folder in use"):
        prepare(folder, run)


@pytest.mark.parametrize("resume", ["auto", "somewhere/checkpoints/step-00000040"])
def test_a_resumed_run_goes_on_in_its_folder(tmp_path: Path, resume: str) -> None:
    before = names(used(tmp_path))
    folder, run = folder_in(tmp_path, resume_from_checkpoint=resume)
    prepare(folder, run)
    assert names(folder) == before
    folder.write_config("run: {name: demo}\n", {"run.name": "command line"})
    assert "demo" in (folder.path / "config.yaml").read_text()


def test_overwrite_deletes_what_a_run_folder_holds_and_nothing_else(tmp_path: Path) -> None:
    old = used(tmp_path)
    (old.path / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "big-disk"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_text("weights")
    (old.path / "final").symlink_to(elsewhere)
    folder, run = folder_in(tmp_path, overwrite=True)
    prepare(folder, run)
    assert names(folder) == ["notes.txt"]
    assert (elsewhere / "model.safetensors").exists(), "a link's target is not the run folder's"


def test_overwrite_refuses_a_folder_that_is_no_run_folder(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path, overwrite=True)
    (folder.path / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError) as error:
        prepare(folder, run)
    assert problem_of(error)[0] == "run.overwrite"
    assert (folder.path / "checkpoints").is_dir()


def test_overwrite_refuses_to_delete_what_the_run_starts_from(tmp_path: Path) -> None:
    checkpoint = used(tmp_path).checkpoints / "step-00000040"
    folder, run = folder_in(tmp_path, overwrite=True, resume_from_checkpoint=str(checkpoint))
    with pytest.raises(ConfigError, match="which this run starts from"):
        prepare(folder, run)
    folder, run = folder_in(tmp_path, overwrite=True)
    with pytest.raises(ConfigError, match="which this run starts from"):
        prepare(folder, run, needed=[checkpoint])
    folder, run = folder_in(tmp_path, overwrite=True, resume_from_checkpoint="auto")
    with pytest.raises(ConfigError, match="contradicts"):
        prepare(folder, run)
    assert checkpoint.is_dir()


def test_overwrite_together_with_a_checkpoint_elsewhere_starts_clean(tmp_path: Path) -> None:
    used(tmp_path)
    folder, run = folder_in(tmp_path, overwrite=True, resume_from_checkpoint=str(tmp_path / "other" / "step-1"))
    prepare(folder, run)
    assert names(folder) == []


def test_a_path_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    folder.path.parent.mkdir()
    folder.path.write_text("")
    with pytest.raises(ConfigError) as error:
        prepare(folder, run)
    path, text = problem_of(error)
    assert path == "run.output_dir"
    assert "is a file" in text


def test_leftovers_of_a_start_that_was_killed_do_not_count(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / ".probe-1234-0").touch()
    (folder.path / ".status.json.77-1.tmp").touch()
    prepare(folder, run)
    assert folder.path.is_dir()


def test_a_run_that_never_trained_gives_its_name_back(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    folder.write_config("run: {}\n", {})
    folder.write_status("failed", 0, "no such file", ExitStatus.CONFIG)
    folder.discard_if_unused()
    assert not folder.path.exists()


def test_a_run_that_trained_or_was_there_before_keeps_its_folder(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    folder.metrics().close()
    folder.discard_if_unused()
    assert names(folder) == ["metrics.jsonl"]
    folder, run = folder_in(tmp_path, resume_from_checkpoint="auto")
    prepare(folder, run)
    (folder.path / "metrics.jsonl").unlink()
    folder.write_status("failed", 0)
    folder.discard_if_unused()
    assert names(folder) == ["status.json"]


def test_status_says_how_the_run_stands(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    assert folder.read_status() is None
    folder.write_status("running", 0)
    assert json.loads((folder.path / "status.json").read_text()) == {
        "status": "running",
        "step": 0,
        "reason": None,
        "exit_status": None,
    }
    folder.write_status("failed", 12, "rank 1: out of memory", ExitStatus.FAILED)
    assert folder.read_status() == RunStatus("failed", 12, "rank 1: out of memory", 1)
    (folder.path / "status.json").write_text("{")
    assert folder.read_status() is None


def test_config_and_provenance_are_yaml(tmp_path: Path) -> None:
    folder, run = folder_in(tmp_path)
    prepare(folder, run)
    origins = {"run.name": "résumé.yaml:3", "data.train[0].path": "command line"}
    folder.write_config("run: {name: demo}\n", origins)
    assert yaml.safe_load((folder.path / "provenance.yaml").read_text(encoding="utf-8")) == origins
    assert (folder.path / "config.yaml").read_text() == "run: {name: demo}\n"


class Meeting:
    """A gather of threads that play ranks."""

    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size, timeout=20)
        self._values: list[Any] = [None] * world_size

    def gather_of(self, rank: int) -> Callable[[Any], list[Any]]:
        """The gather that `rank` calls."""

        def gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        return gather


def prepare_together(folders: list[tuple[RunFolder, RunConfig]], hosts: list[str]) -> list[str]:
    """Each rank's outcome, ranks being threads with a folder and a host name of their own."""
    meeting, outcomes = Meeting(len(folders)), [""] * len(folders)

    def rank_main(rank: int) -> None:
        folder, run = folders[rank]
        try:
            folder.prepare(run, rank=rank, all_gather=meeting.gather_of(rank), host=hosts[rank], patience_seconds=0.3)
        except ConfigError as error:
            outcomes[rank] = str(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_ranks_that_share_the_folder_agree_and_leave_nothing(tmp_path: Path) -> None:
    folders = [folder_in(tmp_path) for _ in range(3)]
    assert prepare_together(folders, ["a", "a", "b"]) == ["", "", ""]
    assert names(folders[0][0]) == []


@pytest.mark.parametrize("exists_there", [False, True], ids=["absent", "another folder"])
def test_a_host_with_another_folder_is_named_on_every_rank(tmp_path: Path, exists_there: bool) -> None:
    here, there = folder_in(tmp_path / "here"), folder_in(tmp_path / "there")
    if exists_there:
        there[0].path.mkdir(parents=True)
    outcomes = prepare_together([here, here, there], ["node-a", "node-a", "node-b"])
    for outcome in outcomes:
        assert outcome.startswith("run.output_dir=")
        assert "node-a is not seen by node-b (rank 2);" in outcome
    assert there[0].path.exists() == exists_there, "nothing is made on a host that does not share the folder"


def test_a_refusal_reaches_every_rank(tmp_path: Path) -> None:
    used(tmp_path)
    outcomes = prepare_together([folder_in(tmp_path), folder_in(tmp_path)], ["a", "a"])
    assert len(set(outcomes)) == 1
    assert "folder in use" in outcomes[0]
