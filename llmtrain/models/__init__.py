"""Models: presets, building (from scratch, pretrained, on the meta device), faster parts."""

from __future__ import annotations

from llmtrain.models.build import build_model
from llmtrain.models.kernels import apply_kernels
from llmtrain.models.meta import ModelFacts, meta_model, model_facts
from llmtrain.models.presets import PRESETS, Preset
from llmtrain.models.resolve import resolve_model_config

__all__ = [
    "PRESETS",
    "ModelFacts",
    "Preset",
    "apply_kernels",
    "build_model",
    "meta_model",
    "model_facts",
    "resolve_model_config",
]
