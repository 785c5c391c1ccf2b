"""Port what a patch does to one file, whatever kind of change it is."""

from __future__ import annotations

import posixpath
import tempfile
from dataclasses import replace
from pathlib import Path

from build.git import Git
from build.porting.lines import tokens
from build.porting.markers import Labels
from build.porting.modified import port_modified
from build.porting.result import ChangePort, Context, Files, whole
from build.porting.trees import FileState
from build.series.model import ChangeKind, FileChange
from build.series.verdicts import Verdict


def port_change(ctx: Context, change: FileChange) -> ChangePort:
    """Port one file's change to the new tree as it is now."""
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


def _added(ctx: Context, change: FileChange) -> ChangePort:
    """Port a new text file."""
    path, content = change.path, change.added_content
    made = FileState(change.new_mode or "100644", content)
    current = ctx.new.get(path)
    old: Files = {path: made}
    if current is None:
        blocked = _blocked(ctx, path)
        if blocked:
            text = f"{blocked} is a file in the new tree, so nothing can stand below it"
            return ChangePort(whole(ctx, change, Verdict.CONFLICT, text, hunks=_numbers(change)), old)
        verdicts = whole(ctx, change, Verdict.CLEAN, hunks=_numbers(change))
        return ChangePort(tuple(replace(v, line=int(v.hunk > 0)) for v in verdicts), old, {path: made})
    if current.data == content or tokens([current.data]) == tokens([content]):
        same = "the same content" if current.data == content else "the same code, formatted differently"
        text = f"the new tree has {path} with {same}"
        return ChangePort(whole(ctx, change, Verdict.UPSTREAM, text, hunks=_numbers(change)), old)
    text = f"the new tree has another {path} already"
    marked = {path: FileState(current.mode, _two_sides(ctx.labels, current.data, b"", content))}
    return ChangePort(whole(ctx, change, Verdict.CONFLICT, text, hunks=_numbers(change)), old, {}, marked)


def _blocked(ctx: Context, path: str) -> str:
    """Return the file or link of the new tree that stands where `path` needs a folder."""
    folder = posixpath.dirname(path)
    while folder:
        if ctx.new.has(folder):
            return folder
        folder = posixpath.dirname(folder)
    return ""


def _two_sides(labels: Labels, ours: bytes, base: bytes, theirs: bytes) -> bytes:
    """Return a whole file in conflict."""

    def lines(data: bytes) -> bytes:
        return data if not data or data.endswith(b"\n") else data + b"\n"

    return b"".join(
        (
            b"<<<<<<< " + labels.ours + b"\n" + lines(ours),
            b"||||||| " + labels.base + b"\n" + lines(base),
            b"=======\n" + lines(theirs),
            b">>>>>>> " + labels.theirs + b"\n",
        )
    )


def _deleted(ctx: Context, change: FileChange) -> ChangePort:
    """Port the removal of a text file."""
    path = change.path
    base, current = ctx.old.get(path), ctx.new.get(path)
    old = {path: None}
    numbers = _numbers(change)
    if current is None:
        found = ctx.finder.renamed(path, base.data) if base else None
        if found:
            text = f"the file to be removed seems to be {found[0]} now: {found[1]}"
            return ChangePort(whole(ctx, change, Verdict.CONFLICT, text, hunks=numbers), old)
        since = ctx.gone_since(path)
        text = f"the new tree has no such file{since}"
        return ChangePort(whole(ctx, change, Verdict.UPSTREAM, text, hunks=numbers), old)
    if base is not None and current.data == base.data:
        return ChangePort(whole(ctx, change, Verdict.CLEAN, hunks=numbers), old, {path: None})
    text = "the file to be removed has changed in the new tree"
    content = base.data if base else b""
    marked = {path: FileState(current.mode, _two_sides(ctx.labels, current.data, content, b""))}
    return ChangePort(whole(ctx, change, Verdict.CONFLICT, text, hunks=numbers), old, {}, marked)


def _mode(ctx: Context, change: FileChange) -> ChangePort:
    """Port a change of mode alone."""
    path, wanted = change.path, change.new_mode or "100644"
    base, current = ctx.old.get(path), ctx.new.get(path)
    old = {path: replace(base, mode=wanted)} if base else {}
    if current is None:
        return ChangePort(whole(ctx, change, Verdict.GONE, f"no such file{ctx.gone_since(path)}"), old)
    if current.mode == wanted:
        return ChangePort(whole(ctx, change, Verdict.UPSTREAM, f"its mode is {wanted} already"), old)
    if current.mode != change.old_mode:
        text = f"its mode is {current.mode}, the patch expects {change.old_mode}"
        return ChangePort(whole(ctx, change, Verdict.CONFLICT, text), old)
    return ChangePort(whole(ctx, change, Verdict.CLEAN), old, {path: replace(current, mode=wanted)})


def _renamed(ctx: Context, change: FileChange) -> ChangePort:
    """Port a renamed or copied file with what is changed in it."""
    source, target = change.old_path or "", change.path
    copied = change.kind is ChangeKind.COPIED
    has_source, has_target = ctx.new.has(source), ctx.new.has(target)
    inner = port_modified(ctx, change, source) if change.hunks else ChangePort(())
    moved_here = ctx.old.get(source)
    state = inner.old.get(source, moved_here)
    old = {target: state} if copied else {source: None, target: state}
    if has_source and not has_target:
        content = inner.new.get(source, ctx.new.get(source))
        new = {target: content} if copied else {source: None, target: content}
        marked = {target if path == source else path: data for path, data in inner.marked.items()}
        return ChangePort((*whole(ctx, change, Verdict.CLEAN, f"to {target}"), *inner.verdicts), old, new, marked)
    if has_target and not has_source and not copied:
        return _renamed_upstream(ctx, change, target, old)
    text = f"the new tree has {target} already" if has_target else "the new tree has no such file"
    verdict = Verdict.CONFLICT if has_target else Verdict.GONE
    return ChangePort(whole(ctx, change, verdict, text, hunks=[0, *_numbers(change)]), old)


def _renamed_upstream(ctx: Context, change: FileChange, target: str, old: dict[str, FileState | None]) -> ChangePort:
    """Port the hunks of a rename that the new tree has already."""
    base = ctx.old.get(change.old_path or "")
    done = whole(ctx, change, Verdict.UPSTREAM, f"the new tree has it as {target} already")
    if not change.hunks or base is None:
        return ChangePort(done, old)
    kept = dict(ctx.old.changed)
    ctx.old.put(target, base)
    inner = port_modified(ctx, change, target)
    ctx.old.changed.clear()
    ctx.old.changed.update(kept)
    return ChangePort((*done, *inner.verdicts), old, inner.new, inner.marked)


def _opaque(ctx: Context, change: FileChange) -> ChangePort:
    """Port a change that is whole or nothing: a binary file, a submodule."""
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
        return ChangePort(whole(ctx, change, Verdict.GONE, f"no such file{ctx.gone_since(source)}"), old)
    same = current.data == base.data if current and base else current is base
    if not same:
        return ChangePort(
            whole(ctx, change, Verdict.CONFLICT, "it differs in the new tree, and has no lines to merge"), old
        )
    return ChangePort(whole(ctx, change, Verdict.CLEAN), old, {source: None, target: after})


def _after(change: FileChange, base: FileState | None) -> FileState | None:
    """Return the file as the change leaves it, None if it is deleted or cannot be told."""
    if change.kind is ChangeKind.DELETED:
        return None
    mode = change.new_mode or (base.mode if base else "100644")
    commits = change.submodule_commits
    if commits is not None:
        return FileState(mode, commits[1])
    data = _binary_content(change, base.data if base else None)
    return None if data is None else FileState(mode, data)


def _binary_content(change: FileChange, base: bytes | None) -> bytes | None:
    """Return what a binary change makes of `base` (None: no file).

    git decodes it, and refuses a `base` whose blob id is not the one that the patch names.

    Returns:
        None when it does not apply, or the patch carries no content (`Binary files differ`).
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
        # GIT_DIR keeps git from finding a repository above, whose index would then count.
        done = Git(Path(folder)).call("apply", "--binary", "-", stdin=patch, env={"GIT_DIR": folder})
        return file.read_bytes() if done.returncode == 0 and file.is_file() else None
