#!/usr/bin/env bash
# Every check of a change: style, types, tests. --no-tests leaves the tests out; other arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=yes
if [ "${1:-}" = "--no-tests" ]; then
    tests=no
    shift
fi

scripts/setup_venv.sh
if ! .venv/bin/python -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('ruff', 'mypy'))))"; then
    .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
if [ "$tests" = yes ]; then
    .venv/bin/python -m pytest "$@"
fi
