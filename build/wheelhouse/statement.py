"""Provenance of a wheel: an in-toto statement with the predicate of SLSA 1, made from the record of its build."""

from __future__ import annotations

import msgspec

from build.errors import ClaimError
from build.record import Artifact, BuildRecord, Provenance
from build.wheelhouse.intoto import TYPE, Resource

PREDICATE = "https://slsa.dev/provenance/v1"
#: Of a wheel without a record of its build: that its signer publishes these bytes. It has no more to say.
PUBLISHED = "urn:multiworld:published:1"
#: How the parameters are to be read: those of a build of an overlay, as `internalParameters` has them.
BUILD_TYPE = "urn:multiworld:overlay-build:1"
#: Who built it where no CI system says so: nobody but the owner of the signing key vouches for it.
BUILDER = "urn:multiworld:own-machine"
_UPSTREAM = "git+https://github.com/pytorch/pytorch"


class Outer(msgspec.Struct, frozen=True):
    """The choices of the person who started the build."""

    release: str
    series: tuple[str, ...]
    python: str


class Definition(msgspec.Struct, frozen=True, rename="camel"):
    """All that went into the build."""

    build_type: str
    external_parameters: Outer
    internal_parameters: Provenance
    resolved_dependencies: tuple[Resource, ...]


class Builder(msgspec.Struct, frozen=True):
    """The program that ran the build."""

    id: str


class Details(msgspec.Struct, frozen=True):
    """The program that ran the build, and its results beside the wheel."""

    builder: Builder
    byproducts: tuple[Resource, ...]


class Predicate(msgspec.Struct, frozen=True, rename="camel"):
    """SLSA's provenance."""

    build_definition: Definition
    run_details: Details


class Statement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An in-toto statement about one wheel; without a predicate it says that the wheel is published."""

    type_: str = msgspec.field(name="_type")
    subject: tuple[Resource, ...]
    predicate_type: str
    predicate: Predicate | None = None


def official_of(build: Definition) -> Artifact:
    """Return the official wheel that a build started from; its size is not part of a statement."""
    for item in build.resolved_dependencies:
        if item.uri.startswith("pkg:pypi/torch@"):
            return Artifact(item.name, item.digest.get("sha256", ""), 0)
    raise ClaimError("the provenance names no official wheel", cause="it was not made by `nox -s wheelhouse`")


def _overlay(proven: Provenance) -> Resource:
    notes = {"buildId": proven.overlay_build_id}
    return Resource(proven.soname, digest={"sha256": proven.overlay_sha256}, annotations=notes)


def make(item: Artifact, made: BuildRecord | None, builder: str = BUILDER) -> Statement:
    """Return the statement about the wheel `item`, of a build if `made` is its record."""
    subject = Resource(item.name, digest={"sha256": item.sha256})
    if made is None:
        return Statement(TYPE, (subject,), PUBLISHED)
    proven = made.provenance
    made_of = (_overlay(proven),) if proven.soname else ()
    return Statement(
        TYPE,
        (subject,),
        PREDICATE,
        Predicate(
            definition(proven, made.python, made.official),
            Details(Builder(builder), made_of),
        ),
    )


def definition(proven: Provenance, python: str, official: Artifact) -> Definition:
    """Return what went into a build: as SLSA names it, and in full."""
    outer = Outer(proven.release, proven.series, python)
    return Definition(BUILD_TYPE, outer, proven, _dependencies(proven, official))


def _dependencies(proven: Provenance, wheel: Artifact) -> tuple[Resource, ...]:
    obtained = {"obtained": proven.source, "imported": proven.source_tree}
    source = Resource("pytorch", f"{_UPSTREAM}@refs/tags/v{proven.release}", {"gitCommit": proven.commit}, obtained)
    official = Resource(wheel.name, f"pkg:pypi/torch@{proven.release}", {"sha256": wheel.sha256})
    patches = (
        Resource(item.name, digest={"sha256": item.sha256}, annotations={"subject": item.subject})
        for item in proven.patches
    )
    headers = (Resource(name, f"pkg:pypi/{name}@{version}") for name, _, version in map(_split, proven.headers))
    return (source, *patches, official, *headers)


def _split(pin: str) -> tuple[str, str, str]:
    return pin.partition("==")


def encode(statement: Statement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(statement), indent=2) + b"\n"


def decode(data: bytes | str, origin: str) -> Statement:
    """Return the statement that `encode` wrote.

    Raises:
        ClaimError: `data`, which came from `origin`, is something else.
    """
    try:
        found = msgspec.json.decode(data, type=Statement)
    except msgspec.DecodeError as error:
        raise _foreign(origin, str(error)) from None
    kind = found.predicate.build_definition.build_type if found.predicate else ""
    if (found.type_, found.predicate_type, kind) not in ((TYPE, PREDICATE, BUILD_TYPE), (TYPE, PUBLISHED, "")):
        raise _foreign(origin, f"type {found.type_}, predicate {found.predicate_type}, build {kind}")
    return found


def _foreign(origin: str, reason: str) -> ClaimError:
    return ClaimError(
        f"{origin} is not the provenance of an overlay build: {reason}",
        cause="it is damaged, of another version of this project, or of something else",
        remedy="use the file that `nox -s wheelhouse` wrote beside the wheel",
    )
