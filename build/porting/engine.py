"""Port a series from one tree to another; a patch that fails does not stop the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from build.porting import companions
from build.porting.fileport import ChangePort, Context, Files, expect, port_change
from build.porting.groups import Labels
from build.porting.moved_files import Finder
from build.porting.trees import Layer, Tree
from build.series.model import HunkVerdict, Method, PatchFile, Verdict
from build.series.patchfile import diffstat

#: Lines that a commit has once each, in a mail or in git's log; the last one ends its diffstat.
_ONCE = tuple(
    re.compile(line, re.MULTILINE)
    for line in (rb"^From [0-9a-f]{7,40}\b", rb"^commit [0-9a-f]{7,40}\b", rb"^Subject: ", rb"^ \d+ files? changed, ")
)


class PatchState(Enum):
    """Outcomes for a whole patch."""

    PORTED = "ported"
    UNNEEDED = "already upstream"
    NEEDS_HUMAN = "needs a human"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class PatchPort:
    """A patch, ported.

    Attributes:
        patch: the patch as it was.
        state: see `PatchState`.
        verdicts: one per hunk.
        files: the new tree's files after it (None: removed).
        marked: files for a person to edit, if it needs one.
        identical: the files it touches are the same in both trees, so its bytes can stay.
        notes: what else a person should know.
    """

    patch: PatchFile
    state: PatchState
    verdicts: tuple[HunkVerdict, ...]
    files: Files = field(default_factory=dict)
    marked: Files = field(default_factory=dict)
    identical: bool = False
    notes: tuple[str, ...] = ()


def port_series(
    patches: Sequence[PatchFile], old: Tree, new: Tree, resolved: Mapping[str, Files] | None = None
) -> tuple[PatchPort, ...]:
    """Port every patch from `old` to `new`, in order.

    A later patch is ported on top of what the earlier ones made of the new tree, even where one needs a human.
    `resolved` has the new tree's files after the patches that a person decided, by the patch's file name.
    """
    for tree in (old, new):
        tree.preload({path for patch in patches for path in patch.paths})
    before, after = Layer(old), Layer(new)
    finder = Finder(old, new)
    results = []
    for patch in patches:
        labels = Labels(new.label.encode(), old.label.encode(), patch.name.encode())
        ctx = Context(patch.name, before, after, finder, labels, patch.crlf)
        result = _port_patch(ctx, patch, (resolved or {}).get(patch.name))
        after.changed.update(result.files)
        results.append(result)
    return tuple(results)


def _port_patch(ctx: Context, patch: PatchFile, decided: Files | None) -> PatchPort:
    if patch.fault:
        return PatchPort(patch, PatchState.UNREADABLE, (), notes=(patch.fault,))
    identical = all(ctx.old.get(path) == ctx.new.get(path) for path in patch.paths)
    expect(ctx, patch.changes)
    ports, old = _port_changes(ctx, patch)
    known = [state.data for path in patch.paths if (state := ctx.old.get(path)) is not None]
    while (every := companions.suspects(patch, _verdicts(ports), known)).keys() - ctx.suspects.keys():
        ctx = replace(ctx, suspects={**every, **ctx.suspects})
        ports, old = _port_changes(ctx, patch)
    ctx.old.changed.update(old)
    verdicts = _verdicts(ports)
    files = {path: state for port in ports for path, state in port.new.items()}
    marked = {path: state for port in ports for path, state in port.marked.items()}
    if decided is not None:
        return _decided(ctx, patch, verdicts, decided)
    outcome = _state(verdicts, files, ctx.new)
    identical = identical and all(item.verdict is Verdict.CLEAN for item in verdicts)
    marked = marked if outcome is PatchState.NEEDS_HUMAN else {}
    return PatchPort(patch, outcome, verdicts, files, marked, identical, _notes(patch))


def _port_changes(ctx: Context, patch: PatchFile) -> tuple[list[ChangePort], Files]:
    """Port a patch's changes, each on top of those before; return them, and the old tree's files after all of them.

    The trees themselves stay as they were.
    """
    ctx = replace(ctx, old=ctx.old.with_({}), new=ctx.new.with_({}))
    ports: list[ChangePort] = []
    for change in patch.changes:
        port = port_change(ctx, change)
        ports.append(port)
        ctx.old.changed.update(port.old)
        ctx.new.changed.update(port.new)
    return ports, ctx.old.changed


def _verdicts(ports: Sequence[ChangePort]) -> tuple[HunkVerdict, ...]:
    return tuple(verdict for port in ports for verdict in port.verdicts)


def _state(verdicts: Sequence[HunkVerdict], files: Files, new: Layer) -> PatchState:
    if any(item.verdict.needs_human for item in verdicts):
        return PatchState.NEEDS_HUMAN
    changes = any(new.get(path) != state for path, state in files.items())
    return PatchState.PORTED if changes or not verdicts else PatchState.UNNEEDED


def _decided(ctx: Context, patch: PatchFile, verdicts: Sequence[HunkVerdict], decided: Files) -> PatchPort:
    """Return a patch as a person decided it; the evidence names the former conflict."""
    final = []
    for item in verdicts:
        evidence = f"was a {item.verdict.value} ({item.evidence}); decided by hand"
        by_hand = replace(item, verdict=Verdict.DRIFTED, method=Method.HUMAN, evidence=evidence)
        final.append(by_hand if item.verdict.needs_human else item)
    same = all(ctx.new.get(path) == content for path, content in decided.items())
    state = PatchState.UNNEEDED if same else PatchState.PORTED
    return PatchPort(patch, state, tuple(final), decided, notes=_notes(patch))


def _notes(patch: PatchFile) -> tuple[str, ...]:
    """Return what was mended, and whether the hunks are fewer than the diffstat says: the patch may be cut off.

    A patch of several commits has a diffstat for each, or for the last alone; none is that of the whole patch.
    """
    stat = diffstat(patch.header)
    several = any(len(line.findall(patch.data)) > 1 for line in _ONCE)
    if stat is None or several or any(change.binary is not None for change in patch.changes):
        return patch.mended
    if all(have >= said for have, said in zip(patch.counts, stat, strict=True)):
        return patch.mended  # it was edited: nothing is missing
    said = f"its diffstat says {stat} (files, insertions, deletions), its hunks are {patch.counts}"
    return (*patch.mended, f"{said}: edited, or cut off?")
