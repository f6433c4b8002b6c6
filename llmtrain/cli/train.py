"""What `scripts/train.py` does: parse, load the configuration, train or describe.

Signals are caught before anything heavy is imported, so that a stop during start-up ends with 75 as any other.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from llmtrain.config import load_config
from llmtrain.dist.facts import RankFacts, rank_facts
from llmtrain.dist.launcher import watch_launcher
from llmtrain.dist.quiet import quiet_dependencies
from llmtrain.dist.signals import StopRequest, install_signal_handlers
from llmtrain.errors import ConfigError, LlmtrainError


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status (0 done, 1 failed, 2 configuration, 75 interrupted)."""
    stop = install_signal_handlers()
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    is_main = True
    try:
        facts = rank_facts(parsed.local_rank)
        is_main = facts.rank == 0
        return _train(parsed, facts, stop)
    except LlmtrainError as error:
        # Every rank reads the same files and finds the same problems: one of them says so.
        if is_main:
            print(f"llmtrain: {error}", file=sys.stderr, flush=True)
        return int(error.exit_status)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; `overrides` holds `key.sub=value` in both spellings."""
    parser = argparse.ArgumentParser(prog="scripts/train.py", description="Train a model.", allow_abbrev=False)
    parser.add_argument(
        "--config", action="append", type=Path, metavar="FILE", help="may be given several times; merged left to right"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.sub=value", help="override the files; --key.sub=value does the same"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what the run would do, and do nothing")
    parser.add_argument("--world-size", type=int, metavar="N", help="with --dry-run: the number of ranks to plan for")
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="a ds_config JSON")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    parsed, rest = parser.parse_known_args(arguments)
    for word in rest:
        if not re.match(r"--[A-Za-z_][\w.\[\]]*=", word) and ("=" not in word or word.startswith("-")):
            parser.error(f"unknown argument: {word} (an override is written key.sub=value)")
    parsed.overrides = [word.removeprefix("--") for word in [*parsed.overrides, *rest]]
    if not parsed.config:
        parser.error("no --config: name a file, such as --config configs/quickstart.yaml")
    if parsed.world_size is not None and (not parsed.dry_run or parsed.world_size < 1):
        parser.error(
            "--world-size goes with --dry-run, and is at least 1; a run has the ranks that its launcher starts"
        )
    return parsed


def _train(parsed: argparse.Namespace, facts: RankFacts, stop: StopRequest) -> int:
    loaded = load_config(parsed.config, parsed.overrides, deepspeed_file=parsed.deepspeed)
    quiet_dependencies()
    if parsed.dry_run:
        from llmtrain.dry_run import describe

        try:
            for line in describe(loaded, parsed.world_size or facts.world_size) if facts.rank == 0 else ():
                print(line)
        except ConfigError as error:
            raise error.with_origins(loaded.provenance.origin_of) from error
        return 0
    watch_launcher(stop)
    from llmtrain.run import run

    return int(run(loaded, facts, stop))
