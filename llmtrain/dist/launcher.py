"""The watch over DeepSpeed's launcher.

The command `deepspeed` does not pass SIGTERM on: it ends, and its ranks train on without it. So a rank that was
started by `deepspeed.launcher.launch` looks twice a second whether that process is alive, and its parent where that
was the command `deepspeed`; the loss of either is a request to stop. A rank under torchrun, srun or a shell has no
such watch: those pass their signals on.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import PurePath

from llmtrain.dist.processes import ProcessId
from llmtrain.dist.signals import StopRequest

_LOOK_SECONDS = 0.5
_RUNNER_COMMANDS = {"deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner"}


def find_launcher() -> ProcessId | None:
    """The `deepspeed.launcher.launch` process that started this rank, None where something else did."""
    parent = ProcessId.of(os.getppid())
    if parent is None or not _is_launcher(parent.command_line):
        return None
    return parent


def watch_launcher(stop: StopRequest) -> threading.Thread | None:
    """Request a stop when DeepSpeed's launcher is lost; None where it did not start this rank."""
    launcher = find_launcher()
    if launcher is None:
        return None
    watched = {"DeepSpeed's launcher": launcher}
    runner = launcher.parent
    if runner is not None and _is_runner(runner.command_line):
        watched["the command deepspeed"] = runner
    thread = threading.Thread(target=_watch, args=(watched, stop), name="launcher-watch", daemon=True)
    thread.start()
    return thread


def num_living_siblings(launcher: ProcessId) -> int:
    """The ranks of this host that still run, this one included: the launcher has no other children."""
    return len(launcher.children)


def _watch(watched: dict[str, ProcessId], stop: StopRequest) -> None:
    while True:
        for name, process in watched.items():
            if not process.is_alive:
                stop.request(f"{name} (process {process.pid}) has ended")
                return
        time.sleep(_LOOK_SECONDS)


def _is_launcher(command_line: list[str]) -> bool:
    """`python -u -m deepspeed.launcher.launch …`, or the file itself."""
    return any(
        argument == "deepspeed.launcher.launch" or argument.endswith("deepspeed/launcher/launch.py")
        for argument in command_line[:5]
    )


def _is_runner(command_line: list[str]) -> bool:
    """`python …/bin/deepspeed …`, or `python -m deepspeed.launcher.runner …`."""
    return any(
        PurePath(argument).name in _RUNNER_COMMANDS or argument.endswith("deepspeed/launcher/runner.py")
        for argument in command_line[:4]
    )
