"""The table of DeepSpeed's keys is what the installed DeepSpeed reads, and its own parser agrees with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_what_deepspeed_reads() -> None:
    """An old table is mended by `python scripts/generate_deepspeed_keys.py`."""
    command = [sys.executable, "-m", "tests.contract.deepspeed_agreement"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
