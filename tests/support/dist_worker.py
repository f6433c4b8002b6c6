"""A rank that does what the trainer does with `Dist`, and nothing else: steps of one agreement each.

    dist_worker.py FOLDER [--steps N] [--step-seconds S] [--raise-on RANK] [--die-early RANK] [--save-seconds S]
        [--fetch-fails-on RANK] [--timeout S]

Writes into FOLDER: `meeting-RANK` before it meets the others, `pid-RANK` once it has started, `status` (appended: one
line for each call of `on_failure`), `saved-RANK` when a stop was agreed on, `done-RANK` at the end of its steps. Ends
with the statuses of a run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from llmtrain.dist.launcher import watch_launcher
from llmtrain.dist.quiet import quiet_dependencies
from llmtrain.dist.signals import install_signal_handlers


def main() -> None:
    """Run as a rank."""
    stop = install_signal_handlers()
    watch_launcher(stop)
    quiet_dependencies()

    from llmtrain.dist.facts import rank_facts
    from llmtrain.dist.processes import leave
    from llmtrain.dist.runtime import Dist
    from llmtrain.errors import ExitStatus, LlmtrainError

    arguments = _parse()
    facts = rank_facts(arguments.local_rank)
    path = arguments.folder / f"pid-{facts.rank}"

    def on_failure(reason: str) -> None:
        with (arguments.folder / "status").open("a") as file:
            file.write(f"by {facts.rank}: {reason}\n")

    if facts.rank == arguments.die_early:
        os.kill(os.getpid(), signal.SIGKILL)
    (arguments.folder / f"meeting-{facts.rank}").touch()
    dist: Dist | None = None
    try:
        dist = Dist.start(facts, timeout_seconds=arguments.timeout, on_failure=on_failure, stop=stop)
        path.write_text(str(os.getpid()))
        status = _run(dist, arguments)
        dist.close()
        leave(status)
    except LlmtrainError as error:
        if dist is None:
            sys.stderr.write(f"{error}\n")
            leave(error.exit_status)
        failure = dist.fail(error)
        leave(failure.exit_status)
    except Exception as error:
        assert dist is not None
        failure = dist.fail(error)
        if failure.rank == dist.rank:
            sys.stderr.write(f"{failure.reason}\n")
        leave(ExitStatus.FAILED)


def _run(dist: Dist, arguments: argparse.Namespace) -> int:  # type: ignore[name-defined]  # noqa: F821
    agreement = dist.agreement()
    agreement.post(1, True)
    for step in range(arguments.steps):
        agreed = agreement.wait()
        if agreed.stop_requested:
            time.sleep(arguments.save_seconds * (1 + dist.rank))
            reason = dist.stop_reason()
            (arguments.folder / f"saved-{dist.rank}").write_text(f"{step} {reason}")
            return 75
        if agreed.any_failed:
            if dist.rank != arguments.fetch_fails_on:
                dist.wait_for_failure()
            raise ValueError("no data")
        if dist.rank == arguments.raise_on and step == 3:
            raise ValueError("on purpose")
        time.sleep(arguments.step_seconds)
        agreement.post(1, True, bool(dist.stop.requested), dist.rank == arguments.fetch_fails_on and step == 3)
    agreement.wait()
    (arguments.folder / f"done-{dist.rank}").write_text(str(agreed.num_supervised_tokens))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--local_rank", type=int, default=None)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--save-seconds", type=float, default=0.0)
    parser.add_argument("--raise-on", type=int, default=-1)
    parser.add_argument("--fetch-fails-on", type=int, default=-1)
    parser.add_argument("--die-early", type=int, default=-1)
    parser.add_argument("--timeout", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
