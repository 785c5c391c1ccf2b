"""Read patches of `git format-patch`, `git diff` and plain `diff -u`, as bytes.

The format is that of `git apply` (git's apply.c) and GNU patch. What either would have to guess is an error.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from build.errors import PatchError
from build.series.fields import has_header, read_fields
from build.series.model import ChangeKind, FileChange, PatchFile
from build.series.reader import Reader
from build.series.safety import check_symlink, problem, refuse, strip
from build.series.sections import take_change


def parse(data: bytes, name: str) -> PatchFile:
    """Read one patch, with one leading folder stripped (`patch -p1`); `name` is for messages.

    An empty file, or one with a header only, gives a patch without changes.

    Raises:
        PatchError: not a patch, cut off, wrong counts, or a path it may not touch; names the line.
    """
    return restrip(parse_raw(data, name, mend=False), 1)


def read(path: Path) -> PatchFile:
    """Read the patch in `path`; PatchError as `parse` raises it, or if the file cannot be read."""
    try:
        return parse(path.read_bytes(), path.name)
    except OSError as error:
        raise PatchError(f"cannot read the patch {path}: {error.strerror}") from None


def parse_raw(data: bytes, name: str, *, mend: bool = True) -> PatchFile:
    """Read one patch without checking its names, which are kept as written (`FileChange.raw`).

    With `mend`, what GNU patch takes is taken, although git does not, and `PatchFile.mended` says so.

    Raises:
        PatchError: not a patch, cut off, or with wrong counts; names the line.
    """
    reader = Reader(data, name, mend=mend)
    changes: list[FileChange] = []
    first: int | None = None
    end = 0
    while not reader.done:
        start = reader.at
        change = take_change(reader)
        if change is None:
            reader.take()
            continue
        first = start if first is None else first
        changes.append(change)
        end = reader.at
    offset = sum(map(len, reader.lines[:first])) if first is not None else len(data)
    if first is None and data.strip() and not has_header(data):
        raise refuse(name, 1, "this is not a patch", "it has no file header (diff --git, or --- and +++)")
    _refuse_cut_header(reader, end)
    header = data[:offset]
    crlf = first is not None and reader.lines[first].endswith(b"\r\n")
    trailer = b"".join(reader.lines[end:]) if first is not None else b""
    fields, mended = read_fields(header), tuple(reader.mended)
    return PatchFile(name, data, header, tuple(changes), trailer, crlf, fields, offset, mended=mended)


def _refuse_cut_header(reader: Reader, end: int) -> None:
    """Refuse a patch that ends within the first characters of another hunk or file."""
    rest = b"".join(reader.lines[end:]) if end else b""
    if rest and any(start.startswith(rest) for start in (b"@@", b"diff --git ")):
        raise reader.truncated("where another hunk or file begins")


def restrip(patch: PatchFile, count: int) -> PatchFile:
    """Return the patch with `count` leading folders stripped from every name.

    Raises:
        PatchError: a name has fewer folders, or names something it may not touch.
    """
    return replace(patch, changes=tuple(_restrip(patch.name, change, count) for change in patch.changes))


def _restrip(name: str, change: FileChange, count: int) -> FileChange:
    # `rename from` and `copy from` carry no a/ or b/: git strips one folder less from them.
    moved = change.kind in {ChangeKind.RENAMED, ChangeKind.COPIED}
    count = max(count - 1, 0) if moved else count
    paths: list[str | None] = []
    for raw in change.raw:
        if raw is None:
            paths.append(None)
            continue
        trouble = problem(raw) if raw.startswith("/") else ""
        try:
            path = strip(raw, count)
        except ValueError:
            what = f"{raw!r} has no {count} leading folders to strip"
            raise refuse(name, change.line, what, "wrong strip level") from None
        trouble = trouble or problem(path)
        if trouble:
            raise refuse(
                name,
                change.line,
                f"the patch names {trouble}: {raw!r}",
                cause="applying it would write outside the source tree",
                remedy="do not use this patch",
            )
        paths.append(path)
    old, new = _one_name(change, paths[0], paths[1])
    result = replace(change, old_path=old, new_path=new)
    check_symlink(name, result)
    return result


def _one_name(change: FileChange, old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """Return one name for both sides: plain diffs name `x.orig` and `x` for one file."""
    if change.kind not in {ChangeKind.MODIFIED, ChangeKind.MODE} or old is None or new is None or old == new:
        return old, new
    best = old if new.endswith((".orig", "~")) or new == old + ".new" else new
    return best, best
