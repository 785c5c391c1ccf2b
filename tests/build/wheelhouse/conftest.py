"""Small wheels with the records of their builds, and a plain HTTP server over a folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from build.bench.wheelhouse import write_release

RELEASE, PYTHONS = "9.1.0", ("3.11", "3.12")


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
