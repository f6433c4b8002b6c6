"""What decides the order of the data, in short: saved with a checkpoint, compared at a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from llmtrain.data.packing import DocumentFraming
from llmtrain.data.sources import Source
from llmtrain.errors import ConfigError, Problem

MAX_FILES_LISTED = 1000
"""Sources of more files are compared by their number, bytes and a digest, without naming the file that differs."""


def fingerprint(
    config: Config, plan: BatchPlan, sources: Sequence[Source], framing: DocumentFraming, tokenizer_digest: str
) -> dict[str, Any]:
    """JSON-able; the keys are those of the configuration that they come from."""
    return {
        "run.seed": config.run.seed,
        "batch.global_batch_size": plan.global_batch_size,
        "data.num_lanes": plan.num_lanes,
        "data.seq_length": config.data.seq_length,
        "data.packing": config.data.packing is not False,
        "data.shuffle_buffer": config.data.shuffle_buffer,
        "tokenizer": {"digest": tokenizer_digest, "before": list(framing.prefix), "after": list(framing.suffix)},
        **{source.key: _source_fingerprint(source) for source in sources},
    }


def check_fingerprint(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a resume under another order. Raises `ConfigError` that names each difference."""
    problems = compare_fingerprints(saved, current)
    if problems:
        raise ConfigError(problems)


def compare_fingerprints(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[Problem]:
    """One problem for each thing that differs."""
    remedy = "a run goes on with the data it began with: restore it, or start a new run (model.init_from takes weights)"
    differences: list[tuple[str, str]] = []
    for key in dict.fromkeys([*saved, *current]):
        old, new = saved.get(key), current.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += [(key, text) for text in _differences(old, new)]
        elif old != new:
            differences.append((key, _was_and_is(old, new)))
    return [Problem(key, f"is not what the checkpoint was trained on: {text}", remedy) for key, text in differences]


def _source_fingerprint(source: Source) -> dict[str, Any]:
    config = source.config
    files = [[shard.name, shard.size] for shard in source.shards]
    return {
        "path": config.path,
        "split": config.split,
        "text": config.template or config.text_column,
        "weight": config.weight,
        "num_files": len(files),
        "num_bytes": sum(shard.size for shard in source.shards),
        "digest": hashlib.sha256(repr(files).encode()).hexdigest()[:16],
        "files": files if len(files) <= MAX_FILES_LISTED else None,
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    texts = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if key == "files" and before is not None and after is not None:
            texts += _file_differences(dict(before), dict(after))
        elif key == "digest" and "files" in old:
            # Of a source: what differs is said by its files, unless they are too many or in another order.
            are_named = before == after or dict(old["files"] or []) != dict(new["files"] or [])
            texts += [] if are_named else ["its files, or their order, differ"]
        elif key not in ("num_files", "num_bytes") and before != after:
            texts.append(f"{key} {_was_and_is(before, after)}")
    return texts


def _file_differences(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    gone = [f"{name} is gone" for name in old if name not in new]
    added = [f"{name} is new" for name in new if name not in old]
    resized = [
        f"{name} had {old[name]:,} bytes, has {new[name]:,}" for name in old if old[name] != new.get(name, old[name])
    ]
    texts = [*gone, *added, *resized]
    return texts if len(texts) <= 10 else [*texts[:10], f"and {len(texts) - 10} more files"]


def _was_and_is(old: object, new: object) -> str:
    return f"was {old!r}, is {new!r}"
