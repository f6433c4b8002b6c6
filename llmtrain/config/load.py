"""Load a run's configuration: files, then a ds_config JSON, then overrides, merged left to right and checked as one.

files        each is read as YAML; `deepspeed: path.json` in one is replaced by what the JSON holds
--deepspeed  a ds_config JSON named on the command line takes the place of the block so far
overrides    `a.b=v`, in their order
owned keys   what a ds_config JSON says about batch, optimizer, schedule and precision fills the keys nobody set
checks       schema, rules between keys, the deepspeed block; every problem with its origin, all in one error
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtrain.config.deepspeed_file import Carried, DeepSpeedFile, read_deepspeed_file
from llmtrain.config.deepspeed_keys import Node, check_block, load_table
from llmtrain.config.deepspeed_rules import deepspeed_rule_problems
from llmtrain.config.merge import apply_override, merge_layer, replace_origins
from llmtrain.config.provenance import DEFAULT, Provenance, leaves
from llmtrain.config.schema import Config
from llmtrain.config.types import parse_number
from llmtrain.config.validate import drop_empty_sections, fill_sections, validate
from llmtrain.config.yaml_loader import Document, read_yaml
from llmtrain.errors import ConfigError, Problem


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration and where its values come from."""

    config: Config
    provenance: Provenance
    notes: tuple[str, ...] = ()
    """What a user should be told, though nothing is wrong."""


def load_config(
    paths: Sequence[Path], overrides: Sequence[str] = (), *, deepspeed_file: Path | None = None
) -> LoadedConfig:
    """The configuration of `paths`, merged left to right, with `overrides` (`a.b=v`) on top.

    Raises `ConfigError` with every problem at once.
    """
    loading = _Loading(load_table())
    loading.read(paths, deepspeed_file, overrides)
    loading.stop_if_unreadable()
    loading.take_over_owned_keys()
    return loading.check(paths[0].stem if paths else None)


@dataclass
class _Loading:
    """The configuration while it is put together."""

    table: Node
    document: Document = field(default_factory=lambda: Document({}))
    file: DeepSpeedFile | None = None
    """The ds_config JSON that is in force."""
    unreadable: list[Problem] = field(default_factory=list)

    def read(self, paths: Sequence[Path], deepspeed_file: Path | None, overrides: Sequence[str]) -> None:
        """Lay all layers over each other. What cannot be read is kept for one error."""
        for path in paths:
            try:
                layer = read_yaml(path)
                for name in drop_empty_sections(layer.data):
                    self.document.origins.setdefault(name, layer.origins[name])
                self._use_deepspeed_path(layer)
                merge_layer(self.document, layer)
            except ConfigError as error:
                self.unreadable += error.problems
        fill_sections(self.document.data)
        if deepspeed_file is not None:
            overrides = [f"deepspeed={_quoted(deepspeed_file)}", *overrides]
        for override in overrides:
            try:
                apply_override(self.document, override)
                self._use_deepspeed_path(self.document)
            except ConfigError as error:
                self.unreadable += error.problems

    def stop_if_unreadable(self) -> None:
        """Without all layers the rest would only give false alarms."""
        if self.unreadable:
            raise ConfigError([*self.unreadable, *self.document.problems])

    def _use_deepspeed_path(self, layer: Document) -> None:
        """Replace the path of a ds_config JSON by what it holds; it takes the place of the block so far."""
        named = layer.data.get("deepspeed", {})
        if named is None:  # an override has taken the block back, and with it the file that it came from
            self.file, layer.data["deepspeed"] = None, {}
        if not isinstance(named, str):
            return
        layer.data["deepspeed"] = {}
        self.file = read_deepspeed_file(Path(named), self.table)
        layer.data["deepspeed"] = self.file.block
        self.document.data["deepspeed"] = {} if layer is not self.document else self.file.block
        replace_origins(self.document.origins, "deepspeed", {})
        origins = {path: self.file.name for path, _ in leaves(self.file.block, "deepspeed")}
        replace_origins(layer.origins, "deepspeed", {"deepspeed": self.file.name, **origins})

    def take_over_owned_keys(self) -> None:
        """Fill what the ds_config JSON says about llmtrain's own keys; a conflict is a problem."""
        if self.file is None:
            return
        self.document.problems += self.file.problems
        fill_sections(self.document.data)
        for setting in sorted(self.file.carried, key=lambda carried: carried.is_implied):
            self._take_over(setting, self.file.name)

    def _take_over(self, setting: Carried, origin: str) -> None:
        section, _, key = setting.path.rpartition(".")
        holder = self.document.data.setdefault(section, {}) if section else self.document.data
        if not isinstance(holder, dict):
            return  # the schema refuses it
        present = holder.get(key)
        if present is None:
            holder[key] = setting.value
            self.document.origins[setting.path] = origin
        elif setting.is_implied and not (setting.path == "precision" and f"{present}.enabled" in setting.source):
            return
        elif not _is_same(present, setting.value):
            rule = f"is set differently in {origin}, where {setting.source} gives {setting.value}"
            problem = Problem(setting.path, rule, "set it in one of the two", value=present)
            self.document.problems.append(problem)

    def check(self, name: str | None) -> LoadedConfig:
        """Check everything; the configuration, or one error."""
        data, origins = fill_sections(self.document.data), self.document.origins
        if name and isinstance(data.get("run"), dict) and data["run"].get("name") is None:
            data["run"]["name"] = name
            origins["run.name"] = DEFAULT
        block = check_block(data.get("deepspeed"), self.table)
        deepspeed_problems = block.problems or deepspeed_rule_problems(block.values)
        data["deepspeed"] = block.values
        checked = validate(data, origins, list(self.table["keys"]))
        problems = [*self.document.problems, *checked.problems, *deepspeed_problems]
        provenance = Provenance(origins)
        if problems or checked.config is None:
            raise ConfigError(_unique(problems)).with_origins(provenance.origin_of)
        resolved = checked.config.model_dump()
        defaults = {path: DEFAULT for path, _ in leaves(resolved) if path not in origins}
        notes = tuple(self.file.notes) if self.file else ()
        return LoadedConfig(checked.config, Provenance({**defaults, **origins}), notes)


def _is_same(left: Any, right: Any) -> bool:
    """Whether two values mean the same, also where one is a number in quotes."""
    numbers = [parse_number(value) if isinstance(value, str) else value for value in (left, right)]
    return bool(left == right or (None not in numbers and numbers[0] == numbers[1]))


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _unique(problems: list[Problem]) -> list[Problem]:
    """Each problem once, in the order in which they were found."""
    return list({(problem.path, problem.rule): problem for problem in problems}.values())
