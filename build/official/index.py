"""The files that the package indexes offer, by pip's settings: see `build.official.pip_session`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from build.official.urls import local_path, unreachable


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
        """Return whether this is a wheel for x86_64 Linux and CPython `python` (e.g. `3.11`), or for any Python."""
        short = "cp" + python.replace(".", "")
        return any(
            tag.platform == "any" or (tag.platform.endswith("_x86_64") and "linux" in tag.platform)
            for tag in parse_wheel_filename(self.name)[3]
            if (tag.interpreter, tag.abi) == (short, short) or tag.interpreter.startswith("py")
        )


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
    from build.official import pip_session  # late: it imports pip

    links = (link for link in pip_session.links(project) if _is_wheel_of(link.filename, project))
    made = (IndexFile(link.filename, link.url_without_fragment, link._hashes.get("sha256", "")) for link in links)
    return tuple(dict.fromkeys(made))


def wheels(project: str, version: str, python: str) -> tuple[IndexFile, ...]:
    """Return the x86_64 Linux wheels of one version for CPython `python`, in the order of `files`."""
    return tuple(file for file in files(project) if file.version == version and file.fits(python))


def index_problem(timeout: int) -> str:
    """Return why the first remote index does not answer within `timeout` seconds; empty when it does."""
    from build.official import pip_session  # late: it imports pip

    url = next((url for url in pip_session.collector().search_scope.index_urls if local_path(url) is None), None)
    try:
        if url is not None:
            pip_session.session(retries=0, timeout=timeout).head(url.rstrip("/") + "/")
    except pip_session.BROKEN as error:
        return unreachable(url or "", error).what
    return ""
