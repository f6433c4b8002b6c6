"""Fixtures of the configuration's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.support import Loader


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Loads configurations in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return Loader(Path("."))
