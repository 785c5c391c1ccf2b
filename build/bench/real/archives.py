"""Fetch the tarballs of source packages from this machine's Debian mirror, each checked against its pinned digest."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from build import paths
from build.bench.real.packages import Package, Source
from build.console import note, progress, step
from build.errors import SourceError
from build.official.transfer import check_digest
from build.seals import is_file
from build.sources import debian


def place(name: str) -> Path:
    """Return the path of a tarball in the cache, which need not exist."""
    return paths.cache("porting-bench", "archives") / name


def fetch(packages: Sequence[Package]) -> list[Package]:
    """Fetch what is missing, and return the packages that are there; what cannot be had is said and left out.

    Raises:
        NotDebianError: apt is missing, or this is another distribution.
        SourceError: no mirror has the suites.
    """
    missing = [item for item in packages if not (_here(item.old) and _here(item.new))]
    if not missing:
        return list(packages)
    suites = list(dict.fromkeys(source.suite for item in missing for source in (item.old, item.new)))
    with tempfile.TemporaryDirectory(prefix="multiworld-apt-") as folder, progress() as bar:
        state = _prepared(Path(folder), suites)
        task = bar.add_task("fetching sources", total=len(missing), unit="packages")
        for item in missing:
            _get(state, item)
            bar.advance(task)
    return [item for item in packages if _here(item.old) and _here(item.new)]


def discard(package: Package) -> None:
    """Remove a package's tarballs, which are large."""
    for archive in package.archives:
        place(archive.name).unlink(missing_ok=True)


def _here(source: Source) -> bool:
    return all(is_file(place(item.name), item.sha256) for item in source.archives)


def _prepared(folder: Path, suites: Sequence[str]) -> Path:
    """Return apt's private state, with the source indexes of `suites`."""
    reasons = []
    for number, mirror in enumerate(debian.mirrors()):
        state = folder / str(number)
        step(f"reading the source indexes of Debian {', '.join(suites)}")
        try:
            debian.prepare(state, mirror, suites)
        except SourceError as error:
            reasons.append(str(error))
            continue
        return state
    raise SourceError(f"no mirror has the sources of {', '.join(suites)}", cause="\n".join(reasons))


def _get(state: Path, package: Package) -> None:
    try:
        for source in (package.old, package.new):
            if not _here(source):
                _download(state, package.name, source)
    except SourceError as error:
        note(f"left out: {package.title}: {str(error).splitlines()[0]}")


def _download(state: Path, name: str, source: Source) -> None:
    """Fetch upstream's tarball and Debian's; the digests are pinned, so that the signed `.dsc` is not needed."""
    for option, item in (("--tar-only", source.orig), ("--diff-only", source.debian)):
        folder = debian.download(state, f"{name}={source.version}", option)
        if not (folder / item.name).is_file():
            raise SourceError(f"{name} {source.version} has no {item.name}")
        check_digest(folder / item.name, item.sha256, item.name)
        (folder / item.name).replace(place(item.name))
