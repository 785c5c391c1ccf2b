"""Put the values of a series' build variables into its patches."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from io import BytesIO

from build.series.model import ChangeKind, FileChange, PatchFile
from build.series.patchfile import parse

_PLACE = re.compile(rb"@([A-Z][A-Z0-9_]*)@")


def places(patch: PatchFile) -> dict[str, set[ChangeKind]]:
    """Return the variables that the added lines of a patch name as `@NAME@`, and in what kinds of changes."""
    found: dict[str, set[ChangeKind]] = {}
    for change in patch.changes:
        for hunk in change.hunks:
            for line in hunk.added:
                for name in _PLACE.findall(line):
                    found.setdefault(name.decode(), set()).add(change.kind)
    return found


def render(patch: PatchFile, values: Mapping[str, str]) -> PatchFile:
    """Return the patch with every `@NAME@` of `values` replaced in the files that it adds, and their blob ids.

    Only in new files: the blob id of a file that the patch modifies could not be known without the sources.
    """
    encoded = {name.encode(): os.fsencode(value) for name, value in values.items()}
    starts = [change.line for change in patch.changes]
    lines = BytesIO(patch.data).readlines()  # split at \n only: a lone \r is content
    parts = [b"".join(lines[: starts[0] - 1])] if starts else [patch.data]
    for change, start, end in zip(patch.changes, starts, [*starts[1:], len(lines) + 1], strict=True):
        section = lines[start - 1 : end - 1]
        parts += _added(change, section, encoded) if change.kind is ChangeKind.ADDED else section
    return parse(b"".join(parts), patch.name)


def _added(change: FileChange, section: Iterable[bytes], values: Mapping[bytes, bytes]) -> list[bytes]:
    def value(match: re.Match[bytes]) -> bytes:
        return values.get(match[1], match[0])

    lines = [_PLACE.sub(value, line) if line.startswith(b"+") else line for line in section]
    content = _PLACE.sub(value, change.added_content)
    before = (change.new_blob or "").encode()
    return [line.replace(before, _blob_id(content)) if line.startswith(b"index ") else line for line in lines]


def _blob_id(content: bytes) -> bytes:
    """The name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest().encode()


def one_patch(title: str, patches: Iterable[PatchFile], values: Mapping[str, str]) -> bytes:
    """Return the changes of all patches as one, for `git apply`, after the values that it was made with."""
    head = [title, *(f"{name}={value}" for name, value in values.items()), ""]
    return os.fsencode("\n".join(head)) + b"\n" + b"".join(patch.diff for patch in patches)
