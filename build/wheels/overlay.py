"""The overlay wheel: 1 MB, installed next to the official torch; for every Python version unless units depend on it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from build.errors import WheelError, reading
from build.overlay.model import Overlay
from build.paths import REPO, atomic_write, sweep
from build.releases import Release
from build.wheels.archive import WheelWriter, check_archive

#: Name of the distribution; its import name has underscores.
DISTRIBUTION = "multiworld-torch-overlay"
_PACKAGE = DISTRIBUTION.replace("-", "_")
_RUNTIME = Path(__file__).parent.parent / "runtime" / _PACKAGE
_SUMMARY = "Patched units of PyTorch {version}, active next to the official wheel without changing it"
_DESCRIPTION = f"""\
# {DISTRIBUTION}

Recompiled units of PyTorch {{version}}, with patches. Installed beside the official `torch`, they take precedence when
torch is imported; no file of torch changes, and an uninstall brings the official behaviour back.

    python -c "import torch, {_PACKAGE} as o; print(o.state())"

says if they are in force. In `dist-info`, `multiworld.json` names the patches, sources, compiler and flags, and
`sboms/multiworld.cdx.json` is the SBOM.
"""


def _metadata(release: Release, licences: Iterable[str]) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {DISTRIBUTION}",
        f"Version: {release.patched_version}",
        f"Summary: {_SUMMARY.format(version=release.patched_version)}",
        "License-Expression: Apache-2.0 AND BSD-3-Clause",
        *(f"License-File: {name}" for name in licences),
        "Requires-Python: >=3.8",
        f"Requires-Dist: torch=={release.wheel.version}",
        "Description-Content-Type: text/markdown",
    ]
    return ("\n".join(lines) + "\n\n" + _DESCRIPTION.format(version=release.version)).encode()


def _facts(release: Release, overlay: Overlay) -> bytes:
    """Return the loader's facts: for which builds of torch the overlay was made."""
    made_for, build_ids = f"{release.version}+{release.wheel.local}", sorted(set(overlay.made_for.values()))
    facts = {"soname": overlay.soname, "made_for": made_for, "build_ids": build_ids, "version": release.patched_version}
    return (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode()


def _licences(release: Release, official: Path) -> dict[str, bytes]:
    """Return PyTorch's licence files by their place; they must go with its compiled code."""
    pattern = re.compile(rf"torch-{re.escape(release.wheel.version)}\.dist-info/(?:licenses/)?(LICENSE|NOTICE)")
    with reading(official.name), zipfile.ZipFile(official) as archive:
        matches = [match for name in archive.namelist() if (match := pattern.fullmatch(name))]
        found = {match[1]: archive.read(match[0]) for match in matches}
    if "LICENSE" not in found:
        raise WheelError(f"{official.name} has no LICENSE", cause="another wheel layout")
    return {f"pytorch/{name}": text for name, text in sorted(found.items())}


def assemble(
    release: Release, official: Path, overlay: Overlay, tag: str, documents: Mapping[str, bytes], folder: Path
) -> Path:
    """Write the overlay wheel.

    Args:
        tag: platform tag that the overlay needs.
        documents: files for the wheel's dist-info, by their names there: the provenance, the SBOM.

    Raises:
        WheelError: the official wheel has no licence, or the result fails its own check.
    """
    only = overlay.python.replace(".", "")
    tags = f"cp{only}-cp{only}-{tag}" if only else f"py3-none-{tag}"
    name = f"{_PACKAGE}-{release.patched_version}-{tags}.whl"
    info = f"{_PACKAGE}-{release.patched_version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: multiworld\nRoot-Is-Purelib: false\nTag: {tags}\n"
    licences = {"LICENSE": (REPO / "LICENSE").read_bytes(), **_licences(release, official)}
    sweep(folder / name)
    with atomic_write(folder / name) as part:
        with WheelWriter(part, info) as writer:
            for source in sorted(_RUNTIME.glob("*.py")):
                writer.add(f"{_PACKAGE}/{source.name}", source.read_bytes())
            writer.add(f"{_PACKAGE}/overlay.json", _facts(release, overlay))
            writer.add(f"{_PACKAGE}/lib/{overlay.soname}", overlay.path.read_bytes(), 0o755)
            writer.add(f"{_PACKAGE}.pth", f"import {_PACKAGE}; {_PACKAGE}.install()\n".encode())
            writer.add(f"{info}/METADATA", _metadata(release, licences))
            writer.add(f"{info}/WHEEL", wheel.encode())
            for licence, text in licences.items():
                writer.add(f"{info}/licenses/{licence}", text)
            for document, data in documents.items():
                writer.add(f"{info}/{document}", data)
        check_archive(part)
    return folder / name
