"""Port a series of this project to a release: from its nearest neighbour, into `patches/<series>/<release>/`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from build import paths, releases, sources
from build.console import step
from build.errors import UsageError
from build.git import Git
from build.porting import Action
from build.porting.engine import PatchPort, PatchState
from build.porting.registry import fill_build_ids, known_release, set_series, write_entry
from build.porting.report import PortReport, exported, report_of, reports
from build.porting.session import BEFORE, Session, discard, waits
from build.porting.trees import Tree, open_tree
from build.releases import Release
from build.seals import read_record, write_record
from build.series import manifest as manifests
from build.series.commits import write_series
from build.series.manifest import JSON, MARKDOWN, Manifest, NotApplicable, ReleaseEntry, Verified
from build.series.model import PatchFile
from build.series.patchfile import read
from build.signals import deferred_signals

#: Start of the reason that a port records for a patch which it found upstream.
ALREADY_THERE = "the release has it already"


@dataclass(frozen=True, slots=True)
class Request:
    """A series to port, and the releases between which it is ported.

    Attributes:
        release: the release wanted.
        series: which series.
        origin: the release to start from, default the nearest that is complete.
        from_source: where the old tree is (PATH or PATH@REV), default found; `to_source` likewise the new one.
        again: port although the release has its patches.
        root: folder of all series.
    """

    release: str
    series: str = "nccl"
    origin: str = ""
    from_source: str = ""
    to_source: str = ""
    action: Action = Action.START
    again: bool = False
    root: Path = paths.PATCHES

    @property
    def folder(self) -> Path:
        return manifests.folder(self.series, self.root)

    @property
    def state(self) -> Path:
        return paths.cache("port") / f"{self.series}-{self.release}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The patches (by id) of `origin` whose range covers the release.

    `skipped` says why others are not ported, `lacking` has those that `origin` has not.
    """

    origin: str
    patches: dict[str, PatchFile]
    skipped: tuple[NotApplicable, ...]
    lacking: tuple[str, ...]


class Before(msgspec.Struct, frozen=True):
    """The files of a release's folder and its entry in the manifest; None if there was no folder or entry."""

    files: dict[str, bytes] | None
    entry: ReleaseEntry | None


def port_release(request: Request) -> PortReport:
    """Port a series to a release and return the report, which is also kept with the patches.

    Raises:
        UsageError: no release to start from, or no port to continue.
        ToolError: as the stages raise; the series on disk is then unchanged.
    """
    if request.action in (Action.CONTINUE, Action.DROP) and not waits(request.state):
        raise UsageError(f"no port waits in {request.state}", remedy="start one without --continue")
    manifest = manifests.load(request.folder)
    done = _finished(request, manifest)
    if done is not None:
        return done
    origin = _origin(request, manifest)
    before = Before(_content(request.folder / request.release), manifest.release.get(request.release))
    release = known_release(request.release, origin)
    chosen = choose(request.folder, manifest, origin, request.release)
    with tempfile.TemporaryDirectory(prefix="multiworld-trees-") as workplace:
        old = _tree(releases.get(origin), request.from_source, Path(workplace, "old"))
        new = _tree(release, request.to_source, Path(workplace, "new"))
        session = Session(tuple(chosen.patches.values()), old, new, request.state)
        outcome = session.run(request.action)
        if request.state.is_dir() and not (request.state / BEFORE).exists():  # or an earlier run has stored it
            write_record(request.state / BEFORE, before)
        ports = {name: item.port for name, item in zip(chosen.patches, outcome.committed, strict=True)}
        entry = _entry(release, chosen, ports)
        files = {name: f"{n:04d}-{manifest.entry(name).slug}.patch" for n, name in enumerate(entry.patches, 1)}
        names = [files.get(name, "") for name in ports]
        report = structs.replace(
            report_of(outcome, request.series, origin, request.release, names),
            skipped=tuple(f"{name}: {origin} has no patch to port from" for name in chosen.lacking),
            # Only the name: reports are kept in the repository.
            checkout=outcome.checkout.name if outcome.checkout else "",
        )
        patches = exported(outcome, names)
        if not entry.missing:
            # It streams wheels. A port counts as finished once its entry is written, so this comes first.
            fill_build_ids(request.release)
        with deferred_signals():
            _write(request, manifest, patches | reports(report), entry)
            if report.complete:
                session.close()
    return report


def _finished(request: Request, manifest: Manifest) -> PortReport | None:
    entry = manifest.release.get(request.release)
    if request.again or entry is None or entry.missing or not entry.patches or request.action is not Action.START:
        return None
    kept = request.folder / request.release / JSON
    if not kept.is_file():
        what = f"{request.series} has its patches for {request.release}, written by hand"
        raise UsageError(what, remedy="--again ports again and replaces them")
    known = releases.load().get(request.release)
    if known is None or request.series not in known.series:
        return None  # the port was interrupted at its end: go on
    step(f"{request.series} has its patches for {request.release} already; --again ports again")
    return msgspec.json.decode(kept.read_bytes(), type=PortReport)


def _origin(request: Request, manifest: Manifest) -> str:
    whole = [name for name, entry in manifest.release.items() if entry.patches and not entry.missing]
    if request.origin and request.origin not in whole:
        remedy = f"--from one of: {', '.join(whole) or '(no release is complete)'}"
        raise UsageError(f"{request.series} has no complete patches for {request.origin}", remedy=remedy)
    others = [name for name in releases.nearest(request.release, whole) if name != request.release]
    if not others:
        raise UsageError(f"{request.series} is complete for no other release, so there is nothing to port")
    return request.origin or others[0]


def choose(folder: Path, manifest: Manifest, origin: str, release: str) -> Chosen:
    known = manifest.release.get(release)
    # What an earlier port found upstream is looked for again: it is a finding, not a decision.
    decided = known.not_applicable if known else ()
    skipped = tuple(item for item in decided if not item.reason.startswith(ALREADY_THERE))
    wanted = [p.id for p in manifest.patch if p.covers(release) and p.id not in {item.id for item in skipped}]
    files = manifests.patch_paths(folder, manifest, origin)
    patches = {name: read(file) for name, file in files.items() if name in wanted}
    return Chosen(origin, patches, skipped, tuple(name for name in wanted if name not in files))


def _tree(release: Release, source: str, workplace: Path) -> Tree:
    """Return a release's tree; a tree that the user names is not checked."""
    if source:
        tree = open_tree(source, workplace)
        return Tree(tree.git, tree.commit, release.tag)
    found = sources.acquire(release)
    git = Git(found.repo)
    return Tree(git, git.resolve(found.base), release.tag)


def _content(folder: Path) -> dict[str, bytes] | None:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else None


def _write(request: Request, manifest: Manifest, files: dict[str, bytes], entry: ReleaseEntry) -> None:
    """Write patches and reports in one step, then the manifest's entry, and last what `_finished` looks for."""
    target = request.folder / request.release
    before = {name: data for name, data in (_content(target) or {}).items() if name.endswith(".patch")}
    write_series(target, files)
    old = manifest.release.get(request.release)
    if old is not None and before == {name: data for name, data in files.items() if name.endswith(".patch")}:
        entry = structs.replace(entry, verified=old.verified, note=old.note)
    write_entry(request.folder, request.release, entry)
    if not entry.missing:
        set_series(request.release, request.series)


def _entry(release: Release, chosen: Chosen, ports: Mapping[str, PatchPort]) -> ReleaseEntry:
    """Return the manifest's entry; it is `ported` until the patches are built and probed."""
    upstream = []
    for name, port in ports.items():
        if port.state is PatchState.UNNEEDED:
            evidence = [verdict.evidence for verdict in port.verdicts if verdict.evidence]
            upstream.append(NotApplicable(id=name, reason=": ".join([ALREADY_THERE, *evidence[:1]])))
    waiting = tuple(name for name, port in ports.items() if port.state is PatchState.NEEDS_HUMAN)
    return ReleaseEntry(
        base_commit=release.commit,
        derived_from=chosen.origin,
        patches=tuple(name for name, port in ports.items() if port.state is PatchState.PORTED),
        not_applicable=(*chosen.skipped, *upstream),
        missing=(*waiting, *chosen.lacking),
        verified=Verified.NONE if waiting or chosen.lacking else Verified.PORTED,
        note=f"Ported from {chosen.origin} by regenerate-patch: {MARKDOWN}. Not compiled, not probed.",
    )


def give_up(folder: Path, release: str, state: Path) -> None:
    """Discard a waiting port and restore what the series had.

    Raises:
        UsageError: no port waits, or the record of what the series had is damaged.
    """
    kept = state / BEFORE
    if not waits(state) or not os.path.lexists(kept):
        discard(state)  # raises if no port waits; a port may be interrupted before it wrote anything
        return
    before = read_record(kept, Before)
    if before is None:
        raise UsageError(f"{kept} is damaged", remedy=f"remove {state} and look at {folder} with git")
    write_entry(folder, release, before.entry)
    if before.files is None:
        shutil.rmtree(folder / release, ignore_errors=True)
    else:
        write_series(folder / release, before.files)
    discard(state)
