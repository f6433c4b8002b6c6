"""A Hugging Face folder from a running engine of any ZeRO stage: `final/` at the end of a run.

All ranks gather the parameters, a batch at a time, and rank 0 writes them: at stage 3 no rank ever holds all of the
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import torch

from llmtrain.checkpoint.agreement import Ranks, agree
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.fragments import HasDeepSpeed
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.model_folder import MAX_SHARD_BYTES, Values, export_dtype, write_folder
from llmtrain.checkpoint.names import names_of_buffers, names_of_parameters
from llmtrain.checkpoint.tensorfile import TensorEntry, aligned

_BATCH_NUMEL = 1 << 26
"""Elements that are gathered at once; a larger parameter alone."""


def export_final(
    engine: HasDeepSpeed,
    model_files: ModelFiles,
    folder: Path,
    ranks: Ranks,
    *,
    disk: Disk | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the model that the engine holds, cast to `model_files.dtype`. All ranks call; a folder there is replaced.

    Raises:
        CheckpointError: on all ranks where rank 0 could not write.
    """
    module: Any = engine.deepspeed.module
    tensors: dict[str, torch.Tensor] = {**names_of_parameters(module), **names_of_buffers(module)}
    entries = aligned(
        TensorEntry(name, export_dtype(tensor.dtype, model_files.dtype), _shape(tensor))
        for name, tensor in tensors.items()
    )
    values = _gathered([(entry.key, tensors[entry.key]) for entry in entries])
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            write_folder(
                folder, entries, values, model_files.write, disk=disk or Disk(), max_shard_bytes=max_shard_bytes
            )
        except Exception as failure:  # noqa: BLE001  (all ranks must hear of it)
            error = failure
    for _ in values:
        """Gathering takes all ranks, also those that write nothing, and rank 0 where it could not write."""
    agree(ranks, error, f"the model could not be exported to {folder}")


def _gathered(named: list[tuple[str, torch.Tensor]]) -> Values:
    for batch in _batches(named):
        partitioned = [tensor for _, tensor in batch if hasattr(tensor, "ds_tensor")]
        context: AbstractContextManager[Any] = nullcontext()
        if partitioned:
            context = deepspeed.zero.GatheredParameters(partitioned)
        with context:
            yield from batch


def _batches(named: list[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    batch: list[tuple[str, torch.Tensor]] = []
    numel = 0
    for name, tensor in named:
        size = int(torch.Size(_shape(tensor)).numel())
        if batch and numel + size > _BATCH_NUMEL:
            yield batch
            batch, numel = [], 0
        batch.append((name, tensor))
        numel += size
    if batch:
        yield batch


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(getattr(tensor, "ds_shape", tensor.shape))
