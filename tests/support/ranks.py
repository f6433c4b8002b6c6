"""Ranks for tests: real processes with a real process group, started once and used by many tests.

`RankPool(2).run(scenario, *args)` calls the module-level function `scenario` on every rank and returns the results in
the order of the ranks. A rank that raises fails the test with that rank's traceback; ranks that do not answer in time
are killed and the pool starts anew.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment that a launcher gives a rank."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }


class RankPool:
    """`world_size` processes that wait for functions to run."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout_seconds: float = 300.0, **kwargs: Any) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank; its results in the order of the ranks."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, args, kwargs))
        deadline = time.monotonic() + timeout_seconds
        answers: list[Any] = []
        for rank, connection in enumerate(self._connections):
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"rank {rank} did not answer within {timeout_seconds:g} s")
                answers.append(connection.recv())
            except (EOFError, OSError, TimeoutError) as error:
                self.close()
                failures = [text for ok, text in answers if not ok]
                raise AssertionError("\n".join([f"rank {rank}: {error!r}", *failures])) from error
            if not answers[-1][0]:
                # The others may wait for this one for ever: give them a moment, then start anew.
                deadline = min(deadline, time.monotonic() + 5.0)
        failures = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self.close()
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes, self._connections = [], []

    def _start(self) -> None:
        port = free_port()
        with Listener(("127.0.0.1", 0)) as listener:
            for rank in range(self.world_size):
                host, listen_port = listener.address
                command = [sys.executable, "-m", "tests.support.rank_worker", host, str(listen_port), str(rank)]
                environment = rank_environment(rank, self.world_size, port)
                self._processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
            connections = [listener.accept() for _ in range(self.world_size)]
        self._connections = [c for _, c in sorted(((c.recv(), c) for c in connections), key=lambda pair: pair[0])]


def connect(host: str, port: int, rank: int) -> Connection:
    """The worker's end: says which rank it is."""
    connection = Client((host, port))
    connection.send(rank)
    return connection
