"""pip's own session and settings: the only module that imports pip, which takes longer than all the rest.

pip is imported, not run as a command: its session and its link collector apply every setting of this machine (indexes,
`find-links`, `trusted-host`, `cert`, `client-cert`, `proxy`, keyring, `~/.netrc`), and the same session then reads
single members of a remote wheel, for which pip has no command. Import this module where it is used, in a function.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import cache
from optparse import Values

from packaging.utils import canonicalize_name
from pip._internal.commands.download import DownloadCommand
from pip._internal.exceptions import PipError
from pip._internal.index.collector import IndexContent, LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._internal.network.session import PipSession
from pip._vendor.requests import RequestException, Response
from pip._vendor.urllib3.exceptions import HTTPError

from build.console import log, note
from build.errors import EnvironmentUnfitError, SourceError
from build.official.urls import local_path, shown, unreachable

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
    """Return pip's `download` command with its options; EnvironmentUnfitError if they are wrong: pip prints why."""
    command = DownloadCommand("download", "")
    try:
        options, _ = command.parse_args([])
    except SystemExit:
        remedy = "run `pip config debug` to see which files are read, and correct the setting that pip names above"
        raise EnvironmentUnfitError("pip's configuration cannot be used", remedy=remedy) from None
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


def fetched(url: str) -> Response | None:
    """Return the answer of an index; None when it does not have the page."""
    try:
        response = session().get(url, headers={"Accept": ACCEPT})
    except BROKEN as error:
        raise unreachable(url, error) from None
    if response.status_code == NOT_FOUND:
        return None
    if not response.ok:
        what = f"{shown(url)} answers {response.status_code} {response.reason}"
        raise SourceError(what, remedy="check pip's credentials, and that `pip download` works")
    return response


def _page(link: Link) -> Iterator[Link]:
    """Yield the links of a page; none when the index does not know the project."""
    url = link.url_without_fragment
    local = local_path(url)
    if local is not None and local.is_dir():
        url, local = f"{url.rstrip('/')}/index.html", local / "index.html"
    if local is not None and not local.is_file():
        return
    response = fetched(url)
    if response is not None:
        kind = response.headers.get("Content-Type", "text/html")
        yield from parse_links(IndexContent(response.content, kind, None, response.url, cache_link_parsing=False))


def collector() -> LinkCollector:
    return LinkCollector.create(session(), options=_pip()[1])


def links(project: str) -> Iterator[Link]:
    """Yield what the `find-links` places and then the indexes offer, in pip's order."""
    found = collector().collect_sources(canonicalize_name(project), candidates_from_page=_page)
    for source in (*found.find_links, *found.index_urls):
        if source is not None:
            yield from source.page_candidates()
            yield from source.file_links()
