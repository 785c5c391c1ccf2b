"""Debian source packages: the orig tarball, from the machine's own apt mirror with a private apt state."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from build.console import step
from build.errors import SourceError
from build.official.transfer import check_digest
from build.official.urls import shown
from build.process import run
from build.releases import DebianSource, Release
from build.sources.importer import SourceFiles, cache_path, cached_tree
from build.sources.readers import tarball
from build.sources.tree import TreePurpose

#: Where the package debian-archive-keyring keeps the archive's keys.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class NotDebianError(SourceError):
    """This machine has no Debian mirror configured, or the release no Debian package."""


def mirrors() -> tuple[str, ...]:
    """Return the Debian mirrors of this machine's apt configuration, in its order.

    Raises:
        NotDebianError: apt is missing, or this is another distribution.
    """
    if not shutil.which("apt-get"):
        raise NotDebianError("this machine has no apt-get")
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    if system.get("ID") != "debian":
        raise NotDebianError(f"this machine runs {system.get('PRETTY_NAME', 'an unknown system')}, not Debian")
    form = "$(SITE) $(RELEASE) $(COMPONENT)"
    done = run(["apt-get", "indextargets", "--no-release-info", "--format", form, "Created-By: Packages"], timeout=60)
    rows = [row.split() for row in done.stdout.decode().splitlines()]
    code = system.get("VERSION_CODENAME", "")
    found = [row[0] for row in rows if len(row) == 3 and row[1] in (code, "stable") and row[2] == "main"]
    if not found:
        raise NotDebianError("apt is configured with no Debian archive", cause=done.tail if done.returncode else "")
    return tuple(dict.fromkeys(found))


def _apt(state: Path, *arguments: str) -> list[str]:
    """Return an apt-get command that uses only `state`: it needs no root, and does not change the system's lists."""
    options = {
        "Dir::State": state / "state",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Log": state,
        "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "0",
        "Acquire::Retries": "3",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
    }
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    return ["apt-get", "-q", *flags, *arguments]


def prepare(state: Path, mirror: str, suites: Sequence[str]) -> None:
    """Fetch the source indexes of `suites` into `state`, apt's private state.

    Raises:
        SourceError: the mirror does not have them, or they are not signed by Debian.
    """
    for name in ("state", "lists/partial", "cache/archives/partial", "download"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.is_file() else ""
    lines = [f"deb-src {signed}{mirror} {suite} main\n" for suite in suites]
    (state / "sources.list").write_text("".join(lines))
    updated = run(_apt(state, "update"), timeout=600)
    if updated.returncode:
        raise SourceError(f"{mirror}: no index of Debian {', '.join(suites)}", cause=updated.tail)


def download(state: Path, package: str, *options: str) -> Path:
    """Download a source package (`NAME` or `NAME=VERSION`) in a prepared `state`; return the folder with its files.

    Raises:
        SourceError: the mirror does not have it.
    """
    got = run(_apt(state, "source", "--download-only", *options, package), cwd=state / "download", timeout=1800)
    if got.returncode:
        raise SourceError(f"no source of {package}", cause=got.tail)
    return state / "download"


def _download(state: Path, mirror: str, source: DebianSource) -> Path:
    prepare(state, mirror, [source.suite])
    folder = download(state, source.package, "--tar-only")
    pattern = f"{source.package}_{source.version}.orig.tar.*"
    for path in folder.glob(pattern):
        return path
    found = ", ".join(path.name for path in folder.iterdir()) or "nothing"
    raise SourceError(f"Debian {source.suite} has {found} now, not {pattern}")


def _fetched(state: Path, release: Release, source: DebianSource) -> Path:
    reasons = []
    for mirror in mirrors():
        step(f"fetching {source.package} {source.version} (Debian {source.suite}) from {shown(mirror)}")
        try:
            path = _download(state, mirror, source)
        except SourceError as error:
            reasons.append(str(error))
            shutil.rmtree(state)
            continue
        check_digest(path, source.orig_sha256, path.name)
        return path
    raise SourceError(f"no mirror has the Debian source of {release.version}", cause="\n".join(reasons))


def path(release: Release, need: TreePurpose) -> Path | None:
    """Return the path of this source in the cache, which need not exist; None for a release without one."""
    if release.debian is None or need is TreePurpose.FULL:
        return None
    return cache_path(release, f"sha256 {release.debian.orig_sha256}", need)


def fetch(release: Release, need: TreePurpose) -> Path:
    """Return a repository with the release's source from Debian's orig tarball.

    Raises:
        NotDebianError: the release has no package, apt is missing, or this is another distribution.
        DigestMismatchError: the tarball is not the pinned one.
        SourceError: no mirror has it.
        EnvironmentUnfitError: the network cannot be reached.
    """
    source = release.debian
    if source is None:
        raise NotDebianError("no Debian source package of this release is known")
    if need is TreePurpose.FULL:
        raise NotDebianError("Debian's tarball lacks most of third_party, which a full build needs")

    def entries(state: Path) -> SourceFiles:
        yield from tarball(_fetched(state, release, source), need)

    return cached_tree(release, f"sha256 {source.orig_sha256}", need, entries)
