"""Small wheels with the records of their builds, and a plain HTTP server over a folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs.bench.wheelhouse import write_release

RELEASE, PYTHONS = "9.1.0", ("3.11", "3.12")


@pytest.fixture(autouse=True)
def _one_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of a test is published in one second; what it has seen of wheelhouses is its own."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time())))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """The results of building one release for two Pythons: three wheels."""
    write_release(tmp_path / "dist" / RELEASE, RELEASE, PYTHONS)
    return tmp_path / "dist"


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield its address and the paths of all requests so far."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
