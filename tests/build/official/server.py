"""A little package index over HTTP, with range requests, that can break off."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import ssl
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Index:
    """Files of the server, its behaviour, and the requests it got.

    Attributes:
        files: wheels by name.
        ranges: whether it answers range requests.
        breaks: how many answers it still cuts off.
        keeps: the part of such an answer that it sends before, one after the other; the last one stays.
        stall: when set, answers stop at half until it is cleared.
        json: serves PEP 691 JSON instead of HTML.
        metadata: serves the METADATA of a wheel beside it (PEP 658), with HTML.
        tags: names the content of each file (`ETag`), as web servers do, so that nobody fetches what they have.
        login: name and password (`me:secret`) without which it answers nothing.
        requests: method, path and range of every request.
        sent: bytes of wheels sent.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    breaks: int = 0
    keeps: list[float] = field(default_factory=lambda: [0.5])
    stall: threading.Event | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    json: bool = False
    metadata: bool = False
    tags: bool = False
    login: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0
    url: str = ""

    def add(self, name: str, data: bytes) -> str:
        """Offer a file and return its SHA-256."""
        self.files[name] = data
        return hashlib.sha256(data).hexdigest()

    def page(self, project: str) -> tuple[str, bytes] | None:
        """Return content type and body of a project's page."""
        names = [name for name in self.files if re.sub(r"[-_.]+", "-", name.split("-")[0]).lower() == project]
        if not names:
            return None
        digest = {name: hashlib.sha256(self.files[name]).hexdigest() for name in names}
        if self.json:
            rows = ",".join(
                f'{{"filename":"{name}","url":"../../files/{name}","hashes":{{"sha256":"{digest[name]}"}}}}'
                for name in names
            )
            return "application/vnd.pypi.simple.v1+json", f'{{"meta":{{}},"files":[{rows}]}}'.encode()
        more = ' data-core-metadata="true"' if self.metadata else ""
        rows = "".join(f'<a href="../../files/{name}#sha256={digest[name]}"{more}>{name}</a>\n' for name in names)
        return "text/html", f"<!DOCTYPE html><html><body>{rows}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    index: Index
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.index.requests.append(("GET", self.path, self.headers.get("Range", "")))
        self.path = urlsplit(self.path).path  # a proxy is asked for whole URLs
        given = self.headers.get("Authorization", "").partition(" ")[2]
        if base64.b64decode(given).decode() != self.index.login:
            self.answer(401, "text/plain", b"")
            return
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/files/") and name in self.index.files:
            self.wheel(self.index.files[name])
            return
        if self.index.metadata and name.removesuffix(".metadata") in self.index.files:
            with zipfile.ZipFile(io.BytesIO(self.index.files[name.removesuffix(".metadata")])) as wheel:
                (member,) = [path for path in wheel.namelist() if path.endswith(".dist-info/METADATA")]
                self.answer(200, "text/plain", wheel.read(member))
            return
        page = self.index.page(self.path.strip("/").rpartition("/")[2])
        self.answer(200 if page else 404, *(page or ("text/plain", b"")))

    def answer(self, status: int, kind: str, body: bytes, extra: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (extra or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.body(body)

    def wheel(self, data: bytes) -> None:
        tag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'} if self.index.tags else {}
        if tag and self.headers.get("If-None-Match") == tag["ETag"]:
            self.answer(304, "application/zip", b"", tag)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not (wanted and self.index.ranges):
            self.answer(200, "application/zip", data, tag)
            return
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        if first >= len(data):
            self.answer(416, "text/plain", b"")
            return
        extra = {**tag, "Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self.answer(206, "application/zip", data[first : last + 1], extra)

    def body(self, data: bytes) -> None:
        half = len(data) // 2
        if self.index.breaks and len(data) > 1000:
            self.index.breaks -= 1
            keeps = self.index.keeps
            self.write(data[: int(len(data) * (keeps.pop(0) if keeps[1:] else keeps[0]))])
            self.close_connection = True
            return
        if self.index.stall is not None and len(data) > 1000:
            self.write(data[:half])
            self.index.stalled.set()
            self.index.stall.wait(60)
            data = data[half:]
        self.write(data)

    def write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), 8192):
                self.wfile.write(data[start : start + 8192])
                self.index.sent += len(data[start : start + 8192])
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what many tests are about."""


@contextmanager
def serving(index: Index, tls: ssl.SSLContext | None = None) -> Iterator[Index]:
    """Serve `index` on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    if tls is not None:
        # The handshake belongs to the connection's own thread: a client that refuses it must not end the server.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    index.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{server.server_port}"
    try:
        yield index
    finally:
        if index.stall is not None:
            index.stall.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def make_wheel(path: Path, members: Mapping[str, bytes], stored: tuple[str, ...] = ()) -> bytes:
    """Write a wheel with these members, those in `stored` uncompressed, and return its bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            kind = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name), data, kind)
    return path.read_bytes()
