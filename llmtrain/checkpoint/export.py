"""A Hugging Face folder from a checkpoint (`llmtrain export`): no engine, no model, no GPU.

Weights are read from the fp32 masters and cast once to the dtype of the checkpoint's config.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from llmtrain.checkpoint.agreement import OneRank
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.finding import problems_of, refuse_path
from llmtrain.checkpoint.fragment_source import FragmentSource
from llmtrain.checkpoint.manifest import WEIGHT, Manifest, shortened
from llmtrain.checkpoint.model_folder import MAX_SHARD_BYTES, Values, export_dtype, write_folder
from llmtrain.checkpoint.tensorfile import CHUNK_NUMEL, DTYPES, TensorEntry, aligned
from llmtrain.checkpoint.writing import MODEL_FOLDER
from llmtrain.errors import CheckpointError, ConfigError, Problem

_CONFIG = "config.json"


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    disk: Disk | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> torch.dtype:
    """Write the model of a checkpoint as a folder that `from_pretrained` loads; the dtype of its weights.

    Args:
        dtype: default is what the run's own export has: bf16 for a bf16 run, else fp32.

    Raises:
        ConfigError: `checkpoint` is none, or `folder` is in use.
        CheckpointError: the checkpoint is damaged.
    """
    ranks = OneRank()
    refuse_path(checkpoint, "CHECKPOINT", ranks)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(Problem("DIR", "is in use", "name a folder that is empty or new", value=str(folder)))
    if problems := problems_of(checkpoint, ranks):
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used: {shortened(problems)}")
    config_path = checkpoint / MODEL_FOLDER / _CONFIG
    if not config_path.is_file():
        raise CheckpointError(f"checkpoint {checkpoint} cannot be exported: it holds no {MODEL_FOLDER}/{_CONFIG}")
    config = json.loads(config_path.read_bytes())
    dtype = dtype or getattr(torch, config["dtype"])
    config["dtype"] = str(dtype).removeprefix("torch.")

    def write_files(target: Path) -> None:
        shutil.copytree(checkpoint / MODEL_FOLDER, target, dirs_exist_ok=True)
        (target / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    manifest = Manifest.read(checkpoint)
    entries = aligned(
        TensorEntry(name, export_dtype(DTYPES[record.dtype], dtype), tuple(record.shape))
        for name, record in manifest.parameters.items()
    )
    values = _values(FragmentSource(checkpoint, manifest), manifest, entries)
    write_folder(folder, entries, values, write_files, disk=disk or Disk(), max_shard_bytes=max_shard_bytes)
    return dtype


def _values(source: FragmentSource, manifest: Manifest, entries: list[TensorEntry]) -> Values:
    for entry in entries:
        numel = manifest.parameters[entry.key].numel
        for start in range(0, numel, CHUNK_NUMEL):
            for _, part in source.read(WEIGHT, entry.key, start, min(CHUNK_NUMEL, numel - start)):
                yield entry.key, part
