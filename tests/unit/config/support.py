"""A small configuration that is right, and how tests load variants of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmtrain.config import LoadedConfig, load_config
from llmtrain.errors import ConfigError, Problem

MINIMAL = """\
model:
  preset: gpt2-124m
tokenizer:
  name_or_path: tokenizer-folder
data:
  train: [{path: json, data_files: train.jsonl}]
batch:
  global_batch_size: 16
optimizer:
  learning_rate: 1e-3
schedule:
  max_steps: 100
"""


class Loader:
    """Writes files into a folder of its own and loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "run.yaml") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def load(self, *overrides: str, text: str = MINIMAL, ds_config: object = None) -> LoadedConfig:
        file = None if ds_config is None else self.write(json.dumps(ds_config), "ds_config.json")
        return load_config([self.write(text)], overrides, deepspeed_file=file)

    def problems(self, *overrides: str, text: str = MINIMAL, ds_config: object = None) -> Sequence[Problem]:
        """What is wrong; fails where nothing is."""
        with pytest.raises(ConfigError) as caught:
            self.load(*overrides, text=text, ds_config=ds_config)
        return caught.value.problems

    def problem(self, *overrides: str, text: str = MINIMAL, ds_config: object = None) -> Problem:
        """The one thing that is wrong."""
        problems = self.problems(*overrides, text=text, ds_config=ds_config)
        assert len(problems) == 1, "\n".join(map(str, problems))
        return problems[0]
