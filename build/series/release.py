"""The patches of one release, over all its series, as they are applied."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from build.errors import PatchError
from build.series import manifest as manifests
from build.series.model import PatchFile
from build.series.patchfile import read


def patches_of(release: str, series: Iterable[str], root: Path | None = None) -> tuple[PatchFile, ...]:
    """Read the patches of `release`, series after series.

    Args:
        release: e.g. `2.6.0`.
        series: names, in the order in which they are applied.
        root: the folder of all series, default the project's.

    Returns:
        The patches in order.

    Raises:
        PatchError: a series has no complete set of patches for the release, or a patch is malformed.
    """
    found: list[PatchFile] = []
    for name in series:
        folder = manifests.folder(name, root)
        manifest = manifests.load(folder)
        if release not in manifest.release:
            raise PatchError(
                f"series {name!r} has no patches for {release}",
                cause=f"its manifest has {', '.join(manifest.release) or 'no release'}",
                remedy=f"nox -s regenerate-patch -- {release} --series {name}",
            )
        if missing := manifest.release[release].missing:
            raise PatchError(
                f"series {name!r} is not complete for {release}",
                cause=f"the manifest lists as missing: {', '.join(missing)}",
                remedy=f"nox -s regenerate-patch -- {release} --series {name}",
            )
        found += [read(folder / release / file) for file in manifest.file_names(release)]
    return tuple(found)
