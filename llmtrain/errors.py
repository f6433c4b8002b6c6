"""Every error that llmtrain raises on purpose.

    LlmtrainError                exit status 1
    ├── ConfigError              2   something that the user wrote or named; holds all problems at once
    │   └── HubUnreachableError  2   a hub name, and no way to the hub (`--dry-run` goes on without what it names)
    ├── DataError                1   a source failed while the run was reading it
    │   └── BadRecordError       1   one record cannot be used; names file, line or row, and the reason
    ├── CheckpointError          1   a checkpoint cannot be written, or none can be read
    ├── TrainingError            1   the numbers went bad (too many bad steps)
    ├── RankFailedError          1   another rank failed; carries that rank's reason
    └── Interrupted              75  asked to stop (signal, time limit, stop_at_step)

`scripts/train.py` and the console script print the message of such an error once, without a traceback, and end with its
`exit_status`. Any other exception is a defect of llmtrain or of a library: it keeps its traceback and ends with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class ExitStatus(IntEnum):
    """How a run ended, as a shell sees it."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    INTERRUPTED = 75


class LlmtrainError(Exception):
    """Base of the tree; `exit_status` is what the process ends with."""

    exit_status: ExitStatus = ExitStatus.FAILED


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT = _Absent()
"""The value of a `Problem` whose key is not there (None is a value that YAML can write)."""


@dataclass(frozen=True)
class Problem:
    """One thing to mend: which key, where it was set, its value, the rule that it breaks, and the remedy.

    `path` is dotted (`data.train[0].text_column`); empty for a problem of a whole file. `rule` reads on from the value
    ("is not a multiple of …"); `remedy` stands alone ("nearest: 448, 512"). `origin` is filled in from the provenance
    where the code that found the problem does not know it ("run.yaml:12", "command line").
    """

    path: str
    rule: str
    remedy: str = ""
    value: object = ABSENT
    origin: str = ""

    def __str__(self) -> str:
        subject = self.path
        if self.value is not ABSENT:
            subject += f"={self.value!r}" if isinstance(self.value, str) else f"={self.value}"
        if self.origin:
            subject += f" ({self.origin})"
        text = f"{subject} {self.rule}".strip()
        return f"{text}; {self.remedy}" if self.remedy else text


class ConfigError(LlmtrainError):
    """Something the user wrote or named cannot be used. Raised before any training, with every problem at once."""

    exit_status = ExitStatus.CONFIG

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        assert self.problems, "a ConfigError without a problem"
        super().__init__(str(self))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return "\n".join([f"{len(self.problems)} problems:", *(f"  - {problem}" for problem in self.problems)])

    def with_origins(self, origin_of: Callable[[str], str]) -> ConfigError:
        """The same error with the origin of each path filled in, by `origin_of(path)`, where it is missing."""
        return type(self)([p if p.origin else replace(p, origin=origin_of(p.path)) for p in self.problems])


class HubUnreachableError(ConfigError):
    """Something is named by its name on the Hugging Face hub, is not in the local cache, and the hub is not reached."""


class DataError(LlmtrainError):
    """A source failed while the run was reading it."""


class BadRecordError(DataError):
    """One record of a source cannot be used."""


class CheckpointError(LlmtrainError):
    """A checkpoint cannot be written, or none can be read."""


class TrainingError(LlmtrainError):
    """The numbers went bad: too many steps in a row without a finite loss and gradient."""


class RankFailedError(LlmtrainError):
    """Another rank failed; the message is that rank's reason."""


class Interrupted(LlmtrainError):  # noqa: N818  (a request, not an error: named as what happened)
    """The run was asked to stop and has saved what it owes."""

    exit_status = ExitStatus.INTERRUPTED
