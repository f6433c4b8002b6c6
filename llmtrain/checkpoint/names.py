"""The names of a model's parameters: Hugging Face's, each tensor once, whatever wraps the model."""

from __future__ import annotations

import torch


def names_of_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Every parameter under one name, in the order of the modules.

    A tied parameter goes by the name under which transformers saves it: `_tied_weights_keys` lists the others.
    """
    names: dict[int, str] = {}
    parameters: dict[int, torch.nn.Parameter] = {}
    dropped = set(getattr(module, "all_tied_weights_keys", None) or {})
    for raw_name, parameter in module.named_parameters(remove_duplicate=False):
        name = plain_name(raw_name)
        known = names.get(id(parameter))
        if known is None or (known in dropped and name not in dropped):
            names[id(parameter)] = name
            parameters[id(parameter)] = parameter
    return {name: parameters[key] for key, name in names.items()}


def names_of_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every persistent buffer, each tensor once."""
    saved = {plain_name(name) for name in _state_names(module)}
    return {plain_name(name): buffer for name, buffer in module.named_buffers() if plain_name(name) in saved}


def plain_name(name: str) -> str:
    """Without what torch.compile puts into it, at any depth."""
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    return ".".join(parts)


def _state_names(module: torch.nn.Module) -> list[str]:
    names: list[str] = []
    for prefix, child in module.named_modules():
        hidden = child._non_persistent_buffers_set
        names.extend(f"{prefix}.{name}" if prefix else name for name in child._buffers if name not in hidden)
    return names
