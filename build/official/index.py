"""The files that the package indexes offer, read with pip's own session and settings.

pip is imported, not run as a command: its session and its link collector apply every setting of this machine (indexes,
`find-links`, `trusted-host`, `cert`, `client-cert`, `proxy`, keyring, `~/.netrc`), and the same session then reads
single members of a remote wheel, for which pip has no command.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from optparse import Values
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pip._internal.commands.download import DownloadCommand
from pip._internal.exceptions import PipError
from pip._internal.index.collector import IndexContent, LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._internal.network.session import PipSession
from pip._vendor.requests import RequestException
from pip._vendor.urllib3.exceptions import HTTPError

from build.console import log, note
from build.errors import EnvironmentUnfitError, SourceError

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
#: A session raises one of these when a connection fails or breaks; which one depends on the version of pip.
BROKEN = (RequestException, HTTPError, PipError)
NOT_FOUND = 404


class _Notes(logging.Handler):
    """Shows pip's warnings: an ignored index, a connection that is tried again."""

    def emit(self, record: logging.LogRecord) -> None:
        # An index on disk causes a warning for each project that it does not have: to the log only.
        show = log.info if record.name.endswith(".sources") else note
        show(f"pip: {record.getMessage()}")


@cache
def _pip() -> tuple[DownloadCommand, Values]:
    """Return pip's `download` command with its options from pip's configuration files and variables.

    Raises:
        EnvironmentUnfitError: the configuration cannot be read; pip has printed why.
    """
    command = DownloadCommand("download", "")
    try:
        options, _ = command.parse_args([])
    except SystemExit:
        raise EnvironmentUnfitError(
            "pip's configuration cannot be used",
            cause="a configuration file or a PIP_ variable has an error; pip's message is above",
            remedy="run `pip config debug` to see which files are read, and correct the setting",
        ) from None
    options.cache_dir = None  # The project's cache keeps the files; pip's would keep them a second time.
    logger = logging.getLogger("pip")
    logger.handlers = [_Notes(logging.WARNING)]
    logger.propagate = False
    return command, options


@cache
def session(retries: int | None = None, timeout: int | None = None) -> PipSession:
    """Return an HTTP session with pip's settings; `retries` and `timeout` (seconds without an answer) replace pip's."""
    command, options = _pip()
    made = command._build_session(options, retries=retries, timeout=timeout)
    made.auth.prompting = made.auth.prompting and sys.stdin is not None and sys.stdin.isatty()
    return made


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A wheel that an index or a `find-links` folder offers; `sha256` is empty where the place gives none."""

    name: str
    url: str
    sha256: str

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.name)[1])

    def fits(self, python: str) -> bool:
        """Whether this is a wheel for x86_64 Linux and CPython `python` (e.g. `3.11`), or for any Python."""
        short = "cp" + python.replace(".", "")
        return any(
            tag.platform == "any" or (tag.platform.endswith("_x86_64") and "linux" in tag.platform)
            for tag in parse_wheel_filename(self.name)[3]
            if (tag.interpreter, tag.abi) == (short, short) or tag.interpreter.startswith("py")
        )


def local_path(url: str) -> Path | None:
    """Return the file or folder that a `file:` URL names, None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def shown(url: str) -> str:
    """Return `url` without credentials, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def unreachable(url: str, error: Exception) -> EnvironmentUnfitError:
    reason = str(error.__cause__ or error.__context__ or error) or type(error).__name__
    untrusted = "certificate" in reason.lower()
    return EnvironmentUnfitError(
        f"{shown(url)} cannot be reached: {reason}",
        cause="this machine does not trust its certificate, or it asks for one of this machine's"
        if untrusted
        else "no network, a proxy that is not configured, or an index that is down",
        remedy="set pip's `cert`, `client-cert` or `trusted-host` (`pip config list` shows them)"
        if untrusted
        else "check the network and pip's `index-url` and `proxy` settings (`pip config list`)",
    )


def _page(link: Link) -> Iterator[Link]:
    """Yield the links of a page; none when the index does not know the project."""
    url = link.url_without_fragment
    local = local_path(url)
    if local is not None and local.is_dir():
        url, local = f"{url.rstrip('/')}/index.html", local / "index.html"
    if local is not None and not local.is_file():
        return
    try:
        response = session().get(url, headers={"Accept": ACCEPT})
    except BROKEN as error:
        raise unreachable(url, error) from None
    if response.status_code == NOT_FOUND:
        return
    if not response.ok:
        raise SourceError(
            f"{shown(url)} answers {response.status_code} {response.reason}",
            cause="the index wants credentials, or it is out of order",
            remedy="check that `pip download` works with this configuration",
        )
    kind = response.headers.get("Content-Type", "text/html")
    yield from parse_links(IndexContent(response.content, kind, None, response.url, cache_link_parsing=False))


def _collector() -> LinkCollector:
    return LinkCollector.create(session(), options=_pip()[1])


def _links(project: str) -> Iterator[Link]:
    """Yield what the `find-links` places and then the indexes offer, in pip's order."""
    found = _collector().collect_sources(canonicalize_name(project), candidates_from_page=_page)
    for source in (*found.find_links, *found.index_urls):
        if source is not None:
            yield from source.page_candidates()
            yield from source.file_links()


def _is_wheel_of(name: str, project: str) -> bool:
    try:
        return parse_wheel_filename(name)[0] == canonicalize_name(project)
    except InvalidWheelFilename:
        return False


@cache
def files(project: str) -> tuple[IndexFile, ...]:
    """Return the wheels of `project` that the configured folders and indexes offer, in pip's order.

    Raises:
        EnvironmentUnfitError: an index cannot be reached.
        SourceError: an index refuses to answer.
    """
    links = (link for link in _links(project) if _is_wheel_of(link.filename, project))
    made = (IndexFile(link.filename, link.url_without_fragment, link._hashes.get("sha256", "")) for link in links)
    return tuple(dict.fromkeys(made))


def wheels(project: str, version: str, python: str) -> tuple[IndexFile, ...]:
    """Return the x86_64 Linux wheels of one version for CPython `python`, in the order of `files`."""
    return tuple(file for file in files(project) if file.version == version and file.fits(python))


def index_problem(timeout: int) -> str:
    """Return why the first remote index does not answer within `timeout` seconds; empty when it does."""
    url = next((url for url in _collector().search_scope.index_urls if local_path(url) is None), None)
    try:
        if url is not None:
            session(retries=0, timeout=timeout).head(url.rstrip("/") + "/")
    except BROKEN as error:
        return unreachable(url or "", error).what
    return ""


def forget() -> None:
    """Read pip's settings and the indexes again at the next call."""
    for cached in (_pip, session, files):
        cached.cache_clear()
