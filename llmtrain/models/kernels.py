"""Parts of a transformers model that are replaced by faster ones with equal numbers."""

from __future__ import annotations

from typing import Literal

import torch
from transformers.activations import FastGELUActivation, NewGELUActivation

from llmtrain.config.schema import KernelsConfig

PYTHON_TANH_GELUS = (NewGELUActivation, FastGELUActivation)
"""The tanh approximation of GELU (Hendrycks & Gimpel 2016), written as eight operations with a tensor each."""


def apply_kernels(model: torch.nn.Module, kernels: Literal["auto", "off"] | KernelsConfig) -> list[str]:
    """Replace what `kernels` allows; a line for each choice, saying what and why.

    No parameter is touched, so it may come before or after the engine.
    """
    if kernels == "off":
        return ["kernels: off, the model is as transformers has it"]
    chosen = KernelsConfig() if kernels == "auto" else kernels
    return [_native_gelu(model) if chosen.gelu else "gelu: off (kernels.gelu=false)"]


def _native_gelu(model: torch.nn.Module) -> str:
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in PYTHON_TANH_GELUS
    ]
    for parent, name in places:
        setattr(parent, name, torch.nn.GELU(approximate="tanh"))
    if not places:
        return "gelu: as it is, the model has no tanh GELU written in Python"
    return f"gelu: torch's own tanh GELU in {len(places)} places, one operation for eight"
