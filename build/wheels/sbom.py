"""The SBOM of a wheel, CycloneDX in `.dist-info/sboms/` (PEP 770). It has no time and no random number."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from build.record import Artifact, Provenance, encode

#: Its path in a wheel's dist-info.
PLACE = PurePosixPath("sboms", "multiworld.cdx.json")
_UPSTREAM = "https://github.com/pytorch/pytorch"
_LICENCES = "Apache-2.0 AND BSD-3-Clause"
#: Name space of the serial numbers, which are made from the content.
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:multiworld:sbom")
_LIMIT = "what is inside of the official wheel is not taken apart; its own SBOMs, if it has any, lie beside this one"


def _sha256(digest: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)]


def _package(name: str, version: str, digest: str = "", scope: ComponentScope | None = None) -> Component:
    """Return a package of the index; its reference is its package URL."""
    purl = PackageURL("pypi", None, name, version)
    hashes = _sha256(digest) if digest else []
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), hashes=hashes, scope=scope)


def _pedigree(proven: Provenance, ancestors: Sequence[Component]) -> Pedigree:
    """Return where the compiled code comes from: the upstream commit, and the patches on it."""
    diffs = (Diff(url=XsUri(f"{item.name}#sha256={item.sha256}")) for item in proven.patches)
    patches = [Patch(type=PatchClassification.UNOFFICIAL, diff=diff) for diff in diffs]
    commit = Commit(uid=proven.commit, url=XsUri(f"{_UPSTREAM}/commit/{proven.commit}"))
    return Pedigree(ancestors=ancestors, commits=[commit], patches=patches)


def _overlay(proven: Provenance) -> Component:
    facts = [("source", proven.source), *(("unit", item.unit) for item in proven.units)]
    return Component(
        name=proven.soname,
        version=proven.version,
        bom_ref=proven.soname,
        hashes=_sha256(proven.overlay_sha256),
        licenses=[LicenseFactory().make_from_string(_LICENCES)],
        pedigree=_pedigree(proven, []),
        properties=[Property(name=f"multiworld:{name}", value=value) for name, value in facts],
    )


def _tools(proven: Provenance) -> ToolRepository:
    names = [("compiler", proven.compiler), ("linker", proven.linker), ("multiworld", proven.assembly)]
    kind = ComponentType.APPLICATION
    return ToolRepository(components=[Component(name=name, version=text, type=kind) for name, text in names if text])


def document(distribution: str, proven: Provenance, official: Artifact) -> bytes:
    """Return the SBOM of a wheel of `distribution` as JSON of CycloneDX 1.6.

    Args:
        distribution: `torch` for the patched wheel, else the name of the overlay wheel.
        proven: what the overlay was made from.
        official: the official wheel. The patched wheel is made of it; the overlay wheel requires that release.
    """
    stock = _package("torch", proven.release, official.sha256 if distribution == "torch" else "")
    root = _package(distribution, proven.version)
    root.licenses = [LicenseFactory().make_from_string(_LICENCES)]
    bom = Bom(serial_number=uuid.uuid5(_SPACE, f"{distribution} {msgspec.json.encode(proven).decode()}"))
    parts = [_overlay(proven)] if proven.soname else []
    if distribution == "torch":
        root.pedigree = _pedigree(proven, [stock])
    else:
        parts.append(stock)
    limit = [Property(name="multiworld:limit", value=_LIMIT)]
    bom.metadata = BomMetaData(component=root, tools=_tools(proven), properties=limit)
    pins = (pin.partition("==")[::2] for pin in proven.headers)  # nothing of them is in the wheel but inlined code
    for part in (*parts, *(_package(*pin, scope=ComponentScope.EXCLUDED) for pin in pins)):
        bom.components.add(part)
    bom.register_dependency(root, parts)
    whole = msgspec.json.decode(JsonV1Dot6(bom).output_as_string())
    del whole["metadata"]["timestamp"]
    return encode(whole)
