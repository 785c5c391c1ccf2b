"""Read one file section of a patch, of git or of plain `diff -u`."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from build.git import SUBMODULE
from build.series.model import EMPTY_BLOB, MODES, ChangeKind, FileChange, Hunk
from build.series.reader import Reader, unquote

_EPOCH = re.compile(rb"\t(1970-01-01 00:00:00|1969-12-31 1[2-9]:00:00|Thu Jan +1 00:00:00 1970)")
_DATED = re.compile(rb"[ \t]+\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*$")
_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d{6}))?")
_EXTENDED = re.compile(
    rb"((?:old|new|new file|deleted file) mode|(?:rename|copy) (?:from|to)|(?:(?:dis)?similarity )?index) (.*)",
    re.DOTALL,
)
_BASE85 = re.compile(rb"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]{5,65}")


def take_change(reader: Reader) -> FileChange | None:
    line = reader.peek()
    if line.startswith(b"diff --git "):
        return _git(reader)
    if line.startswith((b"diff --cc ", b"diff --combined ")):
        raise reader.error("a merge's combined diff is not a patch")
    if line.startswith(b"--- ") and reader.peek(1).startswith(b"+++ "):
        return _plain(reader)
    if line.startswith(b"@@ -") or (line.startswith(b"--- ") and reader.peek(1).startswith(b"@@ -")):
        raise reader.error("a hunk without the file header (--- and +++) that says where it belongs")
    return None


def _names(reader: Reader) -> tuple[str | None, str | None, bool, bool]:
    """Take `---` and `+++`: both names (None for /dev/null), and whether each side is dated as missing."""
    sides: list[tuple[str | None, bool]] = []
    for prefix in (b"--- ", b"+++ "):
        if not reader.peek().startswith(prefix):
            raise (reader.truncated("inside a file header") if reader.done else reader.error(f"expected {prefix!r}"))
        text = reader.bare()[4:]
        bare = _DATED.sub(b"", text.split(b"\t")[0])
        path = None if bare == b"/dev/null" else unquote(bare)
        sides.append((path, path is None or _EPOCH.search(text) is not None))
        reader.take()
    return sides[0][0], sides[1][0], sides[0][1], sides[1][1]


def _hunks(reader: Reader) -> tuple[Hunk, ...]:
    """Take the hunks that follow; they must be in order and apart."""
    hunks: list[Hunk] = []
    while reader.peek().startswith(b"@@"):
        hunk = reader.hunk()
        if hunks and hunk.first < hunks[-1].first + len(hunks[-1].old):
            raise reader.error("hunks overlap or are out of order", line=hunk.line)
        hunks.append(hunk)
    return tuple(hunks)


def _plain(reader: Reader) -> FileChange:
    line = reader.at + 1
    old, new, no_old, no_new = _names(reader)
    hunks = _hunks(reader)
    if not hunks:
        raise reader.truncated("before the first hunk of a file")
    if old is None and new is None:
        raise reader.error("both sides are /dev/null", line=line)
    if no_old and not any(hunk.old for hunk in hunks):
        return FileChange(ChangeKind.ADDED, hunks=hunks, line=line, raw=(None, new))
    if no_new and not any(hunk.new for hunk in hunks):
        return FileChange(ChangeKind.DELETED, hunks=hunks, line=line, raw=(old, None))
    if old is None or new is None:
        raise reader.error("one side is /dev/null, but its hunk has lines on that side", line=line)
    return FileChange(ChangeKind.MODIFIED, hunks=hunks, line=line, raw=(old, new))


def _git(reader: Reader) -> FileChange:
    line = reader.at + 1
    both = reader.bare()[len(b"diff --git ") :]
    pair = _pair(both)
    reader.take()
    seen = _extended(reader)
    hunks: tuple[Hunk, ...] = ()
    binary: bytes | None = None
    if reader.peek().startswith(b"--- "):
        old, new, _, _ = _names(reader)
        if pair is None and both == os.fsencode(f"{old} {new}"):  # git diff --no-index of two names
            pair = (old or "", new or "")
        _agree(reader, line, pair, (old, new), seen)
        pair = (old or new or "", new or old or "")
        hunks = _hunks(reader)
        if not hunks:
            raise reader.truncated("before the first hunk of a file")
    elif reader.peek().startswith((b"GIT binary patch", b"Binary files ")):
        binary = _binary(reader)
    change = replace(_assemble(reader, line, pair, seen), hunks=hunks, binary=binary)
    _complete(reader, change, seen)
    return change


def _agree(
    reader: Reader,
    line: int,
    pair: tuple[str, str] | None,
    names: tuple[str | None, str | None],
    seen: dict[bytes, bytes],
) -> None:
    """Refuse a section whose `diff --git` line and `---`/`+++` lines name different files.

    Of a changed file GNU patch takes the latter, and so does a reader that mends. Of a new one it takes the former.
    """
    moved = b"rename from" in seen or b"copy from" in seen
    differ = pair is not None and any(b is not None and a != b for a, b in zip(pair, names, strict=True))
    if not differ and (pair or moved):
        return
    if not reader.mend or moved or None in names:
        raise reader.error("the names after diff --git are not those after --- and +++", line=line)
    reader.mended.append(f"line {line} names other files than the --- and +++ below it, which are taken")


def _extended(reader: Reader) -> dict[bytes, bytes]:
    seen: dict[bytes, bytes] = {}
    while match := _EXTENDED.fullmatch(reader.bare()):
        if not reader.peek().endswith(b"\n"):
            raise reader.truncated("in the middle of a line")
        seen[match[1]] = match[2]
        reader.take()
    return seen


def _pair(text: bytes) -> tuple[str, str] | None:
    """Return the names of a `diff --git` line, None where blanks make them ambiguous (other lines then decide)."""
    if text.startswith(b'"'):
        match = re.fullmatch(rb'("(?:[^"\\]|\\.)*") (.+)', text)
        return (unquote(match[1]), unquote(match[2])) if match else None
    if text.endswith(b'"'):
        match = re.fullmatch(rb'(.+?) ("(?:[^"\\]|\\.)*")', text)
        return (unquote(match[1]), unquote(match[2])) if match else None
    for index in (i for i, byte in enumerate(text) if byte == ord(" ")):
        left, right = text[:index], text[index + 1 :]
        if left == right or left.partition(b"/")[2] == right.partition(b"/")[2] != b"":
            return unquote(left), unquote(right)
    return None


def _assemble(reader: Reader, line: int, pair: tuple[str, str] | None, seen: dict[bytes, bytes]) -> FileChange:
    index = _INDEX.fullmatch(seen.get(b"index", b""))
    if b"index" in seen and index is None:
        raise reader.error("malformed index line", line=line)
    pairs = ((b"old mode", b"deleted file mode"), (b"new mode", b"new file mode"))
    modes = [(seen.get(a) or seen.get(b, b"")).decode("ascii", "replace") for a, b in pairs]
    if index and index[3] and not any(modes):
        modes = [index[3].decode()] * 2
    if unknown := [mode for mode in modes if mode and mode not in MODES]:
        raise reader.error(f"git does not keep the file mode {unknown[0]}", line=line)
    kind, raw = _kind(seen, *(pair or (None, None)))
    if raw == (None, None):
        raise reader.error("cannot tell which file this section is about", line=line)
    old_blob, new_blob = (index[1].decode(), index[2].decode()) if index else (None, None)
    return FileChange(kind, None, None, modes[0] or None, modes[1] or None, old_blob, new_blob, line=line, raw=raw)


def _kind(
    seen: dict[bytes, bytes], old: str | None, new: str | None
) -> tuple[ChangeKind, tuple[str | None, str | None]]:
    """Return the kind of a git section, and the two names as written."""
    for verb, kind in ((b"rename", ChangeKind.RENAMED), (b"copy", ChangeKind.COPIED)):
        if (source := seen.get(verb + b" from")) is not None and (target := seen.get(verb + b" to")) is not None:
            return kind, (unquote(source), unquote(target))
    if b"new file mode" in seen:
        return ChangeKind.ADDED, (None, new)
    if b"deleted file mode" in seen:
        return ChangeKind.DELETED, (old, None)
    only_mode = b"index" not in seen and {b"old mode", b"new mode"} <= seen.keys()
    return ChangeKind.MODE if only_mode else ChangeKind.MODIFIED, (old, new)


def _binary(reader: Reader) -> bytes:
    """Take a binary section; `Binary files differ` gives an empty one, since it carries no content."""
    if reader.take().startswith(b"Binary files "):
        return b""
    start = reader.at
    for side in range(2):
        if not re.match(rb"(literal|delta) \d+\r?\n", reader.peek()):
            if side == 1:
                break
            raise (reader.truncated("inside a binary patch") if reader.done else reader.error("malformed binary patch"))
        reader.take()
        while _BASE85.fullmatch(reader.bare()):
            reader.take()
        if reader.done:
            raise reader.truncated("inside a binary patch")
        if reader.bare():
            raise reader.error("malformed line in a binary patch")
        reader.take()
    return b"GIT binary patch\n" + b"".join(reader.lines[start : reader.at])


def _complete(reader: Reader, change: FileChange, seen: dict[bytes, bytes]) -> None:
    """Refuse a git section whose header promises more than it has."""
    has_body = bool(change.hunks) or change.binary is not None
    if change.kind is ChangeKind.ADDED and any(hunk.old for hunk in change.hunks):
        raise reader.error("a new file's hunk removes or keeps lines", line=change.line)
    if change.kind is ChangeKind.DELETED and any(hunk.new for hunk in change.hunks):
        raise reader.error("a deleted file's hunk leaves lines", line=change.line)
    if has_body or change.kind is ChangeKind.MODE:
        return
    side = {ChangeKind.ADDED: change.new_blob, ChangeKind.DELETED: change.old_blob}.get(change.kind)
    if side is not None and not EMPTY_BLOB.startswith(side):
        raise reader.truncated("before the content of a file")
    if change.kind is ChangeKind.MODIFIED and SUBMODULE not in {change.old_mode, change.new_mode}:
        raise reader.truncated("before the first hunk of a file")
    if not seen:
        raise reader.truncated("inside a file header")
