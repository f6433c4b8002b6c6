"""The run folder: one run, one folder, shared by all ranks.

In the order of a run: `prepare` claims the folder on all ranks together (refuses one that is in use, empties it for
`run.overwrite`, and makes sure that every host sees the same folder), `write_config` puts the resolved configuration
and its provenance there, `write_status` says how the run stands, and `metrics` and `trace` are files that grow. What
the folder holds, and under which names, is listed once, in `CONTENT`.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from llmtrain.config.schema import RunConfig
from llmtrain.errors import ConfigError, Problem
from llmtrain.tracking.files import JsonlWriter, write_atomically
from llmtrain.tracking.shared_folder import PROBE_PREFIX, find_hosts_without

CONTENT = (
    "config.yaml",
    "provenance.yaml",
    "metrics.jsonl",
    "status.json",
    "trace.jsonl",
    "checkpoints",
    "final",
    "wandb",
    "tensorboard",
    "dvclive",
    "swanlab",
)
"""Everything that llmtrain and its trackers write into a run folder; `run.overwrite` deletes this and nothing else."""

START_FILES = ("config.yaml", "provenance.yaml", "status.json")
"""What is there before anything has been trained."""

Status = Literal["running", "done", "interrupted", "failed"]
AllGather = Callable[[Any], list[Any]]
"""Gives each rank the list of all ranks' objects, in the order of the ranks."""


@dataclass(frozen=True)
class RunStatus:
    """The content of `status.json`, the authority on how a run stands or ended."""

    status: Status
    step: int
    reason: str | None = None
    exit_status: int | None = None


class RunFolder:
    """The folder of one run. Making the object touches nothing; `prepare` does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claimed_empty = False

    @classmethod
    def of(cls, run: RunConfig) -> RunFolder:
        """The folder that the configuration names: `<output_dir>/<name>`."""
        return cls(Path(run.output_dir) / run.name)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        """The Hugging Face folder of the trained model."""
        return self.path / "final"

    def prepare(
        self,
        run: RunConfig,
        *,
        rank: int,
        all_gather: AllGather,
        needed: Sequence[Path] = (),
        host: str | None = None,
        patience_seconds: float = 10.0,
    ) -> None:
        """Claim the folder for this run; every rank calls it and every rank gets the same outcome.

        `needed` are paths that the run will read (`model.init_from`), which `run.overwrite` may not delete. A host
        whose view of the folder lags behind (NFS) gets `patience_seconds`.

        Raises:
            ConfigError: The folder is in use, cannot be written, or is not the same folder on every host.
        """
        problem = self._claim(run, needed) if rank == 0 else None
        problem = all_gather(problem)[0]
        if problem is not None:
            raise ConfigError(problem)
        hosts = find_hosts_without(self.path, rank, host or socket.gethostname(), all_gather, patience_seconds)
        if hosts:
            raise ConfigError(
                Problem(
                    "run.output_dir",
                    f"is not one folder for all ranks: {self.path.absolute()} of rank 0's host {hosts.main} "
                    f"is not seen by {', '.join(hosts.blind)}",
                    "name a folder on storage that all hosts share",
                    run.output_dir,
                )
            )

    def discard_if_unused(self) -> None:
        """Remove what `prepare` and `write_config` made, where the folder was empty before and nothing was trained.

        A run that ends with a ConfigError calls it on rank 0, so that the mended run may have the same name.
        """
        if not self._claimed_empty or set(self._entries()) - set(START_FILES):
            return
        for name in START_FILES:
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()

    def write_config(self, config_yaml: str, provenance: Mapping[str, str]) -> None:
        """Write `config.yaml` (resolved, loadable as it is) and `provenance.yaml` (the origin of each path)."""
        write_atomically(self.path / "config.yaml", config_yaml)
        origins = yaml.safe_dump(dict(provenance), sort_keys=False, allow_unicode=True, width=10_000)
        write_atomically(self.path / "provenance.yaml", origins)

    def write_status(
        self, status: Status, step: int, reason: str | None = None, exit_status: int | None = None
    ) -> None:
        """Replace `status.json`; a reader sees the old one or the new one, whole."""
        content = RunStatus(status, step, reason, None if exit_status is None else int(exit_status))
        write_atomically(self.path / "status.json", json.dumps(asdict(content), indent=2) + "\n")

    def read_status(self) -> RunStatus | None:
        """What `status.json` says; None where there is none that can be read."""
        try:
            return RunStatus(**json.loads((self.path / "status.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def metrics(self) -> JsonlWriter:
        """Open `metrics.jsonl` for appending."""
        return JsonlWriter(self.path / "metrics.jsonl")

    def trace(self) -> JsonlWriter:
        """Open `trace.jsonl` for appending."""
        return JsonlWriter(self.path / "trace.jsonl")

    def _claim(self, run: RunConfig, needed: Sequence[Path]) -> Problem | None:
        """Rank 0's part: what speaks against using the folder, or None once it is there and ready."""
        try:
            problem = self._conflict(run, needed)
            if problem is not None:
                return problem
            if run.overwrite:
                self._delete_content()
            self._claimed_empty = not self._entries()
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / f"{PROBE_PREFIX}write", "")
            (self.path / f"{PROBE_PREFIX}write").unlink()
        except OSError as error:
            return Problem(
                "run.output_dir", f"cannot be used: {error}", "name a folder that can be written", run.output_dir
            )
        return None

    def _conflict(self, run: RunConfig, needed: Sequence[Path]) -> Problem | None:
        if run.overwrite and run.resume_from_checkpoint == "auto":
            rule = f"contradicts run.resume_from_checkpoint=auto: it would delete what is to be resumed in {self.path}"
            return Problem("run.overwrite", rule, "set one of the two", True)
        if not self._entries():
            return None
        if run.overwrite:
            return self._why_not_deleted(run, needed)
        return None if _resumes(run) else self._in_use(run)

    def _in_use(self, run: RunConfig) -> Problem:
        status = self.read_status()
        state = f"a run of status '{status.status}' at step {status.step}" if status else "files"
        return Problem(
            "run.name",
            f"names a folder in use: {self.path} holds {state}",
            "choose another run.name, go on with run.resume_from_checkpoint=auto, or delete it with run.overwrite=true",
            run.name,
        )

    def _why_not_deleted(self, run: RunConfig, needed: Sequence[Path]) -> Problem | None:
        if not any((self.path / name).is_file() for name in START_FILES):
            rule = f"would delete from {self.path}, which holds files and is not a run folder of llmtrain"
            return Problem("run.overwrite", rule, "choose another run.name, or empty the folder by hand", True)
        if run.resume_from_checkpoint != "none":
            needed = [*needed, Path(run.resume_from_checkpoint)]
        inside = [path for path in needed if path.resolve().is_relative_to(self.path.resolve())]
        if inside:
            rule = f"would delete {inside[0]}, which this run starts from"
            return Problem("run.overwrite", rule, "choose another run.name", True)
        return None

    def _delete_content(self) -> None:
        for entry in self._entries():
            path = self.path / entry
            if entry in CONTENT and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif entry in CONTENT:
                path.unlink()

    def _entries(self) -> list[str]:
        """Names in the folder, without what an earlier start left while it looked around."""
        if not self.path.is_dir():
            if self.path.exists():
                raise NotADirectoryError(f"{self.path} is a file")
            return []
        names = (entry.name for entry in self.path.iterdir())
        return sorted(name for name in names if not name.startswith(PROBE_PREFIX) and not _is_temporary(name))


def _resumes(run: RunConfig) -> bool:
    return run.resume_from_checkpoint != "none"


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
