"""From an engine to one rank's file of fragments, and back from any ranks' files into an engine.

Saving: each rank lists its shares (what it alone saves), announces them in its file's header, then streams them chunk
by chunk. Loading: each rank walks what it holds, and copies each range from whichever fragments overlap it. Neither
makes a copy of more than a chunk, and in both each weight is compared with the model's own parameter: a layout that
DeepSpeed describes wrongly (`round_robin_gradients` on several ranks) is refused, instead of being silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch

from llmtrain.checkpoint.adapters import Adapter, Piece, Span, adapter_for, stage3_model_values, stage3_range
from llmtrain.checkpoint.disk import Disk, FileRecord
from llmtrain.checkpoint.fragment_source import FragmentSource
from llmtrain.checkpoint.manifest import WEIGHT, Cut, Manifest, ParameterRecord, Role, key_of, shortened
from llmtrain.checkpoint.names import names_of_buffers, names_of_parameters
from llmtrain.checkpoint.tensorfile import DTYPE_NAMES, TensorEntry, aligned, chunks, write_tensor_file
from llmtrain.errors import CheckpointError


class HasDeepSpeed(Protocol):
    """The engine, as far as checkpoints need it (`llmtrain.engine.Engine`)."""

    @property
    def deepspeed(self) -> Any: ...


@dataclass(frozen=True)
class Share:
    """A piece together with the part of it that this rank saves, and what goes with it into the manifest."""

    piece: Piece
    start: int
    length: int
    role: Role
    moments: tuple[str, ...]


class EngineState:
    """The weights and the optimizer's state of an engine, piece by piece, on one rank."""

    def __init__(self, engine: HasDeepSpeed, rank: int, world_size: int) -> None:
        self.engine: Any = engine.deepspeed
        self.rank, self.world_size = rank, world_size
        self.names = names_of_parameters(self.engine.module)
        self.adapter: Adapter = adapter_for(self.engine, {id(tensor): name for name, tensor in self.names.items()})
        self.roles: dict[str, Role] = {piece.name: "trained" for piece in self.adapter.pieces}
        self.pieces = [*self.adapter.pieces, *self._frozen(), *self._buffers()]

    @property
    def optimizer_family(self) -> str:
        """Moments have a meaning within a family only."""
        name = type(self.adapter.optimizer).__name__.lower()
        return next((family for family in ("muon", "lion", "adam") if family in name), name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters and persistent buffers, whole."""
        tensors = {**self.names, **names_of_buffers(self.engine.module)}
        shapes = {name: tuple(getattr(tensor, "ds_shape", tensor.shape)) for name, tensor in tensors.items()}
        return {name: shape for name, shape in shapes.items() if 0 not in shape}

    # --- what the optimizer does not hold -------------------------------------------------------------------------

    def _frozen(self) -> Iterator[Piece]:
        """Parameters that are not trained: their owner is the model's own tensor."""
        for name, parameter in self.names.items():
            if id(parameter) in self.adapter.trained:
                continue
            self.roles[name] = "frozen"
            if hasattr(parameter, "ds_tensor"):
                start, length = stage3_range(parameter)
                if length:
                    yield Piece(name, parameter, self._own(parameter.ds_tensor), Span(start, length, 0))
            else:
                yield Piece(name, parameter, self._own(parameter), Span(0, parameter.numel(), 0), replicated=True)

    def _buffers(self) -> Iterator[Piece]:
        for name, buffer in names_of_buffers(self.engine.module).items():
            self.roles[name] = "buffer"
            yield Piece(name, buffer, self._own(buffer), Span(0, buffer.numel(), 0), replicated=True)

    def _own(self, tensor: torch.Tensor) -> int:
        self.adapter.owners.append(tensor)
        return len(self.adapter.owners) - 1

    # --- views ----------------------------------------------------------------------------------------------------

    def weight(self, piece: Piece) -> torch.Tensor:
        """The piece's values in its owner."""
        return _range(self.adapter.owners[piece.owner].data.view(-1), piece.span)

    def shares(self) -> list[Share]:
        """What this rank saves, in the order of the owners."""
        shares = []
        for owner, pieces in groupby(self.pieces, key=lambda piece: piece.owner):
            with self.adapter.resident(owner):
                moments = tuple(self.adapter.moments(owner))
            for piece in pieces:
                start, length = self._share(piece)
                if length:
                    role = self.roles[piece.name]
                    shares.append(Share(piece, start, length, role, moments if role == "trained" else ()))
        return shares

    def _share(self, piece: Piece) -> tuple[int, int]:
        """Buffers may differ between ranks: rank 0 saves them. Other replicated values are cut into a slice a rank."""
        span = piece.span
        if not piece.replicated:
            return span.start, span.length
        if self.roles[piece.name] == "buffer":
            return 0, span.length if self.rank == 0 else 0
        start = span.length * self.rank // self.world_size
        return start, span.length * (self.rank + 1) // self.world_size - start

    def _model_values(self, piece: Piece) -> list[torch.Tensor]:
        if self.roles[piece.name] == "trained":
            return self.adapter.model_values(piece)
        is_partitioned = hasattr(piece.parameter, "ds_tensor")
        return stage3_model_values(piece) if is_partitioned else []

    def check(self, piece: Piece) -> None:
        """The model's parameter is the cast master, in all that this rank holds of it.

        Raises:
            CheckpointError: it is not.
        """
        master = self.weight(piece)
        for values in self._model_values(piece):
            for start, stop in chunks(piece.span.length):
                expected = master[start:stop].to(values.dtype)
                found = values[start:stop].to(expected.device)
                if not torch.equal(expected, found) and not torch.allclose(expected, found, 0, 0, equal_nan=True):
                    raise CheckpointError(_mismatch(piece, expected, found, start))

    # --- saving ---------------------------------------------------------------------------------------------------

    def save(self, disk: Disk, path: Path) -> tuple[dict[str, ParameterRecord], FileRecord]:
        """Write this rank's file; its part of the manifest (cuts of file number `rank`) and the file's record."""
        shares = self.shares()
        keyed = {
            key_of(kind, share.piece.name, share.start): (kind, share)
            for share in shares
            for kind in (WEIGHT, *share.moments)
        }
        entries = aligned(
            TensorEntry(key, self._dtype_on_disk(share), (share.length,)) for key, (_, share) in keyed.items()
        )
        with write_tensor_file(disk, path, entries, {"format": "pt"}) as (writer, file):
            for owner, group in groupby(entries, key=lambda entry: keyed[entry.key][1].piece.owner):
                with self.adapter.resident(owner):
                    for entry in group:
                        kind, share = keyed[entry.key]
                        if kind == WEIGHT:
                            self.check(share.piece)
                        writer.append(entry.key, self._values(kind, share))
        return {share.piece.name: self._record(share) for share in shares}, file.record

    def _values(self, kind: str, share: Share) -> torch.Tensor:
        piece = share.piece
        if kind == WEIGHT:
            held, span = self.adapter.owners[piece.owner].data.view(-1), piece.span
        else:
            held, span = self.adapter.moments(piece.owner)[kind], self.adapter.moment_span(piece, kind)
        return _range(held, Span(share.start, share.length, span.offset + share.start - span.start))

    def _dtype_on_disk(self, share: Share) -> torch.dtype:
        return torch.float32 if share.role == "trained" else self.adapter.owners[share.piece.owner].dtype

    def _record(self, share: Share) -> ParameterRecord:
        piece = share.piece
        return ParameterRecord(
            shape=list(getattr(piece.parameter, "ds_shape", piece.parameter.shape)),
            role=share.role,
            dtype=DTYPE_NAMES[self._dtype_on_disk(share)],
            moments=list(share.moments),
            scalars=self.adapter.scalars(piece.owner) if share.role == "trained" else {},
            cuts=[Cut(self.rank, share.start, share.length)],
        )

    # --- loading --------------------------------------------------------------------------------------------------

    def problems(self, manifest: Manifest, *, with_moments: bool) -> list[str]:
        """Why a checkpoint does not fit this engine."""
        problems = []
        if with_moments and manifest.optimizer != self.optimizer_family:
            problems.append(
                f"its optimizer is {manifest.optimizer}, this run's is {self.optimizer_family}: "
                "model.init_from takes its weights alone"
            )
        shapes = self.shapes()
        saved = {name: tuple(record.shape) for name, record in manifest.parameters.items()}
        for name, shape in shapes.items():
            if name not in saved:
                problems.append(f"it has no parameter {name}")
            elif saved[name] != shape:
                problems.append(f"{name} has shape {list(saved[name])} in it, and {list(shape)} in the model")
        problems.extend(f"the model has no parameter {name}" for name in saved if name not in shapes)
        return problems

    def load(self, manifest: Manifest, source: FragmentSource, *, with_moments: bool) -> None:
        """Write what this rank holds; `refresh_model` must follow, on all ranks together."""
        with torch.no_grad():
            for owner, group in groupby(self.pieces, key=lambda piece: piece.owner):
                with self.adapter.resident(owner, write=True):
                    pieces = list(group)
                    for piece in pieces:
                        source.copy(WEIGHT, piece.name, piece.span.start, self.weight(piece))
                    if with_moments and self.roles[pieces[0].name] == "trained":
                        self._load_state(owner, pieces, manifest, source)

    def _load_state(self, owner: int, pieces: list[Piece], manifest: Manifest, source: FragmentSource) -> None:
        records = {piece.name: manifest.parameters[piece.name] for piece in pieces}
        kinds = list(dict.fromkeys(kind for record in records.values() for kind in record.moments))
        if not kinds:
            self.adapter.clear_state(owner)
            return
        moments = self.adapter.moments_to_write(owner, kinds)
        for piece in pieces:
            for kind in kinds:
                span = self.adapter.moment_span(piece, kind)
                target = _range(moments[kind], span)
                if kind in records[piece.name].moments:
                    source.copy(kind, piece.name, span.start, target)
                else:
                    target.zero_()
        scalars: dict[str, float | int | bool] = {}
        for record in records.values():
            for key, value in record.scalars.items():
                scalars[key] = max(scalars.get(key, value), value)
        self.adapter.write_scalars(owner, scalars)

    def refresh_model(self) -> None:
        """Write the model's parameters anew from the masters. All ranks together."""
        with torch.no_grad():
            self.adapter.refresh_model()

    def check_all(self) -> None:
        """`check` every piece.

        Raises:
            CheckpointError: one is wrong.
        """
        for owner, pieces in groupby(self.pieces, key=lambda piece: piece.owner):
            with self.adapter.resident(owner):
                for piece in pieces:
                    self.check(piece)


def merge(parts: list[dict[str, ParameterRecord]]) -> dict[str, ParameterRecord]:
    """The ranks' parts of the manifest as one; parameters in the order of their first appearance.

    Raises:
        CheckpointError: two ranks describe a parameter differently.
    """
    merged: dict[str, ParameterRecord] = {}
    problems = []
    for part in parts:
        for name, record in part.items():
            first = merged.setdefault(name, record)
            if first is not record:
                first.cuts.extend(record.cuts)
                if _facts(first) != _facts(record):
                    problems.append(f"{name}: {_facts(first)} on one rank, {_facts(record)} on another")
    if problems:
        raise CheckpointError("the ranks hold different state: " + shortened(problems))
    return merged


def _facts(record: ParameterRecord) -> tuple[Any, ...]:
    return record.shape, record.role, record.dtype, record.moments, record.scalars


def _range(flat: torch.Tensor, span: Span) -> torch.Tensor:
    return flat[span.offset : span.offset + span.length]


def _mismatch(piece: Piece, expected: torch.Tensor, found: torch.Tensor, start: int) -> str:
    index = int((expected != found).nonzero()[0])
    element = piece.span.start + start + index
    return (
        f"the master weights are not the model's parameters: element {element} of {piece.name} is "
        f"{expected[index].item():g} in the master and {found[index].item():g} in the model. DeepSpeed describes the "
        "layout of its state wrongly under this configuration, so nothing of it can be saved or loaded rightly; known "
        "is deepspeed.zero_optimization.round_robin_gradients on several ranks: switch it off"
    )
