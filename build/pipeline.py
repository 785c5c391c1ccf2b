"""The main job, from a release to patched wheels: calls the stages, each a module of its own, in order."""

from __future__ import annotations

import platform
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build import leases, official, paths, preflight, record, releases, sources
from build.anypatch import beside, patchset
from build.anypatch.plan import MOST_UNITS, Limits, Plan, Serves, changes
from build.anypatch.plan import make as make_plan
from build.console import log_to_file, note, step
from build.errors import reading
from build.git import Git
from build.overlay import headers, layout, toolchain
from build.overlay.build import build_overlay
from build.overlay.checks import require
from build.overlay.model import Check, Inputs, Overlay
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
from build.wheeltest import imports


@dataclass(frozen=True, slots=True)
class Own:
    """Patches of a user, and what he says about them: options of `build`, which tells their meaning."""

    patches: Path | None = None
    branch: str = ""
    label: str = ""
    include: tuple[Path, ...] = ()
    most_units: int = MOST_UNITS
    defines: tuple[str, ...] = ()
    beside: Path | None = None
    extensions_rebuilt: bool = False

    @property
    def of_user(self) -> bool:
        return self.patches is not None or bool(self.branch)

    @property
    def asked(self) -> bool:
        """Return whether anything of it is given, such as a label without patches, which is an error."""
        return self.of_user or bool(self.label)


#: No patches of a user: the project's series.
SERIES = Own()
#: Names the temporary folder in which wheels are until they have been imported.
_WHEELS = "wheels"


@dataclass(frozen=True, slots=True)
class Request:
    """A build to make, into a folder of `dist`; the user's patches, if any, take the place of the series."""

    release: str
    python: str = ".".join(platform.python_version_tuple()[:2])
    source: Path | None = None
    dist: Path = paths.DIST
    own: Own = SERIES
    jobs: int | None = None

    @property
    def folder(self) -> Path:
        return self.dist / (f"{self.release}-{self.own.label}" if self.own.label else self.release)

    def entry(self) -> Release:
        """Return the entry of the release; for patches of the user, under their label."""
        known = releases.get(self.release)
        return patchset.labelled(known, self.own.label) if self.own.asked else known

    def chosen(self) -> tuple[PatchFile, ...]:
        known = releases.get(self.release)
        if self.own.asked:
            return patchset.chosen(known, self.own.patches, self.own.branch)
        return patches_of(known.version, known.series)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The inputs of an overlay: patches, source tree, official wheel, checkout; and the same as build inputs."""

    patches: tuple[PatchFile, ...]
    tree: SourceTree
    wheel: Path
    applied: AppliedTree
    plan: Plan
    inputs: Inputs


def _safe_headers(release: Release) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in release.series:
        manifest = manifests.load(manifests.folder(name))
        for patch_id in manifest.release[release.version].patches:
            found |= {change.path: change.reason for change in manifest.entry(patch_id).header_changes}
    return found


def _apply(tree: SourceTree, patches: tuple[PatchFile, ...], target: Path, own: Own) -> AppliedTree:
    """Apply the series in the checkout `target`, whose lock is held and which later builds use again."""
    step(f"applying {len(patches)} patches")
    with patchset.applying(tree.repo, own.patches, own.branch):
        applied = apply_series(tree.repo, tree.base, patches, target)
    show_verdicts(applied.verdicts, f"{tree.release.version}: hunks")
    return applied


def _check_source(tree: SourceTree, include: Path, read: frozenset[str]) -> Check:
    """Check that tree and wheel belong together, as strictly as the tree's proof demands.

    `read` are the files, units and headers, that the compiler read from the tree.
    """
    equal, differing = sources.check_belongs(tree, include, read)
    detail = f"{tree.proof.value} ({tree.identity}); {equal} shared headers equal"
    if differing:
        detail += f"; {len(differing)} differ, which the compiler took from the wheel, if at all"
    return Check("the source tree is the release", True, detail)


def _headers(request: Request, release: Release, plan: Plan) -> tuple[Path, ...]:
    """Return the folders of headers that neither wheel nor tree has; none where nothing is compiled."""
    if not plan.units and not plan.alone:
        return ()
    own = [path.absolute() for path in request.own.include]
    python = [preflight.headers(request.python, own)] if plan.per_python else []
    return (*official.fetch_headers(release), *python, *own)


def _inputs(
    request: Request, release: Release, tree: SourceTree, applied: AppliedTree, plan: Plan, wheel: Path
) -> Inputs:
    names = [change.path for change in applied.changed]
    blobs = Git(applied.checkout).blobs([f"{applied.base}:{name}" for name in names])
    texts = ((data or b"").decode("utf-8", "surrogateescape") for data in blobs)
    return Inputs(
        release=release,
        tree=applied.checkout,
        changed=tuple(names),
        wheel=official.unpack(wheel),
        python=request.python,
        wheel_sha256=release.wheel.sha256[request.python],
        headers=_headers(request, release, plan),
        toolchain=toolchain.find(release.min_gcc),
        units=plan.units,
        owners=plan.owners,
        originals=dict(zip(names, texts, strict=True)),
        safe_headers=_safe_headers(release),
        defines=request.own.defines,
        extensions_rebuilt=request.own.extensions_rebuilt,
        jobs=request.jobs,
        stock=tree.repo if request.own.of_user else None,
    )


def _stock(inputs: Inputs, wheel: Path) -> record.Artifact:
    return record.Artifact(wheel.name, inputs.release.wheel.sha256[inputs.python], wheel.stat().st_size)


def documents(distribution: str, proven: record.Provenance, wheel: record.Artifact) -> dict[str, bytes]:
    """Return what a wheel of `distribution` has in its dist-info about itself; `wheel` is the official one."""
    from build.wheels import sbom  # a quarter of a second, and most commands make no wheel

    return {record.EMBEDDED: record.encode(proven), str(sbom.PLACE): sbom.document(distribution, proven, wheel)}


def _plan(request: Request, release: Release, applied: AppliedTree, patches: tuple[PatchFile, ...]) -> Plan:
    by = "series" if release.series else "patch"
    change = changes(Git(applied.checkout), applied.base, applied.head, patchset.outside(patches), by)
    limits = Limits(request.own.most_units, request.own.defines, release.defines, _safe_headers(release))
    plan = make_plan(applied.checkout, change, limits)
    plan.require()
    return plan


def members(ready: Prepared) -> dict[str, bytes | None]:
    """Return the members of the wheel that patches change: Python files, and headers that the wheel has."""
    files: dict[str, bytes | None] = {}
    for row in ready.plan.rows:
        path = ready.applied.checkout / row.path
        if row.serves is Serves.PYTHON:
            files[row.path] = path.read_bytes() if path.is_file() else None
        elif row.serves in {Serves.HEADER, Serves.ALONE}:
            name = f"torch/include/{layout.installed(row.path)}"
            files |= {name: path.read_bytes()} if (ready.inputs.wheel / name).is_file() else {}
    return files


def _assemble(
    request: Request, ready: Prepared, overlay: Overlay | None, proven: record.Provenance
) -> tuple[record.Artifact, record.Artifact]:
    """Write the patched wheel and the overlay wheel, or keep those of an equal build."""
    release = ready.inputs.release
    last = record.read(request.folder, request.python)
    if last is not None and last.provenance == proven and last.official.sha256 == release.wheel.sha256[request.python]:
        kept = (last.patched, last.overlay)
        wheels = [(request.folder / item.name, item) for item in kept if item.name]
        if all(path.is_file() and record.artifact(path) == item for path, item in wheels):
            note("wheels unchanged, kept")
            return kept
    patched_wheel.check_disk(ready.wheel, request.folder)
    step("assembling the wheels")
    paths.sweep(request.folder / _WHEELS)
    with tempfile.TemporaryDirectory(prefix=f".{_WHEELS}.", suffix=".part", dir=request.folder) as part:
        made = _write_wheels(ready, overlay, proven, Path(part))
        _import(request, ready, overlay, made)
        for path in made:
            path.replace(request.folder / path.name)
    patched, *alone = (record.artifact(request.folder / path.name) for path in made)
    return patched, alone[0] if alone else record.NONE


def _write_wheels(
    ready: Prepared, overlay: Overlay | None, proven: record.Provenance, folder: Path
) -> tuple[Path, ...]:
    release, files, wheel, tag = ready.inputs.release, members(ready), ready.wheel, proven.platform
    stock = _stock(ready.inputs, wheel)
    inside = documents("torch", proven, stock)
    patched = patched_wheel.assemble(release, wheel, overlay, tag, inside, folder, files)
    if overlay is None or ready.plan.python or ready.inputs.extensions_rebuilt:
        headers_changed = filter(layout.is_header, ready.inputs.changed)
        changed = ", ".join(dict.fromkeys((*ready.plan.python, *ready.plan.alone, *headers_changed)))
        note(f"no overlay wheel: it changes no file of torch, and the patch changes {changed}")
        return (patched,)
    beside = documents(overlay_wheel.DISTRIBUTION, proven, stock)
    return patched, overlay_wheel.assemble(release, wheel, overlay, tag, beside, folder)


def _import(request: Request, ready: Prepared, overlay: Overlay | None, made: tuple[Path, ...]) -> None:
    """Import the wheels that were made, the second one beside the official wheel."""
    inputs, wheel, soname = ready.inputs, ready.wheel, overlay.soname if overlay else ""
    release, python = inputs.release, preflight.interpreter(request.python)
    versions = release.patched_version, f"{release.wheel.version}+{release.wheel.local}"
    together = (made[:1], (wheel, *made[1:]))
    subjects = [imports.Subject(*item, soname) for item in zip(together, versions, strict=True)][: len(made)]
    imports.require(subjects, imports.surroundings(python, request.python, inputs.toolchain, wheel, inputs.lib))


def _check_python(ready: Prepared) -> tuple[Check, ...]:
    """Check that the Python files which patches change are in the wheel as the release's tree has them."""
    if not ready.plan.python:
        return ()
    names = ready.plan.python
    blobs = Git(ready.applied.checkout).blobs([f"{ready.applied.base}:{name}" for name in names])
    with reading(ready.wheel.name), zipfile.ZipFile(ready.wheel) as archive:
        have = {name: archive.read(name) for name in names if name in archive.NameToInfo}
    wrong = [name for name, blob in zip(names, blobs, strict=True) if blob != have.get(name)]
    detail = f"not as in the tree: {', '.join(wrong)}" if wrong else f"{len(names)} files, as in the tree or new"
    return (Check("the wheel has the Python files that the patch is for", not wrong, detail),)


def make_overlay(ready: Prepared, scratch: Path) -> tuple[Overlay | None, record.Provenance]:
    """Make the overlay in `scratch`, and prove it; None where patches change no unit, only files of the wheel."""
    tree, inputs = ready.tree, ready.inputs
    python = _check_python(ready)
    require(python)
    unmixed = headers.check_headers(inputs)
    if not ready.plan.units:
        checks = (_check_source(tree, inputs.include, frozenset()), unmixed, *python)
        tag = patched_wheel.platform_of(ready.wheel)
        proven = record.provenance(inputs.release, tree, ready.patches, None, checks, inputs.toolchain, tag)
        return None, proven
    # A tree known by some of its files is judged by what the compiler read of it, any other before the long work.
    early = None if tree.proof is Proof.BLOBS else _check_source(tree, inputs.include, frozenset())
    overlay = build_overlay(inputs, scratch)
    includes = {name for item in overlay.objects for name in item.includes}
    read = frozenset(name.removeprefix("tree:") for name in includes if name.startswith("tree:"))
    check_files(ready.applied, read)
    belongs = early or _check_source(tree, inputs.include, read)
    tag = platform_tag(overlay.path)
    tag_check = Check("the platform tag is what the binary needs", True, f"{tag}, by auditwheel's policies")
    checks = (belongs, unmixed, *overlay.checks, tag_check, *python)
    return overlay, record.provenance(inputs.release, tree, ready.patches, overlay, checks, inputs.toolchain, tag)


def _wheels(request: Request, ready: Prepared, scratch: Path) -> record.BuildRecord:
    overlay, proven = make_overlay(ready, scratch)
    patched, alone = _assemble(request, ready, overlay, proven)
    return record.BuildRecord(
        provenance=proven,
        python=request.python,
        official=_stock(ready.inputs, ready.wheel),
        patched=patched,
        overlay=alone,
        verdicts=ready.applied.verdicts,
        replaced=overlay.replaced if overlay else (),
        passed_over=ready.tree.passed_over,
    )


def check(request: Request) -> Release:
    """Check that the release has patches and that this machine can build it; return the release.

    Raises:
        PatchError: the release has no series.
        EnvironmentUnfitError: this machine cannot build it.
        UnknownReleaseError: the release is not known.
    """
    release = request.entry()
    request.chosen()
    preflight.check(release, request.python, request.dist, source=request.source)
    return release


@contextmanager
def prepared(request: Request) -> Iterator[Prepared]:
    """Get everything, apply the series, and hold the checkout's lock in the block."""
    release, patches = request.entry(), request.chosen()
    tree = sources.acquire(release, request.source)
    wheel = official.fetch_wheel(release, request.python)
    checkout = leases.take(paths.cache("applied") / request.folder.name)
    with paths.locked(checkout, f"the checkout of {release.version}"):
        applied = _apply(tree, patches, checkout, request.own)
        plan = _plan(request, release, applied, patches)
        beside.refuse(request.own.beside, checkout, plan.units, f"torch {release.patched_version}")
        ready = Prepared(patches, tree, wheel, applied, plan, _inputs(request, release, tree, applied, plan, wheel))
        if not plan.units and not members(ready):
            raise plan.nothing()
        yield ready


def build_release(request: Request) -> record.BuildRecord:
    """Build the patched wheel and the overlay wheel of a release.

    Returns:
        The record, also written to `build.json` next to the wheels.

    Raises:
        ToolError: a stage failed; the results have no half-written file.
    """
    release = check(request)  # first: a build that cannot start leaves the results of the last one as they are
    request.folder.mkdir(parents=True, exist_ok=True)
    with paths.locked(request.folder / "build", f"the build of {release.version}"):
        log_to_file(request.folder / "build.log")  # with the lock held: it replaces the log of the run before
        with prepared(request) as ready, tempfile.TemporaryDirectory(prefix="overlay-") as scratch:
            made = _wheels(request, ready, Path(scratch))
        record.write(made, request.folder)
    return made
