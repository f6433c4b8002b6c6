"""The command `llmtrain`. The parts of it import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llmtrain.cli.checkpoint_commands import add_checkpoint_commands
from llmtrain.cli.config_commands import add_config_commands
from llmtrain.cli.data_commands import add_data_commands
from llmtrain.cli.model_commands import add_model_commands
from llmtrain.errors import LlmtrainError


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit status."""
    parser = argparse.ArgumentParser(prog="llmtrain", description="Train GPT- and BERT-style models with DeepSpeed.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add_commands in (add_config_commands, add_data_commands, add_model_commands, add_checkpoint_commands):
        add_commands(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except LlmtrainError as error:
        print(f"llmtrain: {error}", file=sys.stderr)
        return int(error.exit_status)
    except BrokenPipeError:
        # The reader of our output has gone (`llmtrain config show | head`): nothing is left to say.
        sys.stderr.close()
        return 0
