from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.official.settings import forget

from .server import Index, serving


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, and none of this machine's pip settings."""
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "no-index").as_uri())
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY", "PIP_NO_INDEX", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield tmp_path / "cache"
    forget()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An empty index that pip is configured with."""
    with serving(Index()) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url + "/simple")
        yield made
