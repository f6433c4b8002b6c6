"""`llmtrain sample-data` and `llmtrain tokenizer train`: text and a tokenizer to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_data_commands(subparsers: Subparsers) -> None:
    """Add `sample-data` and `tokenizer`."""
    sample = subparsers.add_parser("sample-data", help="write Python's own sources and reference as JSON Lines")
    sample.add_argument("folder", type=Path, metavar="DIR", help="gets train.jsonl and eval.jsonl")
    sample.set_defaults(run=_sample_data)

    tokenizer = subparsers.add_parser("tokenizer", help="make a tokenizer")
    actions = tokenizer.add_subparsers(title="actions", metavar="ACTION", required=True)
    train = actions.add_parser("train", help="train a byte-level BPE on your own text")
    train.add_argument(
        "--files", nargs="+", required=True, metavar="FILE", help="JSON Lines, or text where the name ends with .txt"
    )
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder that it is saved in")
    train.add_argument("--vocab-size", type=int, required=True, metavar="N", help="tokens, special ones included")
    train.add_argument(
        "--task", choices=("causal_lm", "masked_lm"), default="causal_lm", help="decides the special tokens"
    )
    train.add_argument("--text-column", default="text", metavar="NAME", help="of JSON Lines; default: text")
    train.set_defaults(run=_train_tokenizer)


def _sample_data(arguments: argparse.Namespace) -> int:
    from llmtrain.data.sample_data import write_sample_data

    for path in write_sample_data(arguments.folder):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def _train_tokenizer(arguments: argparse.Namespace) -> int:
    from llmtrain.data.tokenizer_training import train_tokenizer

    train_tokenizer(
        arguments.files, arguments.out, arguments.vocab_size, arguments.task, text_column=arguments.text_column
    )
    print(f"saved a tokenizer of {arguments.vocab_size:,} tokens in {arguments.out}")
    return 0
