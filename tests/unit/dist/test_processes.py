"""What is known about processes, and which of them are DeepSpeed's launchers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

from llmtrain.dist.launcher import _is_launcher, _is_runner, find_launcher, watch_launcher
from llmtrain.dist.processes import ProcessId, host_id
from llmtrain.dist.signals import StopRequest


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "marker"])


def test_this_process_is_alive_and_knows_its_parent() -> None:
    this = ProcessId.current()
    assert this.is_alive
    assert this.parent is not None
    assert this.parent.pid == os.getppid()


def test_a_killed_process_is_dead_before_its_parent_has_waited_for_it() -> None:
    child = sleeper()
    process = ProcessId.of(child.pid)
    assert process is not None
    assert process.is_alive
    assert process in ProcessId.current().children
    child.kill()
    deadline = time.monotonic() + 10
    while process.is_alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.returncode is None, "nobody has waited for it"
    assert not process.is_alive
    assert process not in ProcessId.current().children
    child.wait()
    assert ProcessId.of(child.pid) is None


def test_another_process_of_the_same_id_is_not_taken_for_it() -> None:
    this = ProcessId.current()
    assert not dataclasses.replace(this, start_time=this.start_time + 1).is_alive


def test_command_lines() -> None:
    child = sleeper()
    process = ProcessId.of(child.pid)
    assert process is not None
    deadline = time.monotonic() + 10
    while "marker" not in process.command_line and time.monotonic() < deadline:
        time.sleep(0.01)  # until the child has become Python
    assert process.command_line[-1] == "marker"
    child.kill()
    child.wait()
    assert process.command_line == []


def test_the_host_is_the_same_for_a_child() -> None:
    code = "from llmtrain.dist.processes import host_id; print(host_id())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == host_id()


def test_deepspeeds_processes_are_recognised() -> None:
    launch = ["/venv/bin/python", "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"]
    assert _is_launcher(launch)
    assert not _is_launcher(["/bin/bash", "-c", "deepspeed train.py"])
    assert not _is_launcher(["python", "-m", "torch.distributed.run", "train.py"])
    assert _is_runner(["/venv/bin/python3", "/venv/bin/deepspeed", "--num_gpus", "2", "train.py"])
    assert _is_runner(["python", "-m", "deepspeed.launcher.runner", "train.py"])
    assert not _is_runner(["/bin/bash", "job.sh"])


def test_a_rank_that_deepspeed_did_not_start_watches_nobody() -> None:
    stop = StopRequest()
    assert find_launcher() is None
    assert watch_launcher(stop) is None
