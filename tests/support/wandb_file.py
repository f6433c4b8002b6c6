"""Reads back what the W&B SDK recorded: a `.wandb` file is a LevelDB log of protobuf records.

The file has a header of 7 bytes, then blocks of 32768 bytes; a record is cut into fragments that do not cross blocks,
each with a header of checksum, length and kind (LevelDB's doc/log_format.md).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32768
FILE_HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class RecordedRun:
    """What one `.wandb` file says."""

    run_id: str = ""
    project: str = ""
    display_name: str = ""
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, str] = field(default_factory=dict)
    """Name or pattern of a figure, to its axis (empty for an axis itself)."""
    exit_code: int | None = None


def read_wandb_file(path: Path) -> RecordedRun:
    """All of a run that is needed to check it."""
    run = RecordedRun()
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.run_id, run.project, run.display_name = record.run.run_id, record.run.project, record.run.display_name
            run.tags, run.notes = list(record.run.tags), record.run.notes
            run.config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        elif kind == "history":
            run.history.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
        elif kind == "metric":
            run.metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _records(content: bytes) -> Iterator[bytes]:
    position, record = FILE_HEADER_BYTES, b""
    while position + 7 <= len(content):
        room = BLOCK_BYTES - position % BLOCK_BYTES
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (FULL, LAST):
            yield record
            record = b""
