"""`llmtrain config show|check|schema|diff`: what a configuration says, without anything being built."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrain.errors import ABSENT

if TYPE_CHECKING:
    from llmtrain.config import LoadedConfig

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_config_commands(subparsers: Subparsers) -> None:
    """Add `config` with its four commands."""
    config = subparsers.add_parser("config", help="look at a configuration: show, check, schema, diff")
    commands = config.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_ParserOfOverrides
    )

    show = commands.add_parser("show", help="the resolved configuration, with the origin of every value")
    _add_config_arguments(show)
    show.set_defaults(run=_show)

    check = commands.add_parser("check", help="check alone: OK, or every problem and status 2")
    _add_config_arguments(check)
    check.set_defaults(run=_check)

    schema = commands.add_parser("schema", help="a JSON Schema of configuration files, for editors")
    schema.set_defaults(run=_schema)

    diff = commands.add_parser("diff", help="what differs between two configurations; status 1 where something does")
    for name in ("left", "right"):
        diff.add_argument(
            name, type=Path, metavar=name.upper(), help="a configuration file, such as runs/NAME/config.yaml"
        )
    diff.add_argument("overrides", nargs="*", metavar="key.sub=value", help="overrides of both")
    diff.set_defaults(run=_diff)


class _ParserOfOverrides(argparse.ArgumentParser):
    """Takes `--key.sub=value` as an override, as `scripts/train.py` does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        parsed, rest = super().parse_known_args(args, namespace)
        overrides = [word for word in rest if re.match(r"--[A-Za-z_][\w.\[\]]*=", word)]
        if hasattr(parsed, "overrides"):
            parsed.overrides += overrides
            rest = [word for word in rest if word not in overrides]
        return parsed, rest


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="override the files")
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        required=True,
        metavar="FILE",
        help="may be given several times; merged left to right",
    )
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="a ds_config JSON")


def _load(arguments: argparse.Namespace) -> LoadedConfig:
    from llmtrain.config import load_config

    return load_config(arguments.config, arguments.overrides, deepspeed_file=arguments.deepspeed)


def _show(arguments: argparse.Namespace) -> int:
    from llmtrain.config import dump_config

    loaded = _load(arguments)
    print(dump_config(loaded.config, loaded.provenance.origin_of), end="")
    _print_notes(loaded)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    loaded = _load(arguments)
    _print_notes(loaded)
    print("OK")
    return 0


def _print_notes(loaded: LoadedConfig) -> None:
    for note in loaded.notes:
        print(f"# {note}")


def _schema(_arguments: argparse.Namespace) -> int:
    from llmtrain.config import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from llmtrain.config import load_config
    from llmtrain.config.dump import diff_loaded

    left, right = (load_config([path], arguments.overrides) for path in (arguments.left, arguments.right))
    differences = diff_loaded(left, right)
    for found in differences:
        print(f"{found.path}: {_shown(found.left)} -> {_shown(found.right)}")
    return 1 if differences else 0


def _shown(value: object) -> str:
    return "(absent)" if value is ABSENT else json.dumps(value)
