"""What makes weights a Hugging Face folder: the model's configuration, its generation defaults, the tokenizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class ModelFiles:
    """The files beside the weights.

    `dtype` is that of the weights in an export, and is written into config.json. Any part may be None: a checkpoint
    without a configuration resumes, but cannot be exported.
    """

    config: Any | None = None
    tokenizer: Any | None = None
    generation_config: Any | None = None
    architecture: str | None = None
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, model: Any, tokenizer: Any | None, dtype: torch.dtype) -> ModelFiles:
        """Of a transformers model (DeepSpeed's `engine.module`)."""
        generation_config = model.generation_config if model.can_generate() else None
        return cls(model.config, tokenizer, generation_config, type(model).__name__, dtype)

    def write(self, folder: Path) -> None:
        """Into a folder that exists."""
        if self.config is not None:
            config = copy.deepcopy(self.config)
            config.dtype = str(self.dtype).removeprefix("torch.")
            if self.architecture:
                config.architectures = [self.architecture]
            config.save_pretrained(folder)
        if self.generation_config is not None:
            self.generation_config.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
