"""Files read in place on a server, by range requests: a wheel's facts and headers without its libraries."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import httpx

from build.errors import SourceError
from build.official.pipconf import local_path
from build.official.transfer import CHUNK, client, retried, shown


class RangeUnsupportedError(SourceError):
    """The server sends whole files only."""


class RemoteFile(io.RawIOBase):
    """A file on a server, read by range: one open request goes on for as long as reading is sequential."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._position = 0
        self._open: httpx.Response | None = None
        self._blocks: Iterator[bytes] = iter(())
        self._ahead = b""
        response = self._request("bytes=0-0")
        response.close()
        self.size = int(response.headers["content-range"].rpartition("/")[2])

    def _request(self, byte_range: str) -> httpx.Response:
        """Return an open response; a server without ranges is refused before it sends the whole file."""
        headers = {"Range": byte_range, "Accept-Encoding": "identity"}
        request = client().build_request("GET", self.url, headers=headers)
        response = client().send(request, stream=True)
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            response.close()
            raise RangeUnsupportedError(f"{shown(self.url)} answers a range request with {response.status_code}")
        return response

    def _drop(self) -> None:
        """End the open request."""
        if self._open is not None:
            self._open.close()
        self._open, self._blocks, self._ahead = None, iter(()), b""

    def _next(self) -> bytes:
        """Return the next bytes at the position, from the open request or a new one."""
        try:
            if self._open is None:
                self._open = self._request(f"bytes={self._position}-")
                self._blocks = self._open.iter_raw()
            return next(self._blocks, b"")
        except httpx.TransportError:
            self._drop()  # the next attempt asks from where this one broke off
            raise

    def close(self) -> None:
        """End the open request too."""
        self._drop()
        super().close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset` from the start, here or the end."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        target = max(0, origin + offset)
        if target != self._position:
            self._drop()
        self._position = target
        return target

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with what comes next."""
        if self._position >= self.size:
            return 0
        if not self._ahead:
            self._ahead = retried(self.url, self._next)
        taken = min(len(buffer), len(self._ahead))
        buffer[:taken] = self._ahead[:taken]
        self._ahead = self._ahead[taken:]
        self._position += taken
        return taken


@contextmanager
def opened(url: str, buffer: int = CHUNK) -> Iterator[BinaryIO]:
    """Open a `file:` or `http(s):` URL for random reading.

    Args:
        url: where.
        buffer: bytes per request.

    Raises:
        RangeUnsupportedError: the server sends whole files only.
    """
    local = local_path(url)
    if local is not None:
        with local.open("rb") as stream:
            yield stream
        return
    with RemoteFile(url) as raw, io.BufferedReader(raw, buffer) as reader:
        yield reader
