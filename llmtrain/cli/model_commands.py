"""`llmtrain generate` and `llmtrain eval`: what can be done with a Hugging Face folder such as a run's `final/`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_model_commands(subparsers: Subparsers) -> None:
    """Add `generate` and `eval`."""
    generate = subparsers.add_parser("generate", help="continue a prompt, or fill in its mask tokens")
    generate.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder saved by transformers, such as runs/NAME/final"
    )
    generate.add_argument("--prompt", action="append", required=True, help="may be given several times")
    generate.add_argument("--max-new-tokens", type=int, default=64, help="default: 64")
    generate.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token; default: 0.8")
    generate.add_argument("--top-p", type=float, default=0.95, help="nucleus sampling; default: 0.95")
    generate.add_argument("--seed", type=int, default=42, help="default: 42")
    generate.set_defaults(run=_generate)

    evaluate = subparsers.add_parser("eval", help="the held-out loss of a model on the data.eval of a configuration")
    evaluate.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder saved by transformers, such as runs/NAME/final"
    )
    evaluate.add_argument("--config", action="append", type=Path, required=True, help="may be given several times")
    evaluate.add_argument("overrides", nargs="*", metavar="key.sub=value", help="override the configuration")
    evaluate.set_defaults(run=_evaluate)


def _generate(arguments: argparse.Namespace) -> int:
    from llmtrain.generate import Sampling, generate

    sampling = Sampling(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    for text in generate(arguments.folder, arguments.prompt, sampling):
        print(text)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from llmtrain.config import load_config
    from llmtrain.evaluate import evaluate_folder

    loaded = load_config(arguments.config, arguments.overrides)
    for report in evaluate_folder(arguments.folder, loaded.config):
        name = f"{report.eval_set}: " if report.eval_set else ""
        print(
            f"{name}eval_loss {report.eval_loss:.6f}  eval_perplexity {report.eval_perplexity:.4g}  "
            f"num_supervised_tokens {report.num_supervised_tokens}"
        )
    return 0
