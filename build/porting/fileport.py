"""Port a change of one file, of any kind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from build.git import Git
from build.porting.alignment import Alignment, align
from build.porting.functions import moved_away, port_moved
from build.porting.groups import Labels, Placed, conflict, split
from build.porting.lines import tokens
from build.porting.moved_files import Finder
from build.porting.placement import REACH
from build.porting.textport import TextPort, port_text
from build.porting.trees import FileState, Layer
from build.series.inspect import lines_of, locate, locate_all
from build.series.model import ChangeKind, FileChange, Hunk, HunkVerdict, Method, Verdict

Files = Mapping[str, "FileState | None"]
_NONE: Files = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of porting a change.

    Attributes:
        patch: the patch's file name.
        old: the old tree with the patches before this one; `new` the new tree with them as ported.
        finder: finds what moved between the trees.
        labels: what the sides of a conflict are called.
        crlf: the patch itself has DOS line ends.
        suspects: hunks (path, number) to be left to a human, and why.
    """

    patch: str
    old: Layer
    new: Layer
    finder: Finder
    labels: Labels
    crlf: bool = False
    suspects: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangePort:
    """A change, ported.

    Attributes:
        verdicts: one per hunk, or one for a change without hunks.
        old: the old tree's files after the change (None: no file).
        new: the new tree's files after the hunks that were placed.
        marked: files for a person to edit, with markers where they are text.
    """

    verdicts: tuple[HunkVerdict, ...]
    old: Files = field(default_factory=dict)
    new: Files = field(default_factory=dict)
    marked: Files = field(default_factory=dict)


def whole(
    ctx: Context, change: FileChange, verdict: Verdict, evidence: str = "", *, hunks: Sequence[int] = ()
) -> tuple[HunkVerdict, ...]:
    """Return one verdict for a whole change: for hunk 0, or for all of `hunks`."""
    method = {Verdict.CLEAN: Method.EXACT, Verdict.UPSTREAM: Method.UPSTREAM}.get(verdict, Method.HUMAN)
    path = change.old_path or change.path
    return tuple(HunkVerdict(ctx.patch, path, number, verdict, method, evidence=evidence) for number in (hunks or [0]))


def expect(ctx: Context, changes: Sequence[FileChange]) -> None:
    """Say which code of a patch may be searched for, so that other files are searched once for all of it."""
    for change in changes:
        path = change.old_path or change.path
        if change.hunks and (old := ctx.old.get(path)) and (new := ctx.new.get(path)):
            alignment = align(lines_of(old.data), lines_of(new.data))
            for placed in _located(alignment, _hunks(ctx, change, old)):
                if moved_away(alignment, placed):
                    ctx.finder.expect(_gone(alignment, placed))


def port_change(ctx: Context, change: FileChange) -> ChangePort:
    if change.submodule_commits is not None or change.binary is not None:
        return _opaque(ctx, change)
    if change.kind is ChangeKind.ADDED:
        return _added(ctx, change)
    if change.kind is ChangeKind.DELETED:
        return _deleted(ctx, change)
    if change.kind in {ChangeKind.RENAMED, ChangeKind.COPIED}:
        return _renamed(ctx, change)
    if change.kind is ChangeKind.MODE:
        return _mode(ctx, change)
    return port_modified(ctx, change, change.old_path or change.path)


def _numbers(change: FileChange) -> list[int]:
    return list(range(1, len(change.hunks) + 1))


def _as_one(
    ctx: Context,
    change: FileChange,
    verdict: Verdict,
    evidence: str,
    old: Files,
    new: Files = _NONE,
    marked: Files = _NONE,
) -> ChangePort:
    """Return the port of a change that has one verdict for all of its hunks."""
    return ChangePort(whole(ctx, change, verdict, evidence, hunks=_numbers(change)), old, new, marked)


def _added(ctx: Context, change: FileChange) -> ChangePort:
    path, content = change.path, change.added_content
    made = FileState(change.new_mode or "100644", content)
    current = ctx.new.get(path)
    old: Files = {path: made}
    if current is None:
        why = next((why for (suspect, _), why in ctx.suspects.items() if suspect == path), "")
        if not why and (found := ctx.finder.piece(path, lines_of(content), least=1)):
            why = f"the new tree seems to have it elsewhere: {found[1]}"
        if why:
            marked = {path: FileState(made.mode, _two_sides(ctx.labels, b"", b"", content))}
            return _as_one(ctx, change, Verdict.CONFLICT, why, old, {}, marked)
        if blocked := next((place for place in map(str, PurePosixPath(path).parents) if ctx.new.has(place)), ""):
            text = f"{blocked} is a file in the new tree, so nothing can be below it"
            return _as_one(ctx, change, Verdict.CONFLICT, text, old)
        verdicts = whole(ctx, change, Verdict.CLEAN, hunks=_numbers(change))
        return ChangePort(tuple(replace(v, line=int(v.hunk > 0)) for v in verdicts), old, {path: made})
    if current.data == content or tokens([current.data]) == tokens([content]):
        same = "the same content" if current.data == content else "the same code, formatted differently"
        return _as_one(ctx, change, Verdict.UPSTREAM, f"the new tree has {path} with {same}", old)
    marked = {path: FileState(current.mode, _two_sides(ctx.labels, current.data, b"", content))}
    return _as_one(ctx, change, Verdict.CONFLICT, f"the new tree has another {path} already", old, {}, marked)


def _two_sides(labels: Labels, ours: bytes, base: bytes, theirs: bytes) -> bytes:
    return b"".join(conflict(labels, *(lines_of(data) for data in (ours, base, theirs))))


def _deleted(ctx: Context, change: FileChange) -> ChangePort:
    path = change.path
    base, current = ctx.old.get(path), ctx.new.get(path)
    old = {path: None}
    if current is None:
        found = ctx.finder.renamed(path, base.data) if base else None
        if found and not ctx.old.has(found[0]):
            text = f"the file to be removed seems to be {found[0]} now: {found[1]}"
            return _as_one(ctx, change, Verdict.CONFLICT, text, old)
        since = ctx.new.tree.gone_since(path)
        return _as_one(ctx, change, Verdict.UPSTREAM, f"the new tree has no such file{since}", old)
    if base is not None and current.data == base.data:
        return _as_one(ctx, change, Verdict.CLEAN, "", old, {path: None})
    marked = {path: FileState(current.mode, _two_sides(ctx.labels, current.data, base.data if base else b"", b""))}
    text = "the file to be removed has changed in the new tree"
    return _as_one(ctx, change, Verdict.CONFLICT, text, old, {}, marked)


def _mode(ctx: Context, change: FileChange) -> ChangePort:
    path, wanted = change.path, change.new_mode or "100644"
    base, current = ctx.old.get(path), ctx.new.get(path)
    old = {path: replace(base, mode=wanted)} if base else {}
    if current is None:
        return _as_one(ctx, change, Verdict.GONE, f"no such file{ctx.new.tree.gone_since(path)}", old)
    if current.mode == wanted:
        return _as_one(ctx, change, Verdict.UPSTREAM, f"its mode is {wanted} already", old)
    if current.mode != change.old_mode:
        text = f"its mode is {current.mode}, the patch expects {change.old_mode}"
        return _as_one(ctx, change, Verdict.CONFLICT, text, old)
    return _as_one(ctx, change, Verdict.CLEAN, "", old, {path: replace(current, mode=wanted)})


def _renamed(ctx: Context, change: FileChange) -> ChangePort:
    source, target = change.old_path or "", change.path
    copied = change.kind is ChangeKind.COPIED
    has_source, has_target = ctx.new.has(source), ctx.new.has(target)
    inner = port_modified(ctx, change, source) if change.hunks else ChangePort(())
    state = inner.old.get(source, ctx.old.get(source))
    old = {target: state} if copied else {source: None, target: state}
    if has_source and not has_target:
        content = inner.new.get(source, ctx.new.get(source))
        new = {target: content} if copied else {source: None, target: content}
        marked = {target if path == source else path: data for path, data in inner.marked.items()}
        verdicts = (*whole(ctx, change, Verdict.CLEAN, f"to {target}"), *inner.verdicts)
        return ChangePort(verdicts, old, new, marked)
    if has_target and not has_source and not copied:
        return _renamed_upstream(ctx, change, target, old)
    text = f"the new tree has {target} already" if has_target else "the new tree has no such file"
    verdict = Verdict.CONFLICT if has_target else Verdict.GONE
    return ChangePort(whole(ctx, change, verdict, text, hunks=[0, *_numbers(change)]), old)


def _renamed_upstream(ctx: Context, change: FileChange, target: str, old: dict[str, FileState | None]) -> ChangePort:
    base = ctx.old.get(change.old_path or "")
    done = whole(ctx, change, Verdict.UPSTREAM, f"the new tree has it as {target} already")
    if not change.hunks or base is None:
        return ChangePort(done, old)
    inner = port_modified(replace(ctx, old=ctx.old.with_({target: base})), change, target)
    return ChangePort((*done, *inner.verdicts), old, inner.new, inner.marked)


def _opaque(ctx: Context, change: FileChange) -> ChangePort:
    """Port a change that cannot be divided: of a binary file or a submodule."""
    source, target = change.old_path or change.path, change.path
    base, current = ctx.old.get(source), ctx.new.get(source)
    after = _after(change, base)
    old = {source: None, target: after}
    if after is None and change.kind is not ChangeKind.DELETED:
        text = "the patch carries no usable content for this binary file"
        return ChangePort(whole(ctx, change, Verdict.CONFLICT, text), old if base else {})
    now = ctx.new.get(target)
    if now == after or (now is not None and after is not None and now.data == after.data):
        return ChangePort(whole(ctx, change, Verdict.UPSTREAM, "the new tree has it already"), old)
    if current is None and change.kind is not ChangeKind.ADDED:
        return ChangePort(whole(ctx, change, Verdict.GONE, f"no such file{ctx.new.tree.gone_since(source)}"), old)
    if not (current.data == base.data if current and base else current is base):
        text = "it differs in the new tree, and has no lines to merge"
        return ChangePort(whole(ctx, change, Verdict.CONFLICT, text), old)
    return ChangePort(whole(ctx, change, Verdict.CLEAN), old, {source: None, target: after})


def _after(change: FileChange, base: FileState | None) -> FileState | None:
    if change.kind is ChangeKind.DELETED:
        return None
    mode = change.new_mode or (base.mode if base else "100644")
    commits = change.submodule_commits
    if commits is not None:
        return FileState(mode, commits[1])
    data = _binary_content(change, base.data if base else None)
    return None if data is None else FileState(mode, data)


def _binary_content(change: FileChange, base: bytes | None) -> bytes | None:
    """Return the content that a binary change makes of `base` (None: no file).

    git decodes the change, and refuses a `base` whose blob id is not the one in the patch. The result is None when it
    does not apply, or the patch has no content (`Binary files differ`).
    """
    if not change.binary:
        return None
    added = change.kind is ChangeKind.ADDED
    head = f"diff --git a/f b/f\n{'new file mode 100644' + chr(10) if added else ''}"
    index = f"index {change.old_blob}..{change.new_blob}{'' if added else ' 100644'}\n"
    with tempfile.TemporaryDirectory(prefix="multiworld-binary-") as folder:
        file = Path(folder, "f")
        if base is not None:
            file.write_bytes(base)
        patch = (head + index).encode() + change.binary
        # GIT_DIR keeps git from using the index of a repository above this folder.
        done = Git(Path(folder)).call("apply", "--binary", "-", stdin=patch, env={"GIT_DIR": folder})
        return file.read_bytes() if done.returncode == 0 and file.is_file() else None


#: Verdicts that are kept when the file moved; the others become `file moved`.
_KEPT = {Verdict.UPSTREAM, Verdict.PARTLY, Verdict.CONFLICT, Verdict.GONE}


def port_modified(ctx: Context, change: FileChange, source: str) -> ChangePort:
    base = ctx.old.get(source)
    numbers = range(1, len(change.hunks) + 1)
    hunks = _hunks(ctx, change, base)
    found = ctx.finder.renamed(source, base.data) if base and not ctx.new.has(source) else None
    target, moved_why = found or (source if ctx.new.has(source) else None, "")
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
        suspects = {at: ctx.suspects[source, n] for at, n in enumerate(chosen) if (source, n) in ctx.suspects}
        ported = port_text(data, current.data, [hunks[n - 1] for n in chosen], ctx.labels, suspects)
        mode = _mode_after(change, current.mode)
        new[path] = FileState(mode, ported.new)
        if ported.marked != ported.new or any(r.verdict.needs_human for r in ported.hunks):
            marked[path] = FileState(mode, ported.marked)
        verdicts |= _verdicts(ctx, source, path, chosen, ported, why)
    lost = [number for number in numbers if number not in verdicts]
    since = ctx.new.tree.gone_since(source) if lost else ""  # searches the history, which takes seconds
    text = f"the new tree has no such file{since}"
    verdicts |= {n: whole(ctx, change, Verdict.GONE, text, hunks=[n])[0] for n in lost}
    old: Files = {source: FileState(_mode_after(change, base.mode), apply_hunks(data, hunks))} if base else {}
    return ChangePort(tuple(verdicts[n] for n in numbers), old, new, marked)


def _hunks(ctx: Context, change: FileChange, base: FileState | None) -> Sequence[Hunk]:
    if not ctx.crlf or base is None or b"\r\n" in base.data:
        return change.hunks
    # The patch was converted to DOS line ends, the file was not.
    return [
        replace(h, lines=tuple(t[:-2] + b"\n" if t.endswith(b"\r\n") else t for t in h.lines)) for h in change.hunks
    ]


def _shared_out(
    ctx: Context, source: str, data: bytes, target: str | None, hunks: Sequence[Hunk]
) -> tuple[list[int], list[tuple[str, list[int], str]]]:
    """Return which hunks go to `target`, and which to other files that now have their code."""
    current = ctx.new.get(target) if target else None
    alignment = align(lines_of(data), lines_of(current.data if current else b""))
    here = dict.fromkeys(range(1, len(hunks) + 1))
    moved: dict[str, tuple[list[int], str]] = {}
    for placed in _located(alignment, hunks):
        away = moved_away(alignment, placed) and port_moved(alignment, placed) is None
        found = ctx.finder.piece(source, _gone(alignment, placed)) if away else None
        other = ctx.new.get(found[0]) if found else None
        if found is None or other is None:
            continue
        if not port_text(data, other.data, [placed.hunk], ctx.labels).hunks[0].verdict.needs_human:
            del here[placed.number]
            moved.setdefault(found[0], ([], found[1]))[0].append(placed.number)
    return list(here), [(path, numbers, why) for path, (numbers, why) in moved.items()]


def _located(alignment: Alignment, hunks: Sequence[Hunk]) -> Iterator[Placed]:
    """Yield the hunks that fit the old file, each by itself, at their places in it."""
    for number, hunk in enumerate(hunks, 1):
        at, _ = locate(alignment.base, hunk)
        if at is not None:
            yield split(hunk, number, at)


def _gone(alignment: Alignment, placed: Placed) -> list[bytes]:
    """Return the lines in and around a hunk that the new file has not, or not there."""
    near = range(max(0, placed.start - REACH), min(len(alignment.base), placed.end + REACH))
    return [alignment.base[n] for n in near if alignment.to[n] < 0]


def _mode_after(change: FileChange, current: str) -> str:
    changes = change.new_mode is not None and change.old_mode not in {None, change.new_mode}
    return change.new_mode if changes and change.new_mode else current


def apply_hunks(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    """Apply hunks to their own file; a hunk that does not fit is left out."""
    lines = list(lines_of(data))
    shift = 0
    for hunk, at, _ in locate_all(lines_of(data), hunks):
        if at is not None:
            lines[at + shift : at + shift + len(hunk.old)] = hunk.new
            shift += len(hunk.new) - len(hunk.old)
    return b"".join(lines)


def _verdicts(
    ctx: Context, source: str, path: str, numbers: Sequence[int], ported: TextPort, why: str
) -> dict[int, HunkVerdict]:
    found = {}
    for number, result, line in zip(numbers, ported.hunks, ported.lines, strict=True):
        verdict, method, evidence = result.verdict, result.method, result.evidence
        if path != source:
            evidence = "; ".join(part for part in (why, evidence) if part)
            if verdict not in _KEPT:
                verdict, method = Verdict.MOVED, Method.MOVED_FILE
                evidence = f"{evidence} ({result.verdict.value} there)"
        new_path = path if path != source else ""
        found[number] = HunkVerdict(ctx.patch, source, number, verdict, method, line, result.offset, new_path, evidence)
    return found
