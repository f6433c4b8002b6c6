"""Random states go through tensors and come back exactly; another rank's are a start of one's own."""

from __future__ import annotations

import random

import numpy as np
import torch

from llmtrain.checkpoint import random_state


def _draw() -> tuple[float, float, float, float, list[float]]:
    return (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist())


def test_a_restored_state_draws_the_same_numbers() -> None:
    # An odd number of normal draws leaves the second of a pair waiting in the state.
    random.gauss(0, 1)
    np.random.randn()
    states = random_state.capture()
    expected = [_draw() for _ in range(3)]
    _draw()
    random_state.restore({key: value.clone() for key, value in states.items()})
    assert [_draw() for _ in range(3)] == expected


def test_a_state_without_a_waiting_draw_is_restored_too() -> None:
    random.seed(1)
    np.random.seed(1)
    states = random_state.capture()
    expected = _draw()
    random.gauss(0, 1)
    random_state.restore(states)
    assert _draw() == expected


def test_derived_states_are_a_function_of_the_saved_state_and_the_rank() -> None:
    states = random_state.capture()
    drawn = []
    for rank in (0, 1, 0):
        random_state.derive(states, rank)
        drawn.append(_draw())
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]
    random_state.restore(states)
    assert _draw() != drawn[0]
