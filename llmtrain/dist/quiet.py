"""Dependencies say only what the user must know."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_dependencies() -> None:
    """Set before torch and DeepSpeed are imported; what the user has set himself stays."""
    # When a rank dies, c10d's stores print a C++ stack per attempt on every other rank; the failure channel says it
    # once.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A record is dropped by the logger's own filter, also where DeepSpeed adds its handler later.
    logging.getLogger("DeepSpeed").addFilter(_is_worth_saying)
    # DeepSpeed 0.19 calls torch's collectives by the names that torch 2.13 is about to change.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return "Setting accelerator to CPU" not in record.getMessage()
