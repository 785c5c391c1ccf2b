"""The PyTorch releases this project knows, typed and validated on load (`build/releases.toml`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

from build.errors import ReleaseDataError, UnknownReleaseError

RELEASES_TOML = Path(__file__).with_name("releases.toml")

#: A commit, a git blob or a GNU build id; the digest of a file; a text that says something.
Id: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Text: TypeAlias = Annotated[str, Meta(pattern=r"\S")]


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the records read from TOML: immutable, and a misspelt key is an error."""


class HeaderPackage(Frozen, frozen=True):
    """A package of the index that carries headers the units include.

    Attributes:
        reason: why it is needed, and why in this version.
        headers_sha256: digest of its headers (`build.official.headers.tree_digest`): only they are fetched.
    """

    name: str
    version: str
    reason: str
    headers_sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""


class Define(Frozen, frozen=True):
    """A macro of the compile line, `NAME` or `NAME=VALUE`, and the line of the release that sets it.

    Attributes:
        units: the only units that it is set for; empty: all of them.
    """

    macro: str
    reason: str
    units: tuple[str, ...] = ()


class Unit(Frozen, frozen=True):
    """A translation unit of the overlay that neither a patch nor the linker requires."""

    path: str
    reason: str


class DebianSource(Frozen, frozen=True):
    """A Debian source package whose orig tarball holds the release's torch code.

    Attributes:
        version: version of the source package without its Debian revision, e.g. `2.6.0+dfsg`.
        suite: the suite that has it.
    """

    version: str
    suite: str
    orig_sha256: Digest
    package: str = "pytorch"


class OfficialWheel(Frozen, frozen=True):
    """Facts of the official wheel on the package index, read from the wheel itself.

    Attributes:
        version: its metadata version (`2.6.0`).
        local: the local label in `torch.__version__` (`cu124`).
        pythons: CPython versions with a wheel, e.g. `3.11`.
        cxx11_abi: `torch._C._GLIBCXX_USE_CXX11_ABI`.
        nccl: version of NCCL that it was built with and requires.
        cuda: `torch.version.cuda`.
        libtorch_cuda_build_ids: GNU build id of `torch/lib/libtorch_cuda.so` per CPython version: measured,
            each wheel up to 2.9.1 has its own build, those of 2.15.0 share one.
        sha256: digest of the wheel file per CPython version.
    """

    version: str
    local: str
    pythons: tuple[str, ...]
    cxx11_abi: bool
    nccl: str
    cuda: str
    libtorch_cuda_build_ids: dict[str, Id]
    sha256: dict[str, Digest]


class Release(Frozen, frozen=True):
    """One PyTorch release.

    Attributes:
        version: e.g. `2.6.0`; the key of its entry.
        commit: the upstream tag's commit; the wheel's `torch.version.git_version` names it.
        patch_level: the `N` of `mwN` in the patched wheel's version; increased when the series changes.
        label: takes the place of `mwN` in wheels of patches of a user; no entry of the file has one.
        cxx_standard: as the release's CMakeLists.txt sets it.
        min_gcc: the oldest g++ that compiles the release's headers.
        header_packages: packages with the headers that neither wheel nor tree has.
        extra_units: units beyond the patched ones and the computed closure.
        blobs: git blob ids of the patched files: a source of unknown origin is accepted when they match.
    """

    version: str
    tag: str
    commit: Id
    wheel: OfficialWheel
    patch_level: int = 1
    label: str = ""
    series: tuple[str, ...] = ()
    cxx_standard: int = 17
    min_gcc: int = 9
    defines: tuple[Define, ...] = ()
    header_packages: tuple[HeaderPackage, ...] = ()
    extra_units: tuple[Unit, ...] = ()
    debian: DebianSource | None = None
    blobs: dict[str, Id] = {}
    notes: str = ""

    @property
    def patched_version(self) -> str:
        """Version of the patched wheel, e.g. `2.6.0+cu124.mw1`."""
        return f"{self.version}+{self.wheel.local}.{self.label or f'mw{self.patch_level}'}"


def parse(text: bytes, origin: str) -> dict[str, Release]:
    """Validate the bytes of a releases file called `origin`; return its releases by version, oldest first.

    Raises:
        ReleaseDataError: not TOML, a field of the wrong type, or an invalid value.
    """
    key, found = "", {}
    try:
        for key, entry in msgspec.toml.decode(text, type=dict[str, dict[str, object]])["release"].items():
            found[key] = msgspec.convert(entry, Release)
            _check(key, found[key])
        return {key: found[key] for key in sorted(found, key=Version)}
    except (msgspec.DecodeError, InvalidVersion, KeyError, ValueError) as error:
        where = f"{origin}: release {key}" if key else origin
        raise ReleaseDataError(f"{where} is not valid: {error}", remedy="correct the entry it names") from None


def _check(key: str, release: Release) -> None:
    """Raise ValueError for an entry that contradicts itself."""
    if release.version != key:
        raise ValueError(f"version {release.version!r} is under the key {key!r}")
    wheel = release.wheel
    if strangers := sorted((set(wheel.sha256) | set(wheel.libtorch_cuda_build_ids)) - set(wheel.pythons)):
        raise ValueError(f"a digest or build id for Python {', '.join(strangers)}, which `pythons` does not list")


@cache
def load() -> dict[str, Release]:
    return parse(RELEASES_TOML.read_bytes(), RELEASES_TOML.name)


def nearest(version: str, known: list[str]) -> list[str]:
    """Return `known` ordered by distance to `version`; unordered if `version` is not a version."""

    def number(text: str) -> int:
        release = Version(text)
        return (100 * release.major + release.minor) * 100 + release.micro

    try:
        return sorted(known, key=lambda item: abs(number(item) - number(version)))
    except InvalidVersion:
        return known


def get(version: str) -> Release:
    """Return the entry of `version`.

    Raises:
        UnknownReleaseError: it is not known; the message lists the known releases, nearest first.
    """
    known = load()
    if version in known:
        return known[version]
    remedy = "use one of, nearest first: " + ", ".join(nearest(version, list(known)))
    raise UnknownReleaseError(f"release {version!r} is not known: build/releases.toml has no entry", remedy=remedy)
