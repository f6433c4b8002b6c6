#!/usr/bin/env python
"""Train a model: deepspeed scripts/train.py --config configs/quickstart.yaml [key.sub=value ...] [--dry-run]."""

import sys

from llmtrain.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
