"""The index that pip and uv read: HTML (PEP 503) and JSON (PEP 691), with metadata beside each wheel (PEP 658, 714)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from build import record
from build.pages import render
from build.wheelhouse.attestation import SUFFIX
from build.wheelhouse.model import Wheel

#: Version of the protocol: 1.3 is that of PEP 740.
API = "1.3"


def files(wheels: Sequence[Wheel], base: str) -> dict[str, bytes]:
    """Return the files of the index by path below the wheelhouse; links are relative, so that the folder can move.

    Args:
        base: where the wheelhouse will be served, empty if that is not known; then no link leads to provenance.
    """
    projects: dict[str, list[Wheel]] = defaultdict(list)
    for item in sorted(wheels, key=lambda item: (item.contents.version, item.name)):
        projects[item.contents.project].append(item)
    names = [(name, {"href": f"{name}/"}) for name in sorted(projects)]
    whole: dict[str, object] = {"projects": [{"name": name} for name in sorted(projects)]}
    found = {"simple/index.html": _html("Simple index", names), "simple/index.json": _json(whole)}
    for name, items in sorted(projects.items()):
        links = [(item.name, _attributes(item, base)) for item in items]
        versions = list(dict.fromkeys(str(item.contents.version) for item in items))
        whole = {"name": name, "versions": versions, "files": [_file(item, base) for item in items]}
        found |= {f"simple/{name}/index.html": _html(name, links), f"simple/{name}/index.json": _json(whole)}
    return found


def _html(title: str, links: Iterable[tuple[str, Mapping[str, str | None]]]) -> bytes:
    return render("simple.html", title=title, api=API, links=links).encode()


def _json(whole: dict[str, object]) -> bytes:
    return record.encode({"meta": {"api-version": API}, **whole})


def beside(item: Wheel) -> str:
    """Return, as it stands in a link, the path below the wheelhouse that the files about a wheel begin with."""
    return f"files/{quote(item.name)}"


def url(item: Wheel, root: str) -> str:
    """Return the link to a wheel, from where `root` leads to the wheelhouse."""
    return f"{item.at}/{quote(item.name)}" if item.at else root + beside(item)


def _provenance(item: Wheel, base: str) -> dict[str, str]:
    """Return the link to a wheel's provenance: PEP 740 wants it whole, and some clients refuse others."""
    return {"provenance": f"{base.rstrip('/')}/{beside(item)}{SUFFIX}"} if base else {}


def _file(item: Wheel, base: str) -> dict[str, Any]:
    metadata = {"sha256": metadata_digest(item)}
    found: dict[str, Any] = {
        "filename": item.name,
        "url": url(item, "../../"),
        "hashes": {"sha256": item.sha256},
        "size": item.size,
        "core-metadata": metadata,
        "dist-info-metadata": metadata,
        "yanked": False if item.yanked is None else item.yanked or True,
    } | _provenance(item, base)
    return found | ({"requires-python": item.contents.requires_python} if item.contents.requires_python else {})


def metadata_digest(item: Wheel) -> str:
    return hashlib.sha256(item.contents.metadata).hexdigest()


def _attributes(item: Wheel, base: str) -> dict[str, str | None]:
    metadata = f"sha256={metadata_digest(item)}"
    return {
        "href": f"{url(item, '../../')}#sha256={item.sha256}",
        "data-requires-python": item.contents.requires_python or None,
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,
        "data-provenance": _provenance(item, base).get("provenance"),
        "data-yanked": item.yanked,
    }
