"""Bytes over HTTP: one client with the machine's settings, and downloads that resume."""

from __future__ import annotations

import netrc
import shutil
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import certifi
import httpx

from build.console import log, note, progress
from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError
from build.official.pipconf import local_path, setting
from build.paths import clear
from build.seals import sha256_of

#: Connecting gives up soon, so that a machine without network is told so; a stalled read is retried.
TIMEOUT = httpx.Timeout(60.0, connect=15.0)
ATTEMPTS = 5
CHUNK = 1 << 20

T = TypeVar("T")


def _verification() -> ssl.SSLContext:
    """Return the trust store: pip's `cert`, else the system's with certifi's beside it."""
    chosen = setting("cert")
    if chosen:
        return ssl.create_default_context(cafile=chosen)
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _credentials() -> httpx.Auth | None:
    """Return `~/.netrc` as a source of credentials; those of a URL itself come first."""
    try:
        return httpx.NetRCAuth()
    except (FileNotFoundError, netrc.NetrcParseError):
        return None


@cache
def client() -> httpx.Client:
    """Return the one HTTP client: proxies of the environment or of pip, its certificates, `~/.netrc`."""
    return httpx.Client(
        timeout=TIMEOUT,
        follow_redirects=True,
        verify=_verification(),
        proxy=setting("proxy"),
        auth=_credentials(),
        limits=httpx.Limits(max_connections=8),
    )


def shown(url: str) -> str:
    """Return `url` without credentials, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def unreachable(url: str, error: Exception) -> EnvironmentUnfitError:
    """Return the error for a host that cannot be reached."""
    return EnvironmentUnfitError(
        f"{shown(url)} cannot be reached: {error or type(error).__name__}",
        cause="no network, a proxy that is not configured, or an index that is down",
        remedy="check the network and pip's `index-url`, `proxy` and `cert` settings (`pip config list`)",
    )


def retried(url: str, action: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Return what `action` returns, trying again when the connection breaks.

    Args:
        url: what it fetches, for messages.
        action: one request; it may go on where an earlier one broke off.
        attempts: how often it may be tried in all.

    Raises:
        EnvironmentUnfitError: no connection, or the last attempt broke too.
    """
    try:
        return action()
    except httpx.TransportError as error:
        if attempts <= 1 or isinstance(error, httpx.ConnectError):
            raise unreachable(url, error) from None
        log.warning("%s broke off: %r; %d attempts left", shown(url), error, attempts - 1)
    return retried(url, action, attempts - 1)


def check_digest(path: Path, expected: str, name: str) -> None:
    """Compare a file with its pinned SHA-256.

    Raises:
        DigestMismatchError: they differ; the message has both values, and the file is removed.
    """
    found = sha256_of(path)
    if found == expected:
        return
    path.unlink()
    raise DigestMismatchError(
        f"{name}: SHA-256 is not the pinned one\npinned {expected}\nfound  {found}",
        cause="the file was replaced, altered on the way, or the pin in build/releases.toml is wrong",
        remedy="nothing was kept; compare with the publisher's digest before changing the pin",
    )


def _copy_body(response: httpx.Response, part: Path, label: str) -> None:
    """Append the body of `response` to `part`, or start it anew when the server sent the whole file."""
    start = part.stat().st_size if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
    total = start + int(response.headers.get("content-length", 0))
    with part.open("ab" if start else "wb") as out, progress() as bar:
        task = bar.add_task(label, total=total / 1e6 or None, completed=int(start / 1e6), unit="MB")
        # As they come: what a fixed size still holds back is lost when the connection breaks.
        for block in response.iter_raw():
            out.write(block)
            bar.advance(task, len(block) / 1e6)


def _attempt(url: str, part: Path, label: str) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {"Accept-Encoding": "identity"}
    with client().stream("GET", url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # already complete: the digest decides
        response.raise_for_status()
        _copy_body(response, part, label)


def download(url: str, final: Path, sha256: str) -> Path:
    """Fetch `url` to `final`, resuming what an earlier run left.

    Args:
        url: `http(s):` or `file:`.
        final: its place, which appears only complete and verified; a `.part` file beside it holds the rest.
        sha256: the pinned digest.

    Raises:
        DigestMismatchError: the file is not the pinned one.
        EnvironmentUnfitError: the host cannot be reached.
        SourceError: the server refuses.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(final.name + ".part")
    if part.is_symlink() or not part.is_file():
        clear(part)
    resumed = part.exists() and local_path(url) is None
    try:
        _fetch_part(url, part, final.name, sha256)
    except DigestMismatchError:
        if not resumed:
            raise
        note(f"{final.name}: what an earlier run has left of it was damaged; fetched from its start")
        _fetch_part(url, part, final.name, sha256)
    clear(final)
    part.replace(final)
    return final


def _fetch_part(url: str, part: Path, name: str, sha256: str) -> None:
    local = local_path(url)
    if local is not None:
        shutil.copyfile(local, part)
    else:
        _download_to(url, part, name)
    check_digest(part, sha256, name)


def _download_to(url: str, part: Path, label: str) -> None:
    try:
        retried(url, lambda: _attempt(url, part, label))
    except httpx.HTTPStatusError as error:
        raise SourceError(
            f"{shown(url)} answers {error.response.status_code} {error.response.reason_phrase}",
            cause="the file is not there, or the index wants credentials",
            remedy="see whether `pip download` gets it with this configuration",
        ) from None
