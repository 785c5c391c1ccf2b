"""Port the hunks of a text file, to the same file or to where it or its code went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from build.porting.alignment import Alignment, align
from build.porting.candidates import REACH
from build.porting.groups import split
from build.porting.moved_code import moved_away, port_moved
from build.porting.result import ChangePort, Context, Files, whole
from build.porting.textport import TextPort, port_text
from build.porting.trees import FileState
from build.series.inspect import Text, locate
from build.series.model import FileChange, Hunk
from build.series.verdicts import HunkVerdict, Method, Verdict

#: Verdicts that stay what they are when the file moved; the others become `file moved`.
_KEPT = {Verdict.UPSTREAM, Verdict.PARTLY, Verdict.CONFLICT, Verdict.GONE}


def port_modified(ctx: Context, change: FileChange, source: str) -> ChangePort:
    """Port the hunks of `change`, made for the old tree's file `source`."""
    base = ctx.old.get(source)
    numbers = range(1, len(change.hunks) + 1)
    hunks = _hunks(ctx, change, base)
    target, moved_why = _target(ctx, source, base)
    if base is None and target is None:
        return ChangePort(whole(ctx, change, Verdict.GONE, "neither tree has this file", hunks=numbers))
    data = base.data if base else b""
    here, elsewhere = _shared_out(ctx, source, data, target, hunks)
    verdicts: dict[int, HunkVerdict] = {}
    new: dict[str, FileState | None] = {}
    marked: dict[str, FileState | None] = {}
    for path, chosen, why in [(target, here, moved_why), *elsewhere]:
        if path is None:
            continue
        current = ctx.new.get(path)
        if current is None or not chosen:
            continue
        ported = port_text(data, current.data, [hunks[n - 1] for n in chosen], ctx.labels)
        mode = _mode(change, current.mode)
        new[path] = FileState(mode, ported.new)
        if ported.marked != ported.new or any(r.verdict.needs_human for r in ported.hunks):
            marked[path] = FileState(mode, ported.marked)
        verdicts |= _verdicts(ctx, source, path, chosen, ported, why)
    lost = [number for number in numbers if number not in verdicts]
    since = ctx.gone_since(source) if lost else ""  # asks the history, which takes seconds
    text = f"the new tree has no such file{since}"
    verdicts |= {n: whole(ctx, change, Verdict.GONE, text, hunks=[n])[0] for n in lost}
    old: Files = {source: FileState(_mode(change, base.mode), _old_side(data, hunks))} if base else {}
    return ChangePort(tuple(verdicts[n] for n in numbers), old, new, marked)


def _hunks(ctx: Context, change: FileChange, base: FileState | None) -> Sequence[Hunk]:
    """Return the hunks with the line ends of the file they are for."""
    if not ctx.crlf or base is None or b"\r\n" in base.data:
        return change.hunks
    # The whole patch went through a conversion to DOS line ends, the file did not.
    return [
        replace(h, lines=tuple(t[:-2] + b"\n" if t.endswith(b"\r\n") else t for t in h.lines)) for h in change.hunks
    ]


def _target(ctx: Context, source: str, base: FileState | None) -> tuple[str | None, str]:
    """Return the file of the new tree that is the old tree's `source`, and how it was found."""
    if ctx.new.has(source):
        return source, ""
    if base is None:
        return None, ""
    found = ctx.finder.renamed(source, base.data)
    return found or (None, "")


def _shared_out(
    ctx: Context, source: str, data: bytes, target: str | None, hunks: Sequence[Hunk]
) -> tuple[list[int], list[tuple[str, list[int], str]]]:
    """Return which hunks go to `target`, and which to other files that have taken their code over."""
    current = ctx.new.get(target) if target else None
    alignment = align(Text(data).lines, Text(current.data if current else b"").lines)
    here: list[int] = []
    moved: dict[str, tuple[list[int], str]] = {}
    for number, hunk in enumerate(hunks, 1):
        found = _elsewhere(ctx, source, alignment, hunk)
        if found is None or not _fits(ctx, data, found[0], hunk):
            here.append(number)
        else:
            moved.setdefault(found[0], ([], found[1]))[0].append(number)
    return here, [(path, numbers, why) for path, (numbers, why) in moved.items()]


def _elsewhere(ctx: Context, source: str, alignment: Alignment, hunk: Hunk) -> tuple[str, str] | None:
    """Return the other file that has a hunk's code, which is gone from its own, with the evidence."""
    at, _ = locate(Text(b"".join(alignment.base)), hunk)
    if at is None or not moved_away(alignment, split(hunk, 1, at)):
        return None
    if port_moved(alignment, split(hunk, 1, at)) is not None:
        return None
    near = range(max(0, at - REACH), min(len(alignment.base), at + len(hunk.old) + REACH))
    return ctx.finder.piece(source, [alignment.base[n] for n in near if alignment.to[n] < 0])


def _fits(ctx: Context, data: bytes, path: str, hunk: Hunk) -> bool:
    """Whether a hunk has a certain place in another file."""
    other = ctx.new.get(path)
    if other is None:
        return False
    result = port_text(data, other.data, [hunk], ctx.labels).hunks[0]
    return not result.verdict.needs_human


def _mode(change: FileChange, current: str) -> str:
    """Return the mode after the change: the patch's, where it changes it."""
    changes = change.new_mode is not None and change.old_mode not in {None, change.new_mode}
    return change.new_mode if changes and change.new_mode else current


def _old_side(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    """Return the old file with the hunks that apply to it."""
    lines = Text(data).lines
    shift, floor = 0, 0
    for hunk in hunks:
        at, _ = locate(Text(data), hunk, floor)
        if at is not None:
            lines[at + shift : at + shift + len(hunk.old)] = hunk.new
            shift += len(hunk.new) - len(hunk.old)
            floor = at + len(hunk.old)
    return b"".join(lines)


def _verdicts(
    ctx: Context, source: str, path: str, numbers: Sequence[int], ported: TextPort, why: str
) -> dict[int, HunkVerdict]:
    """Return the verdicts of the hunks that went to `path`."""
    found = {}
    for number, result, line in zip(numbers, ported.hunks, ported.lines, strict=True):
        verdict, method = result.verdict, result.method
        evidence = result.evidence
        if path != source:
            evidence = "; ".join(part for part in (why, evidence) if part)
            if verdict not in _KEPT:
                verdict, method = Verdict.MOVED, Method.MOVED_FILE
                evidence = f"{evidence} ({result.verdict.value} there)"
        new_path = path if path != source else ""
        found[number] = HunkVerdict(ctx.patch, source, number, verdict, method, line, result.offset, new_path, evidence)
    return found
