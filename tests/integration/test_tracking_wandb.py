"""W&B by its real SDK, offline: what it records, and that it can fail in every way without changing the run.

Each scenario is a process of its own with an empty home folder, as a training rank would be: the SDK lives from global
state and exit hooks, and how the process ends is part of what is tested.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ranks import ROOT
from tests.support.wandb_file import RecordedRun, read_wandb_file

BUILD = """
import os, signal, sys, time
from pathlib import Path
from llmtrain.config.schema import TrackingConfig
from llmtrain.tracking import EvalReport, RunFolder, RunInfo, StepReport, build_console, build_trackers
from llmtrain.tracking import background

folder = RunFolder(Path(sys.argv[1]))
tracking = TrackingConfig(report_to=["wandb"], project="proj", tags=["a", "b"], notes="a note")
console = build_console(is_main=True)
trackers = build_trackers(tracking, folder, console, is_main=True, resume_run_id=(sys.argv[2:] or [None])[0])
print("run id", trackers.run_id)

def log(step):
    trackers.log_step(StepReport(
        step=step, epoch=0, loss=1.0 / step, learning_rate=0.1, grad_norm=float("nan") if step == 2 else 1.0,
        num_supervised_tokens=9, num_tokens_seen=10 * step, tokens_per_second=1.0, step_seconds=1.0,
        data_wait_seconds=0.0))

def service_of_the_running_run():
    from wandb.sdk import wandb_setup
    deadline = time.monotonic() + 30
    while wandb_setup.singleton().most_recent_active_run is None:
        assert time.monotonic() < deadline, "wandb did not start"
        time.sleep(0.05)
    process = wandb_setup.singleton()._connection._proc._process
    print("service", process.pid, flush=True)
    return process
"""
START = """
trackers.start(RunInfo("demo", {"model": {"preset": "tiny"}, "batch": {"global_batch_size": 8}}, max_steps=3))
"""
RUN = """
for step in (1, 2, 3):
    log(step)
trackers.log_eval(EvalReport(3, 2.0, 50, num_tokens_seen=30))
trackers.log_eval(EvalReport(3, 4.0, 50, eval_set="books", num_tokens_seen=30))
"""
FINISH = """
trackers.finish("done")
"""
WELL = BUILD + START + RUN + FINISH
KEY = "0123456789" * 4
NOBODY = "http://127.0.0.1:9"
"""A server that nobody runs."""
ENVIRONMENT_FREE_OF_WANDB = {
    key: value for key, value in os.environ.items() if not key.startswith("WANDB") and key != "NETRC"
}


def start(home: Path, scenario: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A scenario in a process of its own; the run folder is `home/run`."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "run" / "provenance.yaml").write_text("model.preset: demo.yaml:3\n")
    return subprocess.Popen(
        [sys.executable, "-c", scenario, str(home / "run"), *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT_FREE_OF_WANDB, "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_seconds: float = 120.0) -> tuple[str, str]:
    """Output and errors of a scenario that ended well."""
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        pytest.fail(f"hangs\n{output}\n{errors}")
    assert process.returncode == 0, f"{output}\n{errors}"
    return output, errors


def recorded(home: Path) -> list[RecordedRun]:
    """The runs in the run folder, oldest first."""
    folders = [path for path in sorted((home / "run" / "wandb").glob("*")) if not path.is_symlink()]
    return [read_wandb_file(path) for folder in folders for path in folder.glob("*.wandb")]


def test_a_run_without_a_key_is_recorded_offline_and_goes_on_under_its_id(tmp_path: Path) -> None:
    output, errors = finish(start(tmp_path, WELL))
    assert errors == ""
    run_id = output.split("run id ")[1].split()[0]
    assert "recording offline; to upload: wandb sync" in output
    (run,) = recorded(tmp_path)
    assert (run.run_id, run.project, run.display_name) == (run_id, "proj", "demo")
    assert (run.tags, run.notes) == (["a", "b"], "a note")
    assert run.config["model"] == {"preset": "tiny"}
    assert run.config["batch"] == {"global_batch_size": 8}
    assert run.metrics.items() >= {"step": "", "num_tokens_seen": "", "train/*": "step", "eval/*": "step"}.items()
    train = [line for line in run.history if "train/loss" in line]
    assert [(line["step"], line["num_tokens_seen"], line["train/loss"]) for line in train] == [
        (1, 10, 1.0),
        (2, 20, 0.5),
        (3, 30, 1 / 3),
    ]
    evaluations = [line for line in run.history if "train/loss" not in line]
    assert [(line["step"], line["num_tokens_seen"]) for line in evaluations] == [(3, 30), (3, 30)]
    assert evaluations[0]["eval/loss"] == 2.0
    assert evaluations[1]["eval/books/loss"] == 4.0
    assert run.exit_code == 0
    (copy,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files/provenance.yaml")
    assert copy.read_text() == "model.preset: demo.yaml:3\n"
    assert not copy.is_symlink()

    output, errors = finish(start(tmp_path, WELL, run_id))
    assert errors == ""
    assert [run.run_id for run in recorded(tmp_path)] == [run_id, run_id]


def test_what_the_user_set_for_wandb_is_respected(tmp_path: Path) -> None:
    output, errors = finish(start(tmp_path, WELL, WANDB_MODE="disabled"))
    assert errors == ""
    assert "run id None" in output
    assert recorded(tmp_path) == []
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_key_that_is_not_one_is_said_once_and_the_run_is_recorded_offline(tmp_path: Path) -> None:
    output, errors = finish(start(tmp_path, WELL, WANDB_API_KEY="short"))
    assert errors == ""
    assert output.count("warning: wandb: WANDB_API_KEY invalid") == 1
    assert recorded(tmp_path)[0].exit_code == 0


def test_a_service_that_cannot_be_reached_leaves_an_offline_run(tmp_path: Path) -> None:
    hurry = "trackers._trackers[2]._tracker._init_seconds = 1.0"
    scenario = BUILD + hurry + START + RUN + FINISH
    output, errors = finish(start(tmp_path, scenario, WANDB_API_KEY=KEY, WANDB_BASE_URL=NOBODY))
    assert errors == ""
    assert output.count("warning: wandb") == 1
    assert "warning: wandb: the service did not take the run" in output
    (offline,) = [run for run in recorded(tmp_path) if run.run_id]
    assert offline.exit_code == 0
    assert len(offline.history) == 5


@pytest.mark.parametrize("where", ["netrc", "settings", "nowhere"])
def test_a_key_is_found_where_the_sdk_keeps_it(tmp_path: Path, where: str) -> None:
    if where == "netrc":
        (tmp_path / ".netrc").write_text(f"machine {NOBODY.removeprefix('http://')}\n  login user\n  password {KEY}\n")
    elif where == "settings":
        (tmp_path / ".config" / "wandb").mkdir(parents=True)
        (tmp_path / ".config" / "wandb" / "settings").write_text(f"[default]\napi_key = {KEY}\n")
    scenario = "from llmtrain.tracking.wandb_tracker import choose_mode; print(choose_mode(print))"
    output, _ = finish(start(tmp_path, scenario, WANDB_BASE_URL=NOBODY))
    assert output == ("offline\n" if where == "nowhere" else "online\n")


KILL = """
service_of_the_running_run().kill()
time.sleep(0.5)
"""
STOP = """
os.kill(service_of_the_running_run().pid, signal.SIGSTOP)
background.FINISH_SECONDS["done"] = 3.0
"""


@pytest.mark.parametrize(
    ("fault", "complaint"), [(KILL, "failed with"), (STOP, "did not finish within 3 s")], ids=["killed", "stopped"]
)
def test_a_service_process_that_dies_or_hangs_costs_one_warning(tmp_path: Path, fault: str, complaint: str) -> None:
    output, errors = finish(start(tmp_path, BUILD + START + fault + RUN + FINISH + "print('end reached')"))
    assert errors == ""
    assert output.count("warning: wandb") == 1
    assert f"warning: wandb {complaint}" in output
    assert "end reached" in output
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    assert not alive(int(output.split("service ")[1].split()[0]))


def test_a_run_that_ends_at_once_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path, BUILD + START + RUN + "service_of_the_running_run(); os._exit(0)")
    output, errors = finish(process)
    assert errors == ""
    pid, deadline = int(output.split("service ")[1].split()[0]), time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(pid)


def test_an_unusable_folder_for_its_files_is_one_warning(tmp_path: Path) -> None:
    broken = "(folder.path / 'wandb').write_text('')\n"
    output, errors = finish(start(tmp_path, BUILD + broken + START + RUN + FINISH))
    assert errors == ""
    assert output.count("warning: wandb failed with NotADirectoryError") == 1
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_person_at_a_terminal_is_asked_and_may_stay_offline(tmp_path: Path) -> None:
    """The child has the terminal as its controlling one, as a shell's foreground job has."""
    (tmp_path / "run").mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**ENVIRONMENT_FREE_OF_WANDB, "HOME": str(tmp_path), "TERM": "xterm"}
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-c", WELL, str(tmp_path / "run")], environment)
    output = converse(terminal, "Enter your choice", "3\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert status == 0, output
    assert "Don't visualize my results" in output
    assert "recording offline" in output
    assert recorded(tmp_path)[0].exit_code == 0


def test_a_job_in_the_background_of_a_terminal_is_not_asked(tmp_path: Path) -> None:
    """Reading the terminal would stop it (SIGTTIN)."""
    (tmp_path / "run").mkdir()
    code = (
        "import subprocess, sys\n"
        "sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]], process_group=0, timeout=120).returncode)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**ENVIRONMENT_FREE_OF_WANDB, "HOME": str(tmp_path), "TERM": "xterm"}
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-c", code, WELL, str(tmp_path / "run")], environment)
    output = converse(terminal, "Enter your choice", "")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert status == 0, output
    assert "Enter your choice" not in output
    assert recorded(tmp_path)[0].exit_code == 0


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def converse(terminal: int, question: str, answer: str, timeout_seconds: float = 120.0) -> str:
    """All that comes from the terminal until it is closed; answers the question once."""
    output, answered, deadline = "", False, time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return output
        if not chunk:
            return output
        output += chunk.decode(errors="replace")
        if question in output and answer and not answered:
            os.write(terminal, answer.encode())
            answered = True
    return output
