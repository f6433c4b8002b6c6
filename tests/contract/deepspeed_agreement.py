"""Ask the installed DeepSpeed about the table of its keys; run as a module, for importing deepspeed takes seconds.

`python -m tests.contract.deepspeed_agreement` compares the table with what DeepSpeed reads, hands DeepSpeed a legal
value for every key of the sections that refuse unknown ones, and lets it parse a block with something of everything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig
from pydantic import ValidationError

from llmtrain.config.deepspeed_keys import check_block, load_table
from scripts.generate_deepspeed_keys import MODELS, difference
from tests.unit.config.test_deepspeed_block import EVERYTHING


def legal_value(node: dict[str, Any]) -> Any:
    """A value that the table allows."""
    if "any_of" in node:
        return legal_value(node["any_of"][-1])
    if "keys" in node:
        return {}
    if "choices" in node and node["type"] != "list":
        return node["choices"][-1]
    samples: dict[str, Any] = {"bool": True, "str": "x", "list": [], "map": {}, "any": None}
    least = node.get("min", node.get("above", 0) + (1 if node["type"] == "int" else 0.5))
    return samples.get(node["type"], least)


def refused_keys() -> Iterator[str]:
    """Keys of the table, by both of their names, that DeepSpeed's models do not know."""
    table = load_table()
    for section, model in MODELS.items():
        for name, node in table["keys"][section]["keys"].items():
            for key in filter(None, (name, node.get("alias"))):
                try:
                    model(**{key: legal_value(node)})
                except ValidationError as error:
                    if any(detail["type"] in ("extra_forbidden", "int_parsing") for detail in error.errors()):
                        yield f"{section}.{key}"


def main() -> int:
    """0 where DeepSpeed and the table agree."""
    lines = difference()
    print("\n".join(lines))
    refused = list(refused_keys())
    print("unknown to DeepSpeed:", refused)
    checked = check_block(EVERYTHING, load_table())
    DeepSpeedConfig({**checked.values, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 8})
    return 1 if lines or refused or checked.problems else 0


if __name__ == "__main__":
    sys.exit(main())
