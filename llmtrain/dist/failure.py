"""What a failure of the job is: one rank, one reason, one exit status; and who writes it down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch.distributed import DistError

from llmtrain.dist.processes import say
from llmtrain.dist.waiting import within
from llmtrain.errors import ExitStatus, LlmtrainError

_RECORD_SECONDS = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a job fails. `reason` contains "rank N"; `by_itself` where that rank said so, and did not just die."""

    rank: int
    reason: str
    exit_status: int = int(ExitStatus.FAILED)
    by_itself: bool = True

    def to_json(self) -> str:
        """The inverse of `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def failure_of(rank: int, error: BaseException) -> Failure:
    """The failure of a rank that ends with this exception."""
    if isinstance(error, LlmtrainError):
        text = str(error)
        reason = text if f"rank {rank}" in text else f"rank {rank}: {text}"
        return Failure(rank, reason, int(error.exit_status))
    return Failure(rank, f"rank {rank}: {type(error).__name__}: {error}".rstrip(": "))


def is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed, which is mostly the consequence of another rank's end and not a cause."""
    if isinstance(error, DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text or "Connection closed by peer" in text)


class NullChannel:
    """The channel of a rank that is alone: its failure is the job's."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._failure: Failure | None = None
        self.notice_seconds = 0.0

    def start(self) -> None:
        """Nothing to watch."""

    def fail(self, failure: Failure, *, patience_seconds: float = 0.0) -> Failure:
        """Call `on_failure`, once."""
        if self._failure is None:
            self._failure = failure
            record(self._on_failure, failure.reason)
        return self._failure

    def close(self) -> None:
        """Nothing to end."""

    def finish(self) -> None:
        """Nobody's end counts."""


def record(on_failure: Callable[[str], None], reason: str) -> None:
    """The job ends all the same where the failure cannot be recorded, or a dead file system keeps it from being so."""

    def call() -> None:
        try:
            on_failure(reason)
        except Exception as error:
            say(f"the failure could not be recorded: {error}")

    within(_RECORD_SECONDS, call)
