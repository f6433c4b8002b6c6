"""Writing a Hugging Face folder: weights in safetensors shards, tensor after tensor, beside the model's other files.

The folder is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.tensorfile import TensorEntry, write_tensor_file

MAX_SHARD_BYTES = 5_000_000_000
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

Values = Iterator[tuple[str, torch.Tensor]]
"""Parts of tensors, with their names: in the order of the entries, each tensor's parts in theirs."""


def export_dtype(dtype: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    """`wanted` for numbers with a fraction; counts and masks stay what they are."""
    return wanted if dtype.is_floating_point else dtype


def write_folder(
    folder: Path,
    entries: Sequence[TensorEntry],
    values: Values,
    write_files: Callable[[Path], None],
    *,
    disk: Disk,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the weights, and by `write_files` the rest; a folder of the same name is replaced."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    disk.remove(temporary)
    disk.make_folder(temporary)
    write_files(temporary)
    for path in (path for path in temporary.rglob("*") if path.is_file()):
        disk.adopt(path)
    _write_shards(temporary, entries, values, disk, max_shard_bytes)
    disk.flush_folder(temporary)
    disk.remove(folder)
    disk.rename(temporary, folder)


def _write_shards(
    folder: Path, entries: Sequence[TensorEntry], values: Values, disk: Disk, max_shard_bytes: int
) -> None:
    shards = _split(entries, max_shard_bytes)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [_SINGLE]
    for name, shard in zip(names, shards, strict=True):
        with write_tensor_file(disk, folder / name, shard, {"format": "pt"}) as (writer, _):
            for entry in shard:
                missing = entry.numel
                while missing:
                    key, part = next(values)
                    writer.append(key, part)
                    missing -= part.numel()
    if len(shards) > 1:
        weight_map = {entry.key: name for name, shard in zip(names, shards, strict=True) for entry in shard}
        total = {"total_size": sum(entry.nbytes for entry in entries)}
        index = {"metadata": total, "weight_map": dict(sorted(weight_map.items()))}
        disk.write_bytes(folder / _INDEX, json.dumps(index, indent=2).encode())


def _split(entries: Sequence[TensorEntry], max_shard_bytes: int) -> list[list[TensorEntry]]:
    """Consecutive entries of at most so many bytes; a larger one stands alone."""
    shards: list[list[TensorEntry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.nbytes
    return shards
