from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no upstream: a test that wants one says where it is."""
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", str(tmp_path / "no-such-remote"))
    return tmp_path / "cache"
