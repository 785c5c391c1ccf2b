"""Check every claim of a wheel's provenance again, cheap ones first, and stop at the first that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build import record, releases, seals
from build.anypatch import patchset
from build.errors import ClaimError, UnknownReleaseError, UsageError
from build.overlay.flags import recorded_flags, said_defines, said_flags
from build.record import Artifact, Provenance
from build.releases import Release
from build.series.manifest import patches_of
from build.series.model import PatchFile
from build.wheelhouse import attestation, gather, statement
from build.wheelhouse.attestation import Attestation
from build.wheelhouse.model import member, read_contents
from build.wheelhouse.signer import Signer
from build.wheelhouse.statement import Definition, Resource, Statement
from build.wheels import sbom
from build.wheels.archive import check_archive, check_digests
from build.wheels.platforms import newer


@dataclass(frozen=True, slots=True)
class Subject:
    """A wheel and what is claimed about it.

    Attributes:
        signed: the statement as it was signed.
        signer: must have signed it.
        patches: those of a user that it was made of; None: it is of the project's series.
    """

    path: Path
    signed: Attestation
    said: Statement
    signer: Signer
    patches: tuple[PatchFile, ...] | None = None

    @property
    def build(self) -> Definition:
        if self.said.predicate is None:
            raise UsageError(f"{self.path.name} is not of a build of this project", remedy="leave out --patches")
        return self.said.predicate.build_definition

    @property
    def proven(self) -> Provenance:
        return self.build.internal_parameters

    @property
    def label(self) -> str:
        """The end of the version: `mw1`, or what the user has chosen."""
        local = releases.get(self.proven.release).wheel.local
        return self.proven.version.partition(f"+{local}.")[2]

    @property
    def python(self) -> str:
        return self.build.external_parameters.python

    @property
    def defines(self) -> tuple[str, ...]:
        """The macros that a user has decided, `NAME=VALUE`: they follow the flags of the release."""
        flags = self.proven.flags
        return said_defines(flags[len(recorded_flags(releases.get(self.proven.release))) :])

    @property
    def official(self) -> Artifact:
        return statement.official_of(self.build)

    @property
    def distribution(self) -> str:
        return str(read_contents(self.path).project)


def subject(path: Path, provenance: Path | None, signer: Signer) -> Subject:
    """Read what is claimed about the wheel at `path`.

    Args:
        provenance: the file with the claims. Default: what the wheelhouse or the build left beside the wheel.

    Raises:
        UsageError: there is no wheel, or nothing is claimed about it.
        ClaimError: the file is no provenance.
    """
    if not path.is_file():
        raise UsageError(f"no such wheel: {path}", remedy="name the file of a wheel")
    place = provenance or path.with_name(path.name + attestation.SUFFIX)
    if provenance is not None and not place.is_file():
        raise UsageError(f"--provenance {place}: no such file", remedy="name the file that lies beside the wheel")
    signed = attestation.decode(place.read_bytes(), place.name) if place.is_file() else _of_build(path)
    return Subject(path, signed, statement.decode(signed.statement, place.name), signer)


def _of_build(path: Path) -> Attestation:
    """Return the statement that a wheelhouse would have, from the record that lies in the wheel's folder."""
    made = gather.record_of(path)
    if made is None:
        what = f"nothing is claimed about {path.name}: neither {path.name}{attestation.SUFFIX} nor a record is there"
        raise UsageError(what, remedy="name its provenance: --provenance FILE")
    item = made.patched if made.patched.name == path.name else made.overlay
    return Attestation(record.encode(statement.make(item, made)))


def _require(claimed: object, found: object) -> str:
    """Return the claimed value, or raise ClaimError with both."""
    if claimed != found:
        raise ClaimError(f"claimed {_text(claimed)}\nfound   {_text(found)}")
    return _text(claimed)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else f"{text[:300]}…"


def _copies(item: Subject) -> str:
    """What lies beside the wheel, and what the list of its wheelhouse says, is what was read."""
    for suffix in (attestation.SUFFIX, attestation.STATEMENT, attestation.ENVELOPE, attestation.BUNDLE):
        place = item.path.with_name(item.path.name + suffix)
        if not place.is_file():
            continue
        copy = attestation.decode(place.read_bytes(), place.name)
        if copy.statement != item.signed.statement or copy.signature not in (b"", item.signed.signature):
            raise ClaimError(f"{place.name} says something else than the provenance that was read")
    return "all say the same"


def _bytes(item: Subject) -> str:
    (named,) = item.said.subject or (Resource(""),)
    _require(named.name, item.path.name)
    return _require(named.digest.get("sha256", ""), seals.sha256_of(item.path))


def _archive(item: Subject) -> str:
    if item.said.predicate:
        check_archive(item.path)
    return f"{check_digests(item.path)} members are as RECORD says"


def _name(item: Subject) -> str:
    found, proven = read_contents(item.path), item.proven
    _require(proven.version, str(found.version))
    tag = found.tags.rpartition("-")[2]
    _require(newer(tag, proven.platform), tag)
    return found.tags


def _embedded(item: Subject) -> str:
    inside = member(item.path, record.EMBEDDED)
    _require(record.encode(item.proven).decode(), (inside or b"(none)").decode("utf-8", "replace"))
    return f"{record.EMBEDDED} says the same"


def _sbom(item: Subject) -> str:
    want = sbom.document(item.distribution, item.proven, item.official)
    _require(want.decode(), (member(item.path, str(sbom.PLACE)) or b"(none)").decode("utf-8", "replace"))
    return str(sbom.PLACE)


def _dependencies(item: Subject) -> str:
    """The standard part of the statement repeats what the parameters say."""
    definition = item.build
    again = statement.definition(item.proven, item.python, item.official)
    _require(definition.external_parameters, again.external_parameters)
    _require(definition.resolved_dependencies, again.resolved_dependencies)
    return f"{len(again.resolved_dependencies)} dependencies"


def _pinned(item: Subject) -> Release:
    try:
        known = releases.get(item.proven.release)
    except UnknownReleaseError as error:
        raise ClaimError(error.what) from None
    if item.patches is not None:
        return patchset.labelled(known, item.label)
    if item.label != known.patched_version.rpartition(".")[2] and not item.proven.series:
        remedy = "name them: --patches FILE, and for the build --include for each folder that it had"
        raise UsageError(f"{item.path.name} is made of somebody's own patches", remedy=remedy)
    return known


def _release(item: Subject) -> str:
    release, proven = _pinned(item), item.proven
    _require(proven.commit, release.commit)
    _require(proven.version, release.patched_version)
    known, claimed = release.wheel.libtorch_cuda_build_ids, proven.libtorch_cuda_build_ids
    only = {item.python: known.get(item.python, "(none)")}  # units of libtorch_python are for one Python version
    _require(claimed, only if claimed.keys() == only.keys() and item.patches is not None else known)
    return f"{release.version}, commit {release.commit}"


def _patches(item: Subject) -> str:
    release = _pinned(item)
    _require(item.proven.series, release.series)
    own = patches_of(release.version, release.series) if item.patches is None else item.patches
    _require(item.proven.patches, record.patches_of(own))
    return f"{len(item.proven.patches)} of {', '.join(release.series) or 'the user'}"


def _headers(item: Subject) -> str:
    return _require(item.proven.headers, record.headers_of(_pinned(item)) if item.proven.soname else ())


def _flags(item: Subject) -> str:
    flags = recorded_flags(_pinned(item)) if item.proven.soname else ()
    said = said_flags(item.defines) if item.patches is not None else ()
    return _require(item.proven.flags, (*flags, *said))


#: What can be checked without a build, by name; the names are what a failure is reported by.
CLAIMS: dict[str, Callable[[Subject], str]] = {
    "signature": lambda item: item.signer.vouches(item.signed),
    "SHA-256 of the wheel": _bytes,
    "members of the wheel": _archive,
    "name and tags": _name,
    "embedded provenance": _embedded,
    "dependencies": _dependencies,
    "release": _release,
    "official wheel": lambda it: _require(it.official.sha256, _pinned(it).wheel.sha256.get(it.python, "(none)")),
    "patches": _patches,
    "header packages": _headers,
    "compile flags": _flags,
    "code that writes the wheels": lambda item: _require(item.proven.assembly, record.assembly()),
    "SBOM": _sbom,
    "copies of the statement": _copies,
}


#: Those that are made about every wheel, of whoever's build.
_OF_ALL = ("signature", "SHA-256 of the wheel", "members of the wheel", "copies of the statement")


def failing(item: Subject, claim: str, error: ClaimError) -> ClaimError:
    cause = "\n".join(filter(None, (error.what, error.cause)))
    remedy = error.remedy or "do not use the wheel, unless you know why; check with the commit that built it"
    return ClaimError(f"{item.path.name}: the first claim that fails is: {claim}", cause=cause, remedy=remedy)


def checked(item: Subject) -> Iterator[tuple[str, str]]:
    """Yield each claim that holds, with what was found, without building anything.

    Raises:
        ClaimError: a claim fails; the message names it.
    """
    for claim, check in CLAIMS.items():
        if item.said.predicate or claim in _OF_ALL:
            try:
                yield claim, check(item)
            except ClaimError as error:
                raise failing(item, claim, error) from None
