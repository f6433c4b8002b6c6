"""Tasks: what a batch is and what its loss is. `build_task` gives the one that a configuration names."""

from __future__ import annotations

from typing import Any

from llmtrain.config.schema import Config
from llmtrain.errors import ConfigError
from llmtrain.tasks.base import Batch, Example, LossOutput, Task
from llmtrain.tasks.causal_lm import CausalLm
from llmtrain.tasks.masked_lm import MaskedLm

__all__ = ["Batch", "CausalLm", "Example", "LossOutput", "MaskedLm", "Task", "build_task"]


def build_task(config: Config, tokenizer: Any) -> Task:
    """The task `model.task`.

    Raises:
        ConfigError: the configuration or the tokenizer lacks what the task needs.
    """
    tasks: dict[str, type[CausalLm] | type[MaskedLm]] = {"causal_lm": CausalLm, "masked_lm": MaskedLm}
    task = tasks[config.model.task]
    problems = task.problems(config, tokenizer)
    if problems:
        raise ConfigError(problems)
    return task.from_config(config, tokenizer)
