"""The source packages of the benchmark: names, versions and digests of what is downloaded, in `packages.toml`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from build.releases import Frozen

LIST = Path(__file__).with_name("packages.toml")


class Archive(Frozen, frozen=True):
    """One tarball of a source package: its file name and SHA-256."""

    name: str
    sha256: str


class Source(Frozen, frozen=True):
    """A source package of one suite: its full version, upstream's tarball, and Debian's with the patches."""

    suite: str
    version: str
    orig: Archive
    debian: Archive

    @property
    def archives(self) -> tuple[Archive, Archive]:
        return self.orig, self.debian


class Package(Frozen, frozen=True):
    """A source package in two suites."""

    name: str
    old: Source
    new: Source

    @property
    def title(self) -> str:
        return f"{self.name}, {self.old.suite} to {self.new.suite}"

    @property
    def archives(self) -> tuple[Archive, ...]:
        return self.old.archives + self.new.archives


class _List(Frozen, frozen=True):
    package: tuple[Package, ...]


def load(path: Path = LIST) -> tuple[Package, ...]:
    """Return the packages, in the order of the list."""
    return msgspec.toml.decode(path.read_bytes(), type=_List).package
