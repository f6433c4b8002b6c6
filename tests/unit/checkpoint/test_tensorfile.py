"""The safetensors files that are written in pieces are those of the library, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmtrain.checkpoint import tensorfile
from llmtrain.checkpoint.disk import Disk, record_of
from llmtrain.checkpoint.tensorfile import DTYPE_NAMES, TensorEntry, TensorFile, aligned, write_tensor_file
from llmtrain.errors import CheckpointError


def _tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        DTYPE_NAMES[dtype]: (torch.randn(3, 5, generator=generator) * 10).to(dtype) for dtype in list(DTYPE_NAMES)[::-1]
    }
    return {**tensors, "scalar": torch.tensor(7), "empty": torch.empty(0)}


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    entries = aligned(TensorEntry(key, value.dtype, tuple(value.shape)) for key, value in tensors.items())
    with write_tensor_file(Disk(), path, entries, {"format": "pt"}) as (writer, file):
        for entry in entries:
            if entry.numel:
                writer.append(entry.key, tensors[entry.key])
    assert file.record == record_of(path)


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = _tensors()
    _write(tmp_path / "file.safetensors", tensors)
    loaded = load_file(tmp_path / "file.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[key], value) and loaded[key].dtype == value.dtype for key, value in tensors.items())


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    tensors = _tensors()
    save_file(tensors, tmp_path / "file.safetensors")
    file = TensorFile(tmp_path / "file.safetensors")
    assert file.entries.keys() == tensors.keys()
    assert all(torch.equal(file.tensor(key), value) for key, value in tensors.items())
    assert torch.equal(file.read("F32", 4, 9), tensors["F32"].flatten()[4:9])


def test_a_tensor_comes_in_parts_and_is_moved_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "CHUNK_NUMEL", 7)
    values = torch.randn(50)
    entries = [TensorEntry("a", torch.float32, (20,)), TensorEntry("b", torch.bfloat16, (5, 6))]
    with write_tensor_file(Disk(), tmp_path / "f", entries, {}) as (writer, _):
        writer.append("a", values[:3])
        writer.append("a", values[3:20])
        writer.append("b", values[20:].reshape(5, 6).t().contiguous().t())
    loaded = load_file(tmp_path / "f")
    assert torch.equal(loaded["a"], values[:20])
    assert torch.equal(loaded["b"], values[20:].reshape(5, 6).bfloat16())


def test_every_announced_element_must_come_in_its_turn(tmp_path: Path) -> None:
    entries = [TensorEntry("a", torch.float32, (2,)), TensorEntry("b", torch.float32, (2,))]
    with (
        pytest.raises(AssertionError, match="not complete"),
        write_tensor_file(Disk(), tmp_path / "f", entries, {}) as (writer, _),
    ):
        writer.append("a", torch.zeros(2))
    with (
        pytest.raises(AssertionError, match="b where a was announced"),
        write_tensor_file(Disk(), tmp_path / "f", entries, {}) as (writer, _),
    ):
        writer.append("b", torch.zeros(2))


@pytest.mark.parametrize("content", [b"", b"\x10\x00\x00\x00\x00\x00\x00\x00not json at all", b"\xff" * 100])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bad\.safetensors is not a readable safetensors file"):
        TensorFile(tmp_path / "bad.safetensors")
