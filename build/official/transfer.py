"""Download of wheels with resumption, and reading of single members of remote wheels.

pip resumes a download only within one run, and reads members of a remote wheel in requests of 10 kB. This reader keeps
the bytes of an interrupted run, and reads on with one open request. Session and settings are pip's.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from build.console import log, note, progress
from build.errors import DigestMismatchError, SourceError
from build.official.urls import local_path, shown, unreachable
from build.paths import clear
from build.seals import sha256_of

if TYPE_CHECKING:
    from pip._vendor.requests import Response

#: How often in a row a connection may break without a byte received.
ATTEMPTS = 5
CHUNK = 1 << 20
#: Bytes per read: at most these are lost when a connection breaks.
_BLOCK = 1 << 16


class RangeUnsupportedError(SourceError):
    """The server sends whole files only."""


class _BrokenOffError(OSError):
    """The server ended its answer before the end of the file."""


class RemoteFile(io.RawIOBase):
    """A file on a server, read by range from `start` on; sequential reads share one request."""

    def __init__(self, url: str, start: int = 0) -> None:
        self.url = url
        self.size = start
        self.ranges = True
        self._position = start
        self._open: Response | None = None
        self._blocks: Iterator[bytes] = iter(())
        self._ahead = b""
        self._ahead = self._next_or_retry()

    def _request(self) -> None:
        """Request all bytes from the position on; from a server without ranges, drop the bytes before it."""
        from build.official import pip_session  # late: it imports pip

        headers = {"Range": f"bytes={self._position}-", "Accept-Encoding": "identity"}
        headers["Cache-Control"] = "no-cache"
        self._open = response = pip_session.session().get(self.url, headers=headers, stream=True)
        status = response.status_code
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the file ends here
        if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            what = f"{shown(self.url)} answers {status} {response.reason}"
            raise SourceError(what, remedy="check that `pip download` gets it with this configuration")
        self.ranges = status == HTTPStatus.PARTIAL_CONTENT
        length = response.headers["Content-Range"] if self.ranges else response.headers["Content-Length"]
        self.size = int(length.rpartition("/")[2])
        self._blocks = response.iter_content(_BLOCK)
        skipped = 0 if self.ranges else self._position
        while skipped > 0:
            block = next(self._blocks)
            self._ahead, skipped = block[skipped:], skipped - len(block)

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open, self._blocks, self._ahead = None, iter(()), b""

    def _next(self) -> bytes:
        if self._open is None:
            self._request()
        block, self._ahead = self._ahead or next(self._blocks, b""), b""
        if not block and self._position < self.size:
            raise _BrokenOffError("the server ended its answer early")
        return block

    def _next_or_retry(self) -> bytes:
        """Return the next bytes; request them again, up to `ATTEMPTS` times, when the connection breaks."""
        from build.official import pip_session  # late: it imports pip

        left = ATTEMPTS
        while True:
            connected = self._open is not None
            try:
                return self._next()
            except (*pip_session.BROKEN, _BrokenOffError, StopIteration) as error:
                left -= 1
                # The session itself retries connections that cannot be made.
                connected = connected or self._open is not None
                self._drop()
                if not left or not connected:
                    raise unreachable(self.url, error) from None
                log.warning("%s broke off: %r; %d attempts left", shown(self.url), error, left)

    def close(self) -> None:
        self._drop()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.ranges

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        target = max(0, origin + offset)
        if target != self._position:
            self._drop()
        self._position = target
        return target

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self.size:
            return 0
        if not self._ahead:
            self._ahead = self._next_or_retry()
        taken = min(len(buffer), len(self._ahead))
        buffer[:taken] = self._ahead[:taken]
        self._ahead = self._ahead[taken:]
        self._position += taken
        return taken


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """Open a `file:` or `http(s):` URL for random reading; RangeUnsupportedError if the server cannot do it."""
    local = local_path(url)
    if local is not None:
        with local.open("rb") as stream:
            yield stream
        return
    with RemoteFile(url) as raw, io.BufferedReader(raw, CHUNK) as reader:
        if not raw.ranges:
            raise RangeUnsupportedError(f"{shown(url)} cannot be read in parts: its server sends whole files only")
        yield reader


def check_digest(path: Path, expected: str, name: str) -> None:
    """Compare a file with its pinned SHA-256; if they differ, remove the file and raise DigestMismatchError."""
    found = sha256_of(path)
    if found == expected:
        return
    path.unlink()
    raise DigestMismatchError(
        f"{name}: SHA-256 is not the pinned one\npinned {expected}\nfound  {found}",
        cause="the file was replaced, altered on the way, or the pin in build/releases.toml is wrong",
        remedy="the file was removed; compare with the publisher's digest before changing the pin",
    )


def download(url: str, final: Path, sha256: str) -> Path:
    """Fetch `url` (`http(s):` or `file:`) to `final`, resuming the `.part` file of an interrupted run.

    `final` appears only when it is complete and has the pinned digest.

    Raises:
        DigestMismatchError: the file is not the pinned one.
        EnvironmentUnfitError: the host cannot be reached.
        SourceError: the server refuses.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(final.name + ".part")
    local = local_path(url)
    if local is not None or part.is_symlink() or not part.is_file():
        clear(part)
    resumed = part.exists()
    if local is not None:
        shutil.copyfile(local, part)
    else:
        # Append the missing bytes of the file at `url` to `part`.
        have = part.stat().st_size if part.exists() else 0
        with RemoteFile(url, have) as remote, part.open("ab") as out, progress() as bar:
            task = bar.add_task(final.name, total=remote.size / 1e6, completed=have // 1_000_000)
            while block := remote.read(_BLOCK):
                out.write(block)
                bar.advance(task, len(block) / 1e6)
    try:
        check_digest(part, sha256, final.name)
    except DigestMismatchError:
        if not resumed:
            raise
        note(f"{final.name}: the part that an earlier run left is damaged; fetched from the start")
        return download(url, final, sha256)
    clear(final)
    part.replace(final)
    return final
