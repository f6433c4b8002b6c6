"""The random states of one rank (Python's, NumPy's, torch's on each device) as tensors, so that nothing is pickled."""

from __future__ import annotations

import random
import zlib

import numpy as np
import torch


def capture() -> dict[str, torch.Tensor]:
    """All of this process's states."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=True)
    assert isinstance(numpy_state, tuple)
    _, keys, position, has_gauss, cached = numpy_state
    states = {
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: dict[str, torch.Tensor]) -> None:
    """The inverse of `capture`; a device that is not there is left out."""
    version, *words = states["python"].tolist()
    gauss = states["python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    position, has_gauss = states["numpy_position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, float(states["numpy_gauss"][0])))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def derive(states: dict[str, torch.Tensor], rank: int) -> None:
    """Start this process's states from another rank's: for a resume on another number of ranks.

    A function of the saved state and the rank alone, so that such a resume can be repeated; and no repetition of the
    random numbers that the run began with.
    """
    seed = zlib.crc32(states["torch"].numpy().tobytes() + rank.to_bytes(4, "little"))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
