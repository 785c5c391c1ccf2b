"""Read patches of `git format-patch`, `git diff` and plain `diff -u`, as bytes.

The format is that of `git apply` (git's apply.c) and GNU patch. What either would have to guess is an error.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from build.errors import PatchError
from build.series.model import ChangeKind, FileChange, PatchFile
from build.series.reader import Reader, check_symlink, problem, refuse, strip
from build.series.sections import take_change

#: Fields every patch of this project carries (the others of DEP-3 are optional).
REQUIRED = ("Description", "Origin", "Forwarded", "Applied-Upstream", "Last-Update")
_FIELD = re.compile(
    r"(Description|Subject|Origin|Bug(?:-[A-Za-z]+)?|Forwarded|Author|From|Date|Reviewed-by|Acked-by|"
    r"Last-Update|Applied-Upstream):[ \t]*(.*)"
)
_STAT = re.compile(
    rb"^ (\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?\r?$", re.MULTILINE
)
_MAIL = re.compile(rb"\AFrom [0-9a-f]{40} ")
_LOOKS_LIKE_HEADER = re.compile(rb"^(From|Subject|Description|Origin|Author|Forwarded|Last-Update|Date):", re.MULTILINE)


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
    rest = b"".join(reader.lines[end:]) if end else b""
    if rest and any(start.startswith(rest) for start in (b"@@", b"diff --git ")):
        raise reader.truncated("where another hunk or file begins")
    header = data[:offset]
    crlf = first is not None and reader.lines[first].endswith(b"\r\n")
    fields, mended = read_fields(header), tuple(reader.mended)
    return PatchFile(name, data, header, tuple(changes), rest, crlf, fields, offset, mended=mended)


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
            raise refuse(name, change.line, f"the patch names {trouble}: {raw!r}", remedy="do not use this patch")
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


def read_fields(header: bytes) -> dict[str, str]:
    """Return the fields of a header; a line that starts with a blank continues the field above it."""
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in header.decode("utf-8", "replace").splitlines():
        match = _FIELD.fullmatch(line)
        if match:
            current = [match.group(2)]
            fields.setdefault(match.group(1), current)
        elif line[:1] in {" ", "\t"} and current is not None:
            current.append("" if line.strip() == "." else line.strip())
        else:
            current = None
    return {name: "\n".join(lines).strip() for name, lines in fields.items()}


def diffstat(header: bytes) -> tuple[int, int, int] | None:
    """Return files, insertions and deletions of the diffstat in a mail; None if it has no diffstat."""
    found = list(_STAT.finditer(header))
    if not found:
        return None
    files, plus, minus = found[-1].groups()
    return int(files), int(plus or 0), int(minus or 0)


def is_mail(data: bytes) -> bool:
    return _MAIL.match(data) is not None


def has_header(data: bytes) -> bool:
    """Return whether the bytes begin like a described patch: then a patch without changes is valid."""
    return is_mail(data) or _LOOKS_LIKE_HEADER.search(data[:4096]) is not None
