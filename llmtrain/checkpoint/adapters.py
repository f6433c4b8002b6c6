"""Where DeepSpeed keeps this rank's part of the weights and moments: a small class for each kind of `engine.optimizer`.

Every kind comes down to the same picture. The optimizer updates some flat fp32 tensors, here called owners, and keeps
its state (moments, step counts) under them; a piece says that elements `start` to `start + length` of a flattened
parameter are elements `offset` onwards of an owner. Only where the pieces lie, and how the model's own parameters are
written anew from the owners, differs between the kinds.

These are private attributes of DeepSpeed, hence its pinned version, and hence the check of each piece against the
model's parameter (`Adapter.model_values`) at each save and load. NVMe offload follows DeepSpeed's own `step`; it has
not been run (it needs libaio).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from llmtrain.errors import CheckpointError

STEP = "step"
"""The optimizers' own name of their step count."""


@dataclass(frozen=True)
class Span:
    """Elements `start` to `start + length` of a flattened parameter, from element `offset` on of a flat tensor."""

    start: int
    length: int
    offset: int


@dataclass(frozen=True)
class Piece:
    """What this rank holds of one parameter (or buffer).

    `owner` indexes `Adapter.owners`; `replicated` where every rank holds the same.
    """

    name: str
    parameter: torch.Tensor
    owner: int
    span: Span
    replicated: bool = False


class Adapter:
    """Base of the kinds: the plain optimizer's picture, in which a parameter is its own owner."""

    def __init__(self, engine: Any, names: dict[int, str]) -> None:
        self.engine = engine
        self.names = names
        self.owners: list[torch.Tensor] = []
        self.trained: set[int] = set()
        """`id` of every parameter that the optimizer updates, also of those of which this rank holds nothing."""
        self.pieces: list[Piece] = list(self._find_pieces())
        self.trained.update(id(piece.parameter) for piece in self.pieces)

    # --- what the kinds define ------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Any:
        """The torch optimizer that holds the state."""
        return self.engine.optimizer

    def _find_pieces(self) -> Iterator[Piece]:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield self._piece(parameter, self._own(parameter), Span(0, parameter.numel(), 0), replicated=True)

    def refresh_model(self) -> None:
        """Write the model's parameters anew from the owners. All ranks call."""

    def model_values(self, piece: Piece) -> list[torch.Tensor]:
        """Parts of the model's parameter that must equal the piece, cast; none where the piece is the parameter."""
        return [] if self.owners[piece.owner] is piece.parameter else [_slice(piece.parameter, piece.span)]

    @contextmanager
    def resident(self, owner: int, *, write: bool = False) -> Iterator[None]:
        """The owner and its state are in memory within the block; `write` where they are changed there."""
        yield

    def moment_span(self, piece: Piece, kind: str) -> Span:
        """What this rank holds of a moment, and where in the moment's flat tensor; at least the piece's own range."""
        return piece.span

    def new_moment(self, owner: int, kind: str) -> torch.Tensor:
        """A moment of zeros, as the optimizer would make it at its first step."""
        return torch.zeros_like(self.owners[owner], requires_grad=False)

    # --- what follows from that -----------------------------------------------------------------------------------

    def state(self, owner: int) -> dict[str, Any]:
        """The optimizer's state of an owner; empty before the first step."""
        state: dict[str, Any] = self.optimizer.state.get(self.owners[owner], {})
        return state

    def moments(self, owner: int) -> dict[str, torch.Tensor]:
        """The state of an owner that has a value for each element, flattened.

        Raises:
            CheckpointError: the optimizer keeps something else, which a checkpoint would lose.
        """
        found = {}
        for kind, value in self.state(owner).items():
            if not torch.is_tensor(value) or kind == STEP or kind in self._unused_state():
                continue
            if value.shape == self.owners[owner].shape or self._has_own_layout(kind):
                found[kind] = value.view(-1)
            elif value.numel() > 1:
                raise CheckpointError(
                    f"{type(self.optimizer).__name__} keeps {kind} of shape {tuple(value.shape)} for a tensor of shape "
                    f"{tuple(self.owners[owner].shape)}: only state with a value for each element can be saved"
                )
        return found

    def scalars(self, owner: int) -> dict[str, float | int | bool]:
        """The rest of an owner's state: step counts above all."""
        found = {}
        for key, value in self._peers(owner).items():
            if torch.is_tensor(value) and value.numel() == 1 and (key == STEP or value.dim() == 0):
                value = value.item()
                value = int(value) if key == STEP else value
            if isinstance(value, int | float | bool):
                found[key] = value
        return found

    def write_scalars(self, owner: int, scalars: dict[str, float | int | bool]) -> None:
        """The inverse of `scalars`, in the type that this optimizer keeps."""
        state = self._state_to_write(owner)
        for key, value in scalars.items():
            old = state.get(key)
            if torch.is_tensor(old):
                old.fill_(value)
            elif old is not None or key != STEP or not self._counts_in_tensors():
                state[key] = value
            else:
                state[key] = torch.tensor(float(value), dtype=torch.float32, device=self._step_device(owner))

    def moments_to_write(self, owner: int, kinds: list[str]) -> dict[str, torch.Tensor]:
        """Those moments of an owner, flattened, made where the optimizer has not made them yet."""
        state = self._state_to_write(owner)
        for kind in kinds:
            if not torch.is_tensor(state.get(kind)):
                state[kind] = self.new_moment(owner, kind)
        return {kind: state[kind].view(-1) for kind in kinds}

    def clear_state(self, owner: int) -> None:
        """Back to before the first step, for an owner of which a checkpoint holds no state."""
        self.optimizer.state.pop(self.owners[owner], None)

    def _state_to_write(self, owner: int) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state[self.owners[owner]]
        return state

    def _has_own_layout(self, kind: str) -> bool:
        """Whether a moment does not lie as its owner does (then `moment_span` says how)."""
        return False

    def _unused_state(self) -> tuple[str, ...]:
        # DeepSpeed's CPU Lion makes a second moment that nothing reads.
        return ("exp_avg_sq",) if type(self.optimizer).__name__ == "DeepSpeedCPULion" else ()

    def _peers(self, owner: int) -> dict[str, Any]:
        """The owner's state, with its group's step count where the optimizer counts in the group's last tensor only."""
        state = dict(self.state(owner))
        if STEP in state and hasattr(self._counting_optimizer(), "_dummy_overflow_buf"):
            for group in self.optimizer.param_groups:
                if any(tensor is self.owners[owner] for tensor in group["params"]):
                    states = [self.optimizer.state.get(tensor, {}) for tensor in group["params"]]
                    state[STEP] = max(int(peer.get(STEP, 0)) for peer in states)
        return state

    def _counting_optimizer(self) -> Any:
        """Whose step counts the state holds: Muon itself has none, the optimizer that it leaves the rest to has."""
        return getattr(self.optimizer, "aux_optimizer", None) or self.optimizer

    def _counts_in_tensors(self) -> bool:
        bases = type(self._counting_optimizer()).__mro__
        return any(b.__module__.startswith("torch.optim.") and b is not torch.optim.Optimizer for b in bases)

    def _step_device(self, owner: int) -> torch.device:
        on_device = any(self._counting_optimizer().defaults.get(key) for key in ("fused", "capturable"))
        return self.owners[owner].device if on_device else torch.device("cpu")

    def _own(self, tensor: torch.Tensor) -> int:
        self.owners.append(tensor)
        return len(self.owners) - 1

    def _piece(self, parameter: torch.Tensor, owner: int, span: Span, *, replicated: bool = False) -> Piece:
        return Piece(self.names[id(parameter)], parameter, owner, span, replicated)


class Wrapped(Adapter):
    """Base of DeepSpeed's wrappers, which keep the torch optimizer in `optimizer`."""

    @property
    def wrapper(self) -> Any:
        """DeepSpeed's own optimizer."""
        return self.engine.optimizer

    @property
    def optimizer(self) -> Any:
        """The torch optimizer inside it."""
        return self.engine.optimizer.optimizer


class FlatHalf(Wrapped):
    """`FP16_Optimizer`: 16-bit at stage 0 with a fused optimizer; every rank has all, one flat master a group."""

    def _find_pieces(self) -> Iterator[Piece]:
        for flat, group in zip(self.wrapper.fp32_groups_flat, self.wrapper.fp16_groups, strict=True):
            owner, offset = self._own(flat), 0
            for parameter in group:
                yield self._piece(parameter, owner, Span(0, parameter.numel(), offset), replicated=True)
                offset += parameter.numel()

    def refresh_model(self) -> None:
        """The model's parameters are views of `fp16_groups_flat`."""
        for half, master in zip(self.wrapper.fp16_groups_flat, self.wrapper.fp32_groups_flat, strict=True):
            half.data.copy_(master.data)


class UnfusedHalf(Wrapped):
    """`FP16_UnfusedOptimizer`: 16-bit at stage 0 with any other optimizer; a master for each parameter."""

    def _find_pieces(self) -> Iterator[Piece]:
        for masters, group in zip(self.wrapper.fp32_groups, self.wrapper.fp16_groups, strict=True):
            for master, parameter in zip(masters, group, strict=True):
                yield self._piece(parameter, self._own(master), Span(0, parameter.numel(), 0), replicated=True)

    def refresh_model(self) -> None:
        """Copy each."""
        for piece in self.pieces:
            piece.parameter.data.copy_(self.owners[piece.owner].data)


class Mapped(Wrapped):
    """`DeepSpeedZeroOptimizer` (stages 1 and 2) and `BF16_Optimizer`: this rank's part of a flat master a group."""

    def _find_pieces(self) -> Iterator[Piece]:
        masters, groups = self._groups()
        self.trained.update(id(parameter) for group in groups for parameter in group)
        for master, group in zip(masters, groups, strict=True):
            owner = self._own(master)
            for parameter in group:
                mapping: Any = parameter._hp_mapping
                if mapping is not None:
                    low, high = mapping.lp_fragment_address, mapping.hp_fragment_address
                    yield self._piece(parameter, owner, Span(int(low.start), int(low.numel), int(high.start)))

    def _groups(self) -> tuple[list[torch.Tensor], list[list[Any]]]:
        if hasattr(self.wrapper, "bf16_groups"):
            return self.wrapper.fp32_groups_flat_partition, self.wrapper.bf16_groups
        return self.wrapper.single_partition_of_fp32_groups, self.wrapper.bit16_groups

    def refresh_model(self) -> None:
        """Each rank casts its partition, then all gather."""
        self.wrapper.update_lp_params()

    # Muon orthogonalizes whole matrices. At stages 1 and 2 each rank that holds any part of one keeps all of its
    # momentum: those of the matrices in its partition, one after another.

    def _has_own_layout(self, kind: str) -> bool:
        is_muon = kind == "momentum_buffer" and "muon" in type(self.optimizer).__name__.lower()
        return is_muon and not hasattr(self.wrapper, "bf16_groups") and not self.wrapper.cpu_offload

    def moment_span(self, piece: Piece, kind: str) -> Span:
        """The whole parameter, for Muon's momentum."""
        if not self._has_own_layout(kind):
            return piece.span
        offset = 0
        for parameter in self.wrapper.params_in_partition[piece.owner]:
            if parameter is piece.parameter:
                break
            offset += parameter.numel()
        return Span(0, piece.parameter.numel(), offset)

    def new_moment(self, owner: int, kind: str) -> torch.Tensor:
        """Zeros, as long as the layout asks for."""
        if not self._has_own_layout(kind):
            return super().new_moment(owner, kind)
        numel = sum(parameter.numel() for parameter in self.wrapper.params_in_partition[owner])
        return torch.zeros(numel, dtype=torch.float32, device=self.owners[owner].device)


class Stage3(Wrapped):
    """`DeepSpeedZeroOptimizer_Stage3`: each rank has a part of each parameter, padded at the end of the last."""

    def _find_pieces(self) -> Iterator[Piece]:
        self.trained.update(id(parameter) for group in self.wrapper.fp16_groups for parameter in group)
        for master in self.wrapper.fp32_partitioned_groups_flat:
            self._own(master)
        for group in self.wrapper.fp16_groups:
            for parameter in group:
                owner, offset, _ = self.wrapper.grad_position[self.wrapper.get_param_id(parameter)]
                start, length = stage3_range(parameter)
                if length:
                    yield self._piece(parameter, int(owner), Span(start, length, int(offset)))

    def model_values(self, piece: Piece) -> list[torch.Tensor]:
        """The rank's own part, and the same range of the whole parameter where that is kept gathered."""
        return stage3_model_values(piece)

    def refresh_model(self) -> None:
        """Without prologue and epilogue, parameters that are kept gathered would stay as they were."""
        self.wrapper.checkpoint_event_prologue()
        for owner in range(len(self.wrapper.fp16_groups)):
            with self.resident(owner):
                self.wrapper._reassign_or_swap_out_partitioned_parameters(owner)
        self.wrapper.checkpoint_event_epilogue()

    @contextmanager
    def resident(self, owner: int, *, write: bool = False) -> Iterator[None]:
        """Under NVMe offload an owner and its state lie in files between steps."""
        is_swapped = owner < len(self.wrapper.fp16_groups) and self.wrapper._swappable_optimizer_subgroup(owner)
        if is_swapped:
            self.wrapper._optimizer_states_and_gradient_swap_in(owner)
        try:
            yield
        finally:
            if is_swapped and write:
                self.wrapper._optimizer_states_and_gradient_swap_out(owner)
            elif is_swapped:
                self.wrapper._release_swap_buffers(owner)


def stage3_range(parameter: Any) -> tuple[int, int]:
    """First element and number of elements, without padding, of this rank's part of a parameter."""
    part = int(parameter.partition_numel())
    start = part * torch.distributed.get_rank(parameter.ds_process_group)
    return start, max(0, min(part, int(parameter.ds_numel) - start))


def stage3_model_values(piece: Piece) -> list[torch.Tensor]:
    """The parts of a stage 3 parameter that must equal the piece."""
    parameter: Any = piece.parameter
    values = []
    if parameter.ds_tensor.numel() >= piece.span.length:  # empty while it lies on NVMe
        values.append(parameter.ds_tensor.data.view(-1)[: piece.span.length])
    if parameter.data.numel() == parameter.ds_numel and parameter.ds_status.name == "AVAILABLE":
        values.append(_slice(parameter, piece.span))
    return values


ADAPTERS: dict[str, Callable[[Any, dict[int, str]], Adapter]] = {
    "DeepSpeedZeroOptimizer": Mapped,
    "BF16_Optimizer": Mapped,
    "DeepSpeedZeroOptimizer_Stage3": Stage3,
    "FP16_Optimizer": FlatHalf,
    "FP16_UnfusedOptimizer": UnfusedHalf,
}
"""By the class of `engine.optimizer`; a torch optimizer that DeepSpeed did not wrap is an `Adapter`."""


def adapter_for(engine: Any, names: dict[int, str]) -> Adapter:
    """The adapter of a DeepSpeed engine; `names` are those of the model's parameters, by `id`.

    Raises:
        CheckpointError: a kind of optimizer whose layout is not known.
    """
    kind = type(engine.optimizer).__name__
    if kind in ADAPTERS:
        return ADAPTERS[kind](engine, names)
    if isinstance(engine.optimizer, torch.optim.Optimizer):
        return Adapter(engine, names)
    known = ", ".join([*ADAPTERS, "a torch optimizer"])
    raise CheckpointError(f"the state of a {kind} cannot be saved or loaded; known are {known}")


def _slice(tensor: torch.Tensor, span: Span) -> torch.Tensor:
    return tensor.data.view(-1)[span.start : span.start + span.length]
