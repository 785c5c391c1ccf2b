"""The requirements of an installation, with the hash of every file, resolved once for all hosts of a kind."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from build.bootstrap import uv_settings
from build.errors import EnvironmentUnfitError, UsageError
from build.process import run
from build.seals import sha256_of

#: The versions of glibc for which uv knows a platform.
_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
#: A requirement of pip's format: a line that begins with a name, and those that a backslash joins to it.
_ENTRY = re.compile(r"^\w(?:.*\\\n)*.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a host that decide on its wheels: Python (`3.11`), machine (`x86_64`) and glibc (`2.36`)."""

    python: str
    machine: str
    glibc: str

    @property
    def platform(self) -> str:
        """uv's name of the newest platform that the host is compatible with."""
        minor = int(self.glibc.partition(".")[2] or 0)
        fits = [known for known in _GLIBC if known <= minor]
        return f"{self.machine}-manylinux_2_{fits[-1]}" if fits else f"{self.machine}-unknown-linux-gnu"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A resolved release: its name, its requirements with hashes, and the wheels to send, by name."""

    name: str
    requirements: str
    wheels: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """The request of the administrator.

    Attributes:
        specs: requirements to resolve, e.g. `torch==2.6.0+cu124.mw5`.
        requirements: a file with hashed requirements instead.
        indexes: package indexes that resolver and hosts use, the first instead of the default one.
        folder: wheels that are sent to the hosts.
    """

    specs: tuple[str, ...] = ()
    requirements: Path | None = None
    indexes: tuple[str, ...] = ()
    folder: Path | None = None

    @cached_property
    def offered(self) -> dict[str, str]:
        """SHA-256 of the wheels in the folder, by name.

        Raises:
            UsageError: the folder has no wheels.
        """
        if self.folder is None:
            return {}
        found = {path.name: sha256_of(path) for path in sorted(self.folder.glob("*.whl"))}
        if not found:
            raise UsageError(f"{self.folder} has no wheels", remedy="name the folder that holds the *.whl files")
        return found

    @property
    def named(self) -> tuple[str, ...]:
        """The distributions that were asked for, whose versions tables show."""
        entries = [entry.split()[0] for entry in _ENTRY.findall(self._text())] if self.requirements else self.specs
        return tuple(str(canonicalize_name(_requirement(entry).name)) for entry in entries)

    @property
    def pip(self) -> list[str]:
        """Arguments for pip on the hosts: without an index and with a folder they need no network."""
        if not self.indexes:
            return ["--no-index"] if self.folder else []
        # Hashes, not the transport, tell whether a file is the right one, so plain HTTP inside a cluster is enough.
        plain = [part.netloc.rpartition("@")[2] for part in map(urlsplit, self.indexes) if part.scheme == "http"]
        trusted = [word for host in dict.fromkeys(plain) for word in ("--trusted-host", host)]
        return [*_indexes(self.indexes, "--index-url", "--extra-index-url"), *trusted]

    def check(self) -> None:
        """Raise UsageError for what can be seen to be wrong before any host is asked."""
        if bool(self.specs) == bool(self.requirements):
            raise UsageError("name either what to install or --requirements FILE")
        if self.requirements is not None:
            _check_hashes(self._text(), self.requirements)
        for spec in self.specs:
            _requirement(spec)
        self.offered  # noqa: B018 - computes the digests once, before threads ask

    def pinned(self, kind: Kind) -> Pinned:
        """Return the requirements for hosts of one kind.

        Raises:
            EnvironmentUnfitError: they cannot be resolved for that kind.
        """
        text = self._text() if self.requirements else self._resolved(kind)
        label = self.requirements.stem if self.requirements else _label(text, self.named[0])
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Pinned(f"{label}-{digest[:12]}", text, self._sent(text, kind))

    def _text(self) -> str:
        assert self.requirements is not None  # noqa: S101
        try:
            return self.requirements.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.requirements} cannot be read: {error}", remedy="name another file") from None

    def _resolved(self, kind: Kind) -> str:
        options = ["--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:"]
        options += ["--python-version", kind.python, "--python-platform", kind.platform, "--no-python-downloads"]
        done = run(
            [uv.find_uv_bin(), "pip", "compile", "-", *options, *self._sources()],
            stdin="\n".join(self.specs).encode(),
            env={} if self.indexes or self.folder else uv_settings(),
        )
        if done.returncode:
            raise EnvironmentUnfitError(
                f"{', '.join(self.specs)} cannot be resolved for Python {kind.python} on {kind.platform}",
                cause=done.tail,
                remedy="check name and version, and what --index and --wheels offer",
            )
        return done.stdout.decode()

    def _sources(self) -> list[str]:
        found = ["--find-links", str(self.folder)] if self.folder else []
        if self.indexes:
            found += _indexes(self.indexes, "--default-index", "--index")
            return [*found, "--index-strategy", "unsafe-best-match"]  # as pip does: the best version of all indexes
        return [*found, "--no-index"] if self.folder else found

    def _sent(self, text: str, kind: Kind) -> dict[str, Path]:
        hashes = set(_HASH.findall(text))
        folder = self.folder or Path()
        return {
            name: folder / name
            for name, digest in self.offered.items()
            if digest in hashes and _fits(name, kind.python)
        }


def _indexes(urls: tuple[str, ...], first: str, more: str) -> list[str]:
    return [first, urls[0], *(word for url in urls[1:] for word in (more, url))]


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise UsageError(
            f"{text!r} is not a requirement: {error}", remedy="write it as for pip, NAME==VERSION"
        ) from None


def _check_hashes(text: str, path: Path) -> None:
    entries = _ENTRY.findall(text)
    bare = [entry.split()[0] for entry in entries if not _HASH.search(entry)]
    if bare or not entries:
        raise UsageError(
            f"{path} has no hashes for {', '.join(bare) or 'anything'}",
            remedy="make it with `uv pip compile --generate-hashes`, or name the requirements themselves",
        )


def _label(text: str, name: str) -> str:
    """Return `NAME-VERSION` of the first distribution that was asked for."""
    for entry in _ENTRY.findall(text):
        requirement = _requirement(entry.split(";")[0].split("\\")[0].split("--hash")[0].strip())
        if canonicalize_name(requirement.name) == name:
            return f"{name}-{str(requirement.specifier).lstrip('=')}"
    return name


def _fits(name: str, python: str) -> bool:
    """Tell if a wheel may be for CPython `python`, e.g. `3.11`; pip on the host judges the rest of its tags."""
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return False
    own = f"cp{python.replace('.', '')}"
    return any(tag.interpreter in (own, "py3") or tag.abi in (own, "abi3") for tag in tags)
