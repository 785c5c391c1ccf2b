"""Build a wheel again from the sources, with no compiled object of an earlier build, and compare."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from build import pipeline, preflight, record, seals
from build.errors import ClaimError, EnvironmentUnfitError, reading
from build.overlay import toolchain
from build.overlay.model import Overlay
from build.sources import SourceTree
from build.wheelhouse.verify import Subject, failing
from build.wheels import overlay as overlay_wheel
from build.wheels import patched as patched_wheel

#: Fields of the provenance that only a build can tell, in the order in which a build comes to them.
_OF_BUILD = {
    "units": "compiled units",
    "overlay_sha256": "overlay library",
    "overlay_build_id": "build id of the overlay",
    "platform": "platform of the overlay",
    "checks": "checks of the build",
}


def check_tools(item: Subject) -> None:
    """Refuse a machine whose tools would write other bytes, before any work.

    Raises:
        EnvironmentUnfitError: compiler or linker are not those of the build.
    """
    if not item.proven.compiler:  # patches of Python files only
        return
    found = toolchain.find(0)
    linker = ("linker", item.proven.linker, toolchain.linker(found.cxx))
    for name, claimed, ours in (("compiler", item.proven.compiler, found.identity), linker):
        if claimed != ours:
            raise EnvironmentUnfitError(
                f"the wheel cannot be built again here: its {name} was {claimed}, this machine has {ours}",
                cause="other tools write other bytes, so that a comparison would tell nothing",
                remedy=f"install that {name} (CXX names the compiler), or check the other claims: --no-rebuild",
            )


def reproduced(item: Subject, source: Path | None, own: pipeline.Own = pipeline.SERIES) -> Iterator[tuple[str, str]]:
    """Build the wheel again and yield each claim that holds, with what was found.

    Args:
        source: where the sources are, default found as a build does.
        own: the user's patches that it is said to be made of, with their folders of headers; default the series.

    Raises:
        ClaimError: a claim fails; the message names it.
        EnvironmentUnfitError: this machine cannot build it.
    """
    check_tools(item)
    folder = Path(tempfile.gettempdir())
    if own.of_user:
        own = replace(own, label=item.label, defines=item.defines)
    request = pipeline.Request(item.proven.release, item.python, source, folder, own=own)
    preflight.check(request.entry(), item.python, folder, source=source, imported=False)
    with tempfile.TemporaryDirectory(prefix="verify-") as name:
        scratch = Path(name)
        with pipeline.prepared(request) as ready:
            inputs = replace(ready.inputs, objects=scratch / "objects")
            yield "sources", _same_sources(item, ready.tree)
            overlay, proven = pipeline.make_overlay(replace(ready, inputs=inputs), scratch)
            for field, claim in _OF_BUILD.items():
                claimed, ours = getattr(item.proven, field), getattr(proven, field)
                if claimed != ours:
                    what = f"claimed {_difference(claimed, ours)}\nfound   {_difference(ours, claimed)}"
                    raise failing(item, claim, ClaimError(what))
                yield claim, "the same"
            again = _assembled(item, overlay, ready, scratch)
        yield "the whole wheel", _same_wheel(item, again)


def _same_sources(item: Subject, tree: SourceTree) -> str:
    """Compare the unpatched sources with those that the wheel was made from."""
    if (found := record.source_of(tree)) != item.proven.source:
        raise EnvironmentUnfitError(
            f"the wheel cannot be built again here: it was made from {item.proven.source}\nthese sources are {found}",
            cause="another origin of the same release may lack files, so that a comparison would tell nothing",
            remedy="name the same sources with --source, or check the other claims: --no-rebuild",
        )
    if tree.base != item.proven.source_tree:
        raise failing(item, "sources", ClaimError(f"claimed {item.proven.source_tree}\nfound   {tree.base}"))
    return found


def _difference(value: object, other: object) -> str:
    """Return of two tuples only what the other lacks."""
    if isinstance(value, tuple) and isinstance(other, tuple):
        return "; ".join(str(part) for part in value if part not in other) or "(nothing else)"
    return str(value)


def _assembled(item: Subject, overlay: Overlay | None, ready: pipeline.Prepared, scratch: Path) -> Path:
    release, proven = ready.inputs.release, item.proven
    inside = pipeline.documents(item.distribution, proven, item.official)
    patched_wheel.check_disk(ready.wheel, scratch)
    place = scratch / "wheel"
    if item.distribution == "torch":
        files = pipeline.members(ready)
        return patched_wheel.assemble(release, ready.wheel, overlay, proven.platform, inside, place, files)
    if overlay is None:
        raise failing(item, "overlay library", ClaimError("the patches compile nothing, so there is no overlay wheel"))
    return overlay_wheel.assemble(release, ready.wheel, overlay, proven.platform, inside, place)


def _same_wheel(item: Subject, again: Path) -> str:
    """Return how the two wheels agree; raise ClaimError if members differ."""
    if seals.sha256_of(again) == item.said.subject[0].digest.get("sha256"):
        return "the same bytes"
    ours, theirs = _members(again), _members(item.path)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if differing or list(ours) != list(theirs):
        raise failing(item, "the whole wheel", ClaimError(f"members differ: {', '.join(differing) or 'their order'}"))
    return "the same members, compressed otherwise: this machine has another zlib than the builder's"


def _members(path: Path) -> dict[str, tuple[object, ...]]:
    """Return what decides an installation, for each member in order; RECORD among them has the digests of all."""
    with reading(path.name), zipfile.ZipFile(path) as archive:
        return {i.filename: (i.file_size, i.CRC, i.external_attr, i.date_time) for i in archive.infolist()}
