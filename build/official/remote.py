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
    """A file on a server, read by range requests; wrap it in `io.BufferedReader` for few, large requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._position = 0
        self.transferred = 0
        response = self._get("bytes=0-0")
        self.size = int(response.headers["content-range"].rpartition("/")[2])

    def _get(self, byte_range: str) -> httpx.Response:
        return retried(self.url, lambda: self._request(byte_range))

    def _request(self, byte_range: str) -> httpx.Response:
        headers = {"Range": byte_range, "Accept-Encoding": "identity"}
        # Streamed, so that a server without ranges does not send its 770 MB before it is refused.
        with client().stream("GET", self.url, headers=headers) as response:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                raise RangeUnsupportedError(f"{shown(self.url)} answers a range request with {response.status_code}")
            response.read()
        self.transferred += len(response.content)
        return response

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
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with one request."""
        end = min(self._position + len(buffer), self.size)
        if end <= self._position:
            return 0
        data = self._get(f"bytes={self._position}-{end - 1}").content
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


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
