"""What `model.name_or_path` names: a folder, or a model on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llmtrain.errors import ConfigError, Problem
from llmtrain.hub import hub_unreachable_error, why_hub_is_unreachable

KEY = "model.name_or_path"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?")


@dataclass(frozen=True)
class NamedModel:
    """A model's name, and where it is to be looked for."""

    name: str
    is_folder: bool
    why_unreachable: str | None = None
    """Why the hub does not answer, where it does not: then only its local cache is looked at."""

    @property
    def local_files_only(self) -> bool:
        """For transformers' loaders: do not ask the hub."""
        return self.is_folder or self.why_unreachable is not None

    def failure(self, error: Exception, holds: str) -> ConfigError:
        """The error to raise where a loader failed; `holds` is what should have been there ("model")."""
        if self.why_unreachable and isinstance(error, OSError):
            return hub_unreachable_error(
                KEY, self.name, self.why_unreachable, "give the path of a folder that holds it"
            )
        if "trust_remote_code" in str(error):
            rule = f"is a {holds} that comes with code of its own"
            return ConfigError(Problem(KEY, rule, "set model.trust_remote_code: true if you trust it", self.name))
        reason = " ".join(str(error).split())
        place = "folder" if self.is_folder else "name on the Hugging Face hub"
        return ConfigError(Problem(KEY, f"gives no {holds}; is this the right {place}? {reason}", value=self.name))


def locate(name: str) -> NamedModel:
    """Where to look for a model.

    Raises:
        ConfigError: it is the path of a folder that is not there.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return NamedModel(str(path), is_folder=True)
    if not HUB_NAME.fullmatch(name):
        rule = "is a file, not a folder" if path.exists() else "is not there"
        raise ConfigError(Problem(KEY, rule, f"give a folder or a hub name (paths start from {Path.cwd()})", name))
    return NamedModel(name, is_folder=False, why_unreachable=why_hub_is_unreachable())
