"""The training engine: `config` makes DeepSpeed's dictionary (pure), `engine` wraps `deepspeed.initialize`."""

from llmtrain.engine.config import deepspeed_config, deepspeed_notes
from llmtrain.engine.engine import ConstructionContext, Engine, StepOutcome, construction_context

__all__ = [
    "ConstructionContext",
    "Engine",
    "StepOutcome",
    "construction_context",
    "deepspeed_config",
    "deepspeed_notes",
]
