"""The package index: which files a project has, with their digests (PEP 503 HTML and PEP 691 JSON)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from build.errors import SourceError
from build.official.pipconf import index_urls, local_path, wheel_folders
from build.official.transfer import client, shown, unreachable

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file the index offers; `sha256` is empty where the index does not say."""

    name: str
    url: str
    sha256: str
    yanked: bool

    @property
    def version(self) -> str | None:
        """Version of a wheel, None for anything else."""
        try:
            return str(parse_wheel_filename(self.name)[1])
        except InvalidWheelFilename:
            return None

    def fits(self, python: str) -> bool:
        """Whether this is a wheel for x86_64 Linux and CPython `python` (e.g. `3.11`), or for any Python."""
        try:
            tags = parse_wheel_filename(self.name)[3]
        except InvalidWheelFilename:
            return False
        short = "cp" + python.replace(".", "")
        return any(
            tag.platform == "any" or (tag.platform.endswith("_x86_64") and "linux" in tag.platform)
            for tag in tags
            if (tag.interpreter, tag.abi) == (short, short) or tag.interpreter.startswith("py")
        )


class _Anchors(HTMLParser):
    """Collect the anchors of a simple page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the attributes of each `<a>`."""
        if tag == "a":
            self.found.append(dict(attrs))


def _from_html(page: str, base: str) -> list[IndexFile]:
    parser = _Anchors()
    parser.feed(page)
    files = []
    for anchor in parser.found:
        url, fragment = urldefrag(urljoin(base, anchor.get("href") or ""))
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        files.append(IndexFile(name, url, digest, "data-yanked" in anchor))
    return files


class _JsonFile(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False


class _JsonPage(msgspec.Struct):
    files: list[_JsonFile]


def _from_json(page: bytes, base: str) -> list[IndexFile]:
    return [
        IndexFile(item.filename, urljoin(base, item.url), item.hashes.get("sha256", ""), item.yanked is not False)
        for item in msgspec.json.decode(page, type=_JsonPage).files
    ]


def _page(index: str, project: str) -> list[IndexFile]:
    """Return what one index has of `project`; nothing when it does not know it."""
    url = f"{index}/{canonicalize_name(project)}/"
    local = local_path(index)
    if local is not None:
        page = local / canonicalize_name(project) / "index.html"
        return _from_html(page.read_text("utf-8"), page.resolve().as_uri()) if page.is_file() else []
    try:
        response = client().get(url, headers={"Accept": ACCEPT})
    except httpx.TransportError as error:
        raise unreachable(url, error) from None
    if response.status_code == httpx.codes.NOT_FOUND:
        return []
    if response.is_error:
        raise SourceError(f"{shown(url)} answers {response.status_code}", cause="the index wants credentials or is ill")
    if "json" in response.headers.get("content-type", ""):
        return _from_json(response.content, str(response.url))
    return _from_html(response.text, str(response.url))


def _from_folder(folder: Path, project: str) -> list[IndexFile]:
    """Return the wheels of `project` in a `find-links` folder."""
    prefix = canonicalize_name(project).replace("-", "_") + "-"
    return [
        IndexFile(path.name, path.resolve().as_uri(), "", yanked=False)
        for path in sorted(folder.iterdir())
        if path.suffix == ".whl" and path.name.lower().replace("-", "_").startswith(prefix.replace("-", "_"))
    ]


@cache
def files(project: str) -> tuple[IndexFile, ...]:
    """Return what the configured folders and indexes have of `project`, in this order.

    Raises:
        EnvironmentUnfitError: an index cannot be reached.
    """
    found = [file for folder in wheel_folders() for file in _from_folder(folder, project)]
    for index in index_urls():
        found += _page(index, project)
    return tuple(found)


def wheels(project: str, version: str, python: str) -> tuple[IndexFile, ...]:
    """Return the x86_64 Linux wheels of one version for CPython `python`, in the order of `files`."""
    return tuple(file for file in files(project) if file.version == version and file.fits(python))
