#!/usr/bin/env bash
# Runs the tests; makes .venv first when it is missing. Arguments go to pytest: ./scripts/test.sh -m launch tests/integration
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup_venv.sh
# ninja, which compiles DeepSpeed's ops, is there too; two versions of it would compile them over and over.
export PATH="$PWD/.venv/bin:$PATH"
exec .venv/bin/python -m pytest "$@"
