"""Waiting that ends: for calls into torch and the file system that may not return and cannot be interrupted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, question: Callable[[], Answer]) -> Answer | None:
    """What `question()` returns; None where it raises RuntimeError or takes longer (its thread is left behind)."""
    answers: list[Answer] = []

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # torch's stores raise it and its subclasses
            answers.append(question())

    thread = threading.Thread(target=ask, name="within", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None
