"""Reading any range of any parameter from the fragments of a checkpoint, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from llmtrain.checkpoint.manifest import Manifest, key_of
from llmtrain.checkpoint.tensorfile import TensorFile
from llmtrain.errors import CheckpointError


class FragmentSource:
    """The fragments of one checkpoint; files are opened when they are first needed."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._files: dict[int, TensorFile] = {}

    def read(self, kind: str, name: str, start: int, length: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The parts of a range, as (offset in it, values), in order."""
        end = start + length
        for cut in self._manifest.parameters[name].cuts:
            low, high = max(start, cut.start), min(end, cut.start + cut.length)
            if low < high:
                values = self._file(cut.file).read(key_of(kind, name, cut.start), low - cut.start, high - cut.start)
                yield low - start, values

    def copy(self, kind: str, name: str, start: int, target: torch.Tensor) -> None:
        """Fill a flat tensor with the range that begins at `start`."""
        filled = 0
        for offset, values in self.read(kind, name, start, target.numel()):
            target[offset : offset + values.numel()].copy_(values)
            filled += values.numel()
        if filled != target.numel():
            raise CheckpointError(f"{self._folder} lacks elements of {name} ({kind}) from {start} on")

    def _file(self, index: int) -> TensorFile:
        if index not in self._files:
            path = self._folder / self._manifest.fragment_files[index]
            self._files[index] = TensorFile(path)
        return self._files[index]
