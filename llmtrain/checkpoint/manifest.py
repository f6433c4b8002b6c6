"""What a checkpoint holds: every file with its size and checksum, every parameter with its fragments.

`manifest.json` is written last, so a folder without one is not a checkpoint. A fragment is (file, key, start, length):
its key in the file is "KIND/PARAMETER/START", its values are elements `start` to `start + length` of the flattened
parameter. All kinds of a parameter (its weight and its moments) are cut alike: the cuts are listed once a parameter.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from llmtrain.checkpoint.disk import FileRecord, record_of
from llmtrain.errors import CheckpointError

FILE_NAME = "manifest.json"
FORMAT = "llmtrain-fragments"
FORMAT_VERSION = 1
WEIGHT = "weight"

Role = Literal["trained", "frozen", "buffer"]


@dataclass(frozen=True)
class Cut:
    """One rank's part of a parameter: `file` indexes `Manifest.fragment_files`."""

    file: int
    start: int
    length: int


@dataclass
class ParameterRecord:
    """One parameter or persistent buffer of the model.

    `dtype` is that of its weight on disk, by safetensors' name: F32 for what is trained, whatever the run's precision.
    Moments are F32. `scalars` is the rest of the optimizer's state for it, its step count above all.
    """

    shape: list[int]
    role: Role
    dtype: str
    moments: list[str]
    scalars: dict[str, float | int | bool]
    cuts: list[Cut] = field(default_factory=list)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def kinds(self) -> list[str]:
        """The kinds of its fragments."""
        return [WEIGHT, *self.moments]


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    `optimizer` is a family ("adam", "lion", …): moments mean something only within one. `loss_scaler` and `counters`
    are DeepSpeed's own; `facts` is for the reader: versions, stage, precision.
    """

    step: int
    world_size: int
    optimizer: str
    parameters: dict[str, ParameterRecord]
    fragment_files: list[str]
    files: dict[str, FileRecord]
    loss_scaler: dict[str, float]
    counters: dict[str, int]
    facts: dict[str, Any]

    def to_json(self) -> bytes:
        """The file's content; it carries a checksum of its own."""
        parameters = {
            name: {**asdict(record), "cuts": [[cut.file, cut.start, cut.length] for cut in record.cuts]}
            for name, record in self.parameters.items()
        }
        body = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **{key: value for key, value in vars(self).items() if key not in ("parameters", "files")},
            "files": {name: asdict(record) for name, record in self.files.items()},
            "parameters": parameters,
        }
        body = {"checksum": _checksum(body), **body}
        lines = [f"{json.dumps(key)}: {_one_line_each(value)}" for key, value in body.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Of a checkpoint's folder.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of a later format.
        """
        path = folder / FILE_NAME
        try:
            body = json.loads(path.read_bytes())
            checksum = body.pop("checksum")
            version = body["format_version"]
        except FileNotFoundError:
            raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {FILE_NAME}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error!r}") from error
        if version != FORMAT_VERSION:
            raise CheckpointError(f"{path} has format version {version}, this llmtrain reads {FORMAT_VERSION}")
        if checksum != _checksum(body):
            raise CheckpointError(f"{path} is damaged: its checksum is {_checksum(body)}, not {checksum}")
        del body["format"], body["format_version"]
        body["files"] = {name: FileRecord(**record) for name, record in body["files"].items()}
        body["parameters"] = {name: _parameter_record(record) for name, record in body["parameters"].items()}
        return cls(**body)


def key_of(kind: str, name: str, start: int) -> str:
    """A fragment's key in its file."""
    return f"{kind}/{name}/{start}"


def coverage_problems(parameters: dict[str, ParameterRecord]) -> list[str]:
    """Where the cuts of a parameter do not cover each of its elements exactly once. Sorts the cuts."""
    problems = []
    for name, record in parameters.items():
        record.cuts.sort(key=lambda cut: cut.start)
        reached = 0
        for cut in record.cuts:
            if cut.start != reached:
                what = "covered twice" if cut.start < reached else "missing"
                low, high = sorted((cut.start, reached))
                problems.append(f"{name}: elements {low} to {high} are {what}")
            reached = max(reached, cut.start + cut.length)
        if reached != record.numel:
            what = "missing" if reached < record.numel else "too many"
            problems.append(f"{name}: elements {min(reached, record.numel)} to {max(reached, record.numel)} are {what}")
    return problems


def file_problems(folder: Path, files: dict[str, FileRecord], names: Iterable[str], *, content: bool) -> list[str]:
    """How files differ from their records: by size alone, or by `content` too."""
    problems = []
    for name in names:
        expected, path = files[name], folder / name
        try:
            size = path.stat().st_size
            if size != expected.size:
                problems.append(f"{path} has {size} bytes instead of {expected.size}")
            elif content and (found := record_of(path)) != expected:
                problems.append(f"{path} is damaged: its checksum is {found.crc32}, not {expected.crc32}")
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
    return problems


def shortened(problems: Sequence[str], limit: int = 5) -> str:
    """The first few of many problems, in one line."""
    more = f" (and {len(problems) - limit} more)" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more


def _parameter_record(record: dict[str, Any]) -> ParameterRecord:
    return ParameterRecord(**{**record, "cuts": [Cut(*cut) for cut in record["cuts"]]})


def _one_line_each(value: Any) -> str:
    """JSON with a line for each member of a mapping."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ",".join(f"\n  {json.dumps(key)}: {json.dumps(member)}" for key, member in value.items()) + "}"


def _checksum(body: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"
