"""Read patches: what `git format-patch`, `git diff` and plain `diff -u` write, as bytes.

Follows the format that `git apply` (git's apply.c) and GNU patch read;
what either would have to guess is an error.
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


def parse(data: bytes, name: str, *, strip_folders: int = 1) -> PatchFile:
    """Read one patch.

    Args:
        data: the file's bytes.
        name: its name, for messages.
        strip_folders: leading folders to strip from its names, the N of `patch -pN`.

    Returns:
        The patch; without changes when it is empty (an empty file, or a header with nothing behind it).

    Raises:
        PatchError: no patch, cut off, wrong counts, or a path it may not touch; names the line.
    """
    return restrip(parse_raw(data, name), strip_folders)


def read(path: Path, *, strip_folders: int = 1) -> PatchFile:
    """Read the patch in `path`; see `parse`.

    Raises:
        PatchError: as `parse`, or the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PatchError(f"cannot read the patch {path}: {error.strerror}") from None
    return parse(data, path.name, strip_folders=strip_folders)


def parse_raw(data: bytes, name: str) -> PatchFile:
    """Read one patch without looking at its names: they are kept as written (`FileChange.raw`)."""
    reader = Reader(data, name)
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
        raise refuse(name, 1, "this is no patch", "no file header (diff --git, or --- and +++) anywhere in it")
    _refuse_cut_header(reader, end)
    header = data[:offset]
    crlf = first is not None and reader.lines[first].endswith(b"\r\n")
    trailer = b"".join(reader.lines[end:]) if first is not None else b""
    return PatchFile(name, data, header, tuple(changes), trailer, crlf, read_fields(header), offset)


def _refuse_cut_header(reader: Reader, end: int) -> None:
    """Refuse a patch that ends within the first characters of another hunk or file: the rest of it would be lost."""
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
            raise refuse(
                name, change.line, f"{raw!r} has no {count} leading folders to strip", "wrong strip level"
            ) from None
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
    """Plain diffs name `x.orig` and `x` for one file: both sides get the better name."""
    if change.kind not in {ChangeKind.MODIFIED, ChangeKind.MODE} or old is None or new is None or old == new:
        return old, new
    best = old if new.endswith((".orig", "~")) or new == old + ".new" else new
    return best, best
