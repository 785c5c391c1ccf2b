"""The index that pip and uv read: HTML (PEP 503) and JSON (PEP 691), with metadata beside each wheel (PEP 658, 714)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from build import record
from build.wheelhouse.attestation import SUFFIX
from build.wheelhouse.model import Wheel

#: Version of the protocol: 1.3 is that of PEP 740.
API = "1.3"
_HEAD = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    f'<meta name="pypi:repository-version" content="{API}"><title>%s</title></head><body>\n<h1>%s</h1>\n'
)


def files(wheels: Sequence[Wheel], base: str) -> dict[str, bytes]:
    """Return the files of the index by path below the wheelhouse; links are relative, so that the folder can move.

    Args:
        base: where the wheelhouse will be served, empty if that is not known; then no link leads to provenance.
    """
    projects: dict[str, list[Wheel]] = defaultdict(list)
    for item in sorted(wheels, key=lambda item: (item.contents.version, item.name)):
        projects[item.contents.project].append(item)
    found = {"simple/index.html": _root_html(projects), "simple/index.json": _root_json(projects)}
    for name, items in sorted(projects.items()):
        found[f"simple/{name}/index.html"] = _project_html(name, items, base)
        found[f"simple/{name}/index.json"] = _project_json(name, items, base)
    return found


def beside(item: Wheel) -> str:
    """Return, as it stands in a link, the path below the wheelhouse that the files about a wheel begin with."""
    return f"files/{quote(item.name)}"


def url(item: Wheel, root: str) -> str:
    """Return the link to a wheel, from where `root` leads to the wheelhouse."""
    return f"{item.at}/{quote(item.name)}" if item.at else root + beside(item)


def _provenance(item: Wheel, base: str) -> dict[str, str]:
    """Return the link to a wheel's provenance: PEP 740 wants it whole, and some clients refuse others."""
    return {"provenance": f"{base.rstrip('/')}/{beside(item)}{SUFFIX}"} if base else {}


def _root_json(projects: Mapping[str, object]) -> bytes:
    return record.encode({"meta": {"api-version": API}, "projects": [{"name": name} for name in sorted(projects)]})


def _project_json(name: str, items: Sequence[Wheel], base: str) -> bytes:
    versions = dict.fromkeys(str(item.contents.version) for item in items)
    whole = {"name": name, "versions": list(versions), "files": [_file(item, base) for item in items]}
    return record.encode({"meta": {"api-version": API}, **whole})


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


def _root_html(projects: Mapping[str, object]) -> bytes:
    links = "".join(f'<a href="{name}/">{name}</a><br>\n' for name in sorted(projects))
    return f"{_HEAD % ('Simple index', 'Simple index')}{links}</body></html>\n".encode()


def _project_html(name: str, items: Sequence[Wheel], base: str) -> bytes:
    links = "".join(f"<a {_attributes(item, base)}>{escape(item.name)}</a><br>\n" for item in items)
    return f"{_HEAD % (name, name)}{links}</body></html>\n".encode()


def _attributes(item: Wheel, base: str) -> str:
    metadata = f"sha256={metadata_digest(item)}"
    found = {
        "href": f"{url(item, '../../')}#sha256={item.sha256}",
        "data-requires-python": item.contents.requires_python or None,
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,
        "data-provenance": _provenance(item, base).get("provenance"),
        "data-yanked": item.yanked,
    }
    return " ".join(f'{name}="{escape(value)}"' for name, value in found.items() if value is not None)
