"""The main job: from a release to patched wheels. Every stage is a module of its own; here they follow each other."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build import official, paths, preflight, record, releases, sources
from build.console import log_to_file, note, step
from build.errors import DigestMismatchError, EnvironmentUnfitError, PatchError, WheelError
from build.overlay import toolchain
from build.overlay.build import build_overlay
from build.overlay.model import Check, Inputs, Object, Overlay
from build.releases import Release
from build.series import manifest as manifests
from build.series.apply import AppliedTree, apply_series, check_files
from build.series.manifest import patches_of
from build.series.model import PatchFile
from build.series.show import show_verdicts
from build.sources import Proof, SourceTree
from build.wheels import overlay as overlay_wheel
from build.wheels import patched as patched_wheel
from build.wheels.platforms import platform_tag


@dataclass(frozen=True, slots=True)
class Request:
    """What to build.

    Attributes:
        release: the PyTorch release, e.g. `2.6.0`.
        python: CPython version of the patched wheel, default this interpreter's.
        source: where the source tree is, default: found.
        dist: folder that gets a folder per release.
        tested: whether the wheels will be tested on this machine.
    """

    release: str
    python: str = ".".join(platform.python_version_tuple()[:2])
    source: Path | None = None
    dist: Path = paths.DIST
    tested: bool = True

    @property
    def folder(self) -> Path:
        return self.dist / self.release


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an overlay is made from, with where it came from.

    Attributes:
        patches: the series, in order.
        tree: the release's source.
        wheel: the official wheel.
        applied: the checkout with the series applied.
        inputs: all of it as the overlay's build takes it.
    """

    patches: tuple[PatchFile, ...]
    tree: SourceTree
    wheel: Path
    applied: AppliedTree
    inputs: Inputs


def _safe_headers(release: Release) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in release.series:
        manifest = manifests.load(manifests.folder(name))
        for patch_id in manifest.release[release.version].patches:
            found |= {change.path: change.reason for change in manifest.entry(patch_id).header_changes}
    return found


def _apply(tree: SourceTree, patches: tuple[PatchFile, ...], target: Path) -> AppliedTree:
    """Apply the series in a checkout that later builds use again; its lock is held as long as it is read."""
    step(f"applying {len(patches)} patches")
    paths.sweep(target)
    applied = apply_series(tree.repo, tree.base, patches, target)
    show_verdicts(applied.verdicts, f"{tree.release.version}: hunks")
    return applied


def _read_from_tree(objects: tuple[Object, ...]) -> frozenset[str]:
    """Return the files that the compiler took from the tree, units and headers."""
    return frozenset(name[5:] for item in objects for name in item.includes if name.startswith("tree:"))


def _check_source(tree: SourceTree, include: Path, read: frozenset[str]) -> Check:
    """Check that tree and wheel belong together, as strictly as the tree's proof demands."""
    found = sources.check_belongs(tree, include, read)
    detail = f"{tree.proof.value} ({tree.identity}); {found.equal} shared headers equal"
    if found.differing:
        detail += f"; {len(found.differing)} differ, which the compiler took from the wheel, if at all"
    return Check("the source tree is the release", True, detail)


def _inputs(request: Request, release: Release, applied: AppliedTree, wheel: Path) -> Inputs:
    """Collect what the overlay is made from."""
    return Inputs(
        release=release,
        tree=applied.checkout,
        changed=tuple(change.path for change in applied.changed),
        wheel=official.unpack(wheel),
        python=request.python,
        wheel_sha256=release.wheel.sha256[request.python],
        headers=official.fetch_headers(release),
        safe_headers=_safe_headers(release),
        toolchain=toolchain.find(release.min_gcc),
    )


def _assemble(
    request: Request, release: Release, wheel: Path, overlay: Overlay, proven: record.Provenance
) -> tuple[record.Artifact, record.Artifact]:
    """Write the patched wheel and the overlay wheel, or keep those that an equal build has left."""
    last = record.read(request.folder, request.python)
    if last is not None and last.provenance == proven and last.official.sha256 == release.wheel.sha256[request.python]:
        kept = (last.patched, last.overlay)
        if all((request.folder / item.name).is_file() for item in kept) and all(
            record.artifact(request.folder / item.name) == item for item in kept
        ):
            note("wheels unchanged, kept")
            return kept
    if not patched_wheel.enough_disk(wheel, request.folder):
        raise EnvironmentUnfitError(
            f"{request.folder} has no room for the patched wheel",
            cause=f"{shutil.disk_usage(request.folder).free >> 20} MiB free",
            remedy=f"free {patched_wheel.disk_needed(wheel) >> 20} MiB, or move the folder to another disk",
        )
    step("assembling the wheels")
    embedded = record.encode(proven)
    tag = proven.platform
    try:
        patched = patched_wheel.assemble(release, wheel, overlay, tag, embedded, request.folder)
    except (DigestMismatchError, WheelError):
        # Read whole, since its seal said that it is right: then it is the wheel's layout, or the disk has damaged it.
        official.distrust_wheel(wheel)
        wheel = official.fetch_wheel(release, request.python)
        patched = patched_wheel.assemble(release, wheel, overlay, tag, embedded, request.folder)
    alone = overlay_wheel.assemble(release, wheel, overlay, tag, embedded, request.folder)
    return record.artifact(patched), record.artifact(alone)


def _wheels(request: Request, ready: Prepared, scratch: Path) -> record.BuildRecord:
    """Make the overlay in `scratch`, prove it, and put it into wheels."""
    tree, wheel, inputs = ready.tree, ready.wheel, ready.inputs
    release = inputs.release
    # A tree known by some of its files is judged by what the compiler read of it, any other before the long work.
    partial = tree.proof is Proof.BLOBS
    early = None if partial else _check_source(tree, inputs.include, frozenset())
    overlay = build_overlay(inputs, scratch)
    read = _read_from_tree(overlay.objects)
    check_files(ready.applied, read)
    belongs = early or _check_source(tree, inputs.include, read)
    tag = platform_tag(overlay.path)
    checks = (belongs, *overlay.checks)
    checks = (*checks, Check("the platform tag is what the binary needs", True, f"{tag}, by auditwheel's policies"))
    proven = record.provenance(release, tree, ready.patches, overlay, checks, inputs.toolchain.identity, tag)
    patched, alone = _assemble(request, release, wheel, overlay, proven)
    return record.BuildRecord(
        provenance=proven,
        python=request.python,
        official=record.Artifact(wheel.name, release.wheel.sha256[request.python], wheel.stat().st_size),
        patched=patched,
        overlay=alone,
        verdicts=ready.applied.verdicts,
        replaced=overlay.replaced,
        passed_over=tuple(f"{item.origin}: {item.reason}" for item in tree.passed_over),
    )


def check(request: Request) -> Release:
    """Return the release after a look at its patches, which cost nothing to read, and at the machine.

    Raises:
        PatchError: a series is not ported to the release.
        EnvironmentUnfitError: this machine cannot build it.
        UnknownReleaseError: there is no such release.
    """
    release = releases.get(request.release)
    if not release.series:
        raise PatchError(
            f"no series of patches is ported to PyTorch {release.version} yet",
            cause="build/releases.toml names none for it: nothing would be patched",
            remedy=f"port one: python3 noxfile.py -s regenerate-patch -- {release.version}",
        )
    patches_of(release.version, release.series)
    preflight.check(release, request.python, request.dist, source=request.source, tested=request.tested)
    return release


@contextmanager
def prepared(request: Request) -> Iterator[Prepared]:
    """Get everything, apply the series, and hold the checkout's lock while it is used.

    Raises:
        ToolError: what is missing or does not belong together.
    """
    release = releases.get(request.release)
    patches = patches_of(release.version, release.series)
    tree = sources.acquire(release, request.source)
    wheel = official.fetch_wheel(release, request.python)
    checkout = paths.cache("applied") / release.version
    with paths.locked(checkout, f"the checkout of {release.version}"):
        applied = _apply(tree, patches, checkout)
        yield Prepared(patches, tree, wheel, applied, _inputs(request, release, applied, wheel))


def build_release(request: Request) -> record.BuildRecord:
    """Build the patched wheel and the overlay wheel of a release.

    Args:
        request: what to build and where to put it.

    Returns:
        The record, also written to `build.json` next to the wheels.

    Raises:
        ToolError: what is wrong, why, and what to do; nothing half-written is left.
    """
    release = check(request)  # before anything is made or replaced: what is there is of the last build that started
    request.folder.mkdir(parents=True, exist_ok=True)
    with paths.locked(request.folder / "build", f"the build of {release.version}"):
        log_to_file(request.folder / "build.log")  # not before: it replaces the log of the run that is waited for
        with prepared(request) as ready, tempfile.TemporaryDirectory(prefix="overlay-") as scratch:
            made = _wheels(request, ready, Path(scratch))
        record.write(made, request.folder)
    return made
