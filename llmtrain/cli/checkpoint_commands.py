"""`llmtrain export`: a Hugging Face folder from a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_checkpoint_commands(subparsers: Any) -> None:
    """Add the commands to the parser of `llmtrain`."""
    export = subparsers.add_parser("export", help="write the model of a checkpoint as a Hugging Face folder")
    export.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="such as runs/NAME/checkpoints/step-00000500"
    )
    export.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; empty or new")
    export.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="of the weights; default: bfloat16 for a run in bf16, else float32",
    )
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    import torch

    from llmtrain.checkpoint.export import export_checkpoint

    wanted = getattr(torch, arguments.dtype) if arguments.dtype else None
    dtype = export_checkpoint(arguments.checkpoint, arguments.folder, dtype=wanted)
    print(f"wrote {arguments.folder} ({str(dtype).removeprefix('torch.')})")
    return 0
