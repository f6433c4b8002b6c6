#!/usr/bin/env bash
# Makes .venv from the project's own files when it is missing (PYTHON=python3.12 chooses the interpreter).
# The stamp is written last, so that an installation that was cut short is done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ ! -e .venv/.complete ]; then
    echo "Making .venv (a few minutes the first time) ..."
    "${PYTHON:-python3}" -m venv .venv
    .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
    touch .venv/.complete
fi
