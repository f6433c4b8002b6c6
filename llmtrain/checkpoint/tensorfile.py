"""Reading and writing safetensors files in pieces, so that no copy of the whole is ever made.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the length of the header, a JSON header
that maps names to dtype, shape and byte range, then the tensors' bytes without gaps. The library's own `save_file`
wants every tensor in memory at once, and refuses views that share storage.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from llmtrain.checkpoint.disk import Disk, OutputFile
from llmtrain.errors import CheckpointError

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}

CHUNK_NUMEL = 1 << 22
"""Elements that are moved or compared at once: 16 MiB in fp32."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar."""
        return int(torch.Size(self.shape).numel())

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.numel * self.dtype.itemsize


def aligned(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """The order in which tensors are written: wide elements first, so that each starts at a multiple of its width."""
    return sorted(entries, key=lambda entry: -entry.dtype.itemsize)


def chunks(numel: int) -> Iterator[tuple[int, int]]:
    """`range(numel)` in pieces of at most CHUNK_NUMEL, as (start, stop)."""
    for start in range(0, numel, CHUNK_NUMEL):
        yield start, min(start + CHUNK_NUMEL, numel)


class TensorFileWriter:
    """A file whose header is written; the tensors follow in the order of the entries, each in any number of parts."""

    def __init__(self, file: OutputFile, entries: Sequence[TensorEntry], metadata: dict[str, str]) -> None:
        self._file = file
        self._remaining = [[entry, entry.numel] for entry in entries if entry.numel][::-1]
        file.write(_header(entries, metadata))

    def append(self, key: str, values: torch.Tensor) -> None:
        """The next elements of the tensor `key`, of any shape, cast to its dtype."""
        assert self._remaining, f"{key} after the last tensor"
        entry, missing = self._remaining[-1]
        assert isinstance(entry, TensorEntry)
        assert isinstance(missing, int)
        assert entry.key == key, f"{key} where {entry.key} was announced"
        assert values.numel() <= missing, f"{key} is longer than announced"
        flat = values.detach().reshape(-1)
        for start, stop in chunks(flat.numel()):
            part = flat[start:stop].to(device="cpu", dtype=entry.dtype).contiguous()
            self._file.write(part.view(torch.uint8).numpy().data)
        self._remaining[-1][1] = missing - values.numel()
        if values.numel() == missing:
            self._remaining.pop()

    def finish(self) -> None:
        """Every announced element must have come."""
        assert not self._remaining, f"{len(self._remaining)} tensors are not complete"


@contextmanager
def write_tensor_file(
    disk: Disk, path: Path, entries: Sequence[TensorEntry], metadata: dict[str, str]
) -> Iterator[tuple[TensorFileWriter, OutputFile]]:
    """A safetensors file being written; complete and flushed at the end of the block."""
    with disk.create(path) as file:
        writer = TensorFileWriter(file, entries, metadata)
        yield writer, file
        writer.finish()


def _header(entries: Sequence[TensorEntry], metadata: dict[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for entry in entries:
        table[entry.key] = {
            "dtype": DTYPE_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class TensorFile:
    """A safetensors file, mapped into memory: only what is asked for is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                # Copy-on-write, because torch warns of memory that it may not write to; nothing here writes.
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            header_bytes = int.from_bytes(self._map[:8], "little")
            header = json.loads(self._map[8 : 8 + header_bytes])
            header.pop("__metadata__", None)
            self.entries = {
                key: TensorEntry(key, DTYPES[facts["dtype"]], tuple(facts["shape"])) for key, facts in header.items()
            }
            self._offsets = {key: 8 + header_bytes + int(facts["data_offsets"][0]) for key, facts in header.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a readable safetensors file: {error!r}") from error

    def read(self, key: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements `start` to `stop` of the flattened tensor, in memory that is the file's: copy them, never change."""
        entry = self.entries[key]
        stop = entry.numel if stop is None else stop
        if stop <= start:
            return torch.empty(0, dtype=entry.dtype)
        offset = self._offsets[key] + start * entry.dtype.itemsize
        return torch.frombuffer(self._map, dtype=entry.dtype, count=stop - start, offset=offset)

    def tensor(self, key: str) -> torch.Tensor:
        """A copy of a whole tensor."""
        return self.read(key).clone().reshape(self.entries[key].shape)
