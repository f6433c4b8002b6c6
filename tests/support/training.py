"""Whole runs inside a rank pool: everything that `llmtrain.run` does, but the process starting and ending."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrain.callbacks import Callback
from llmtrain.config import LoadedConfig, load_config

ROOT = Path(__file__).resolve().parents[2]

TINY = {
    "model": {
        "task": "causal_lm",
        "architecture": "gpt2",
        "config_overrides": {
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 32,
            "n_positions": 32,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    },
    "batch": {"global_batch_size": 8, "per_device_train_batch_size": 2},
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"lr_scheduler_type": "linear", "warmup_steps": 2, "max_steps": 8},
    "precision": "fp32",
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "checkpoint": {"save_strategy": "no"},
    "tracking": {"report_to": [], "logging_steps": 1},
}
"""A model of a hundred thousand parameters; `tiny_config` adds the data."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `reason` is why it is at its end, or the message of the error of that name."""

    reason: str
    error: str = ""


def documents(count: int, *, start: int = 0) -> list[str]:
    """Texts of uneven length; document i begins with its number."""
    words = ("lane", "shard", "token", "step", "rank", "loss", "norm", "batch")
    return [
        f"{i} " + " ".join(words[(i * 7 + j * j) % len(words)] for j in range(3 + (i * 5) % 40))
        for i in range(start, start + count)
    ]


def write_documents(path: Path, texts: Sequence[str]) -> Path:
    """As JSON Lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def tiny_tokenizer(folder: Path, task: str = "causal_lm") -> Path:
    """A byte-level BPE of 300 tokens."""
    from llmtrain.data.tokenizer_training import train_tokenizer

    text = write_documents(folder / "tokenizer-text.jsonl", documents(200))
    train_tokenizer([text], folder / f"tokenizer-{task}", 300, task)
    return folder / f"tokenizer-{task}"


def write_config(path: Path, **sections: Any) -> Path:
    """TINY with sections laid over it, as a file (JSON is YAML)."""
    merged = {**TINY, **{name: _merged(TINY.get(name), value) for name, value in sections.items()}}
    path.write_text(json.dumps(merged), encoding="utf-8")
    return path


def _merged(base: Any, value: Any) -> Any:
    return {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value


def train(config: Path, overrides: Sequence[str] = (), callbacks: Sequence[Callback] = ()) -> Outcome:
    """Run in a rank pool: train to the end, or to the error that ends it."""
    return train_loaded(load_config([config], overrides), callbacks)


def train_loaded(loaded: LoadedConfig, callbacks: Sequence[Callback] = ()) -> Outcome:
    """As `train`."""
    from llmtrain.dist.runtime import Dist
    from llmtrain.dist.signals import StopRequest
    from llmtrain.errors import LlmtrainError
    from llmtrain.run import Session
    from llmtrain.tracking import build_console

    stop = StopRequest()
    dist = Dist.adopt(stop=stop)
    session = Session(loaded, build_console(False), callbacks)
    try:
        return Outcome(session.train(dist, stop).reason)
    except LlmtrainError as error:
        if dist.is_main:
            session.record_failure(str(error))
        return Outcome(str(error), type(error).__name__)
    finally:
        if session.parts is not None:
            session.parts.loader.close()
            session.parts.engine.close()


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` of one kind; the last line of a step counts."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    by_step = {(line["step"], line.get("eval_set")): line for line in lines if line["kind"] == kind}
    return [by_step[key] for key in sorted(by_step, key=str)]


def losses(run: Path) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in sorted(metrics(run), key=lambda line: line["step"])]


def status(run: Path) -> dict[str, Any]:
    """`status.json`."""
    content = json.loads((run / "status.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content
