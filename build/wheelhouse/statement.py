"""Provenance of a wheel: an in-toto statement with the predicate of SLSA 1, made from the record of its build."""

from __future__ import annotations

import msgspec

from build.errors import ClaimError
from build.record import Artifact, BuildRecord, Provenance

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
#: Of a wheel without a record of its build: that its signer publishes these bytes. It has no more to say.
PUBLISHED = "urn:multiworld:published:1"
#: How the parameters are to be read: those of a build of an overlay, as `internalParameters` has them.
BUILD_TYPE = "urn:multiworld:overlay-build:1"
#: Who built it where no CI system says so: nobody but the owner of the signing key vouches for it.
BUILDER = "urn:multiworld:own-machine"
_UPSTREAM = "git+https://github.com/pytorch/pytorch"


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, package or commit, with its digests."""

    name: str
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Subjects(msgspec.Struct, frozen=True):
    """The part of any statement that tells what it is about."""

    subject: tuple[Resource, ...]


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


class Details(msgspec.Struct, frozen=True):
    """The program that ran the build, and its results beside the wheel."""

    builder: dict[str, str]
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


def make(item: Artifact, made: BuildRecord | None, builder: str = BUILDER) -> Statement:
    """Return the statement about the wheel `item`, of a build if `made` is its record."""
    subject = Resource(item.name, digest={"sha256": item.sha256})
    if made is None:
        return Statement(TYPE, (subject,), PUBLISHED)
    proven = made.provenance
    notes = {"buildId": proven.overlay_build_id}
    overlay = Resource(proven.soname, digest={"sha256": proven.overlay_sha256}, annotations=notes)
    details = Details({"id": builder}, (overlay,) if proven.soname else ())
    return Statement(TYPE, (subject,), PREDICATE, Predicate(definition(proven, made.python, made.official), details))


def definition(proven: Provenance, python: str, official: Artifact) -> Definition:
    """Return what went into a build: as SLSA names it, and in full."""
    obtained = {"obtained": proven.source, "imported": proven.source_tree}
    made_of = [
        Resource("pytorch", f"{_UPSTREAM}@refs/tags/v{proven.release}", {"gitCommit": proven.commit}, obtained),
        *(Resource(item.name, "", {"sha256": item.sha256}, {"subject": item.subject}) for item in proven.patches),
        Resource(official.name, f"pkg:pypi/torch@{proven.release}", {"sha256": official.sha256}),
    ]
    for pin in proven.headers:
        name, _, version = pin.partition("==")
        made_of.append(Resource(name, f"pkg:pypi/{name}@{version}"))
    return Definition(BUILD_TYPE, Outer(proven.release, proven.series, python), proven, tuple(made_of))


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
    what = f"{origin} is not the provenance of an overlay build: {reason}"
    return ClaimError(what, remedy="use the file that `nox -s wheelhouse` wrote beside the wheel")
