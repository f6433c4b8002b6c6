"""The configuration of a run: the schema, and how it is read, checked, written and compared. Imports no torch."""

from llmtrain.config.dump import Difference, diff, dump_config, json_schema
from llmtrain.config.durations import parse_duration
from llmtrain.config.load import LoadedConfig, load_config
from llmtrain.config.provenance import Provenance
from llmtrain.config.schema import Config

__all__ = [
    "Config",
    "Difference",
    "LoadedConfig",
    "Provenance",
    "diff",
    "dump_config",
    "json_schema",
    "load_config",
    "parse_duration",
]
