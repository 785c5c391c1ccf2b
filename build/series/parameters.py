"""The build variables of a series: what its patches leave open as `@NAME@`, and the values that a user gives them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from build.console import note
from build.errors import UsageError
from build.releases import Frozen
from build.series.inspect import lines_of
from build.series.model import ChangeKind, FileChange, PatchFile
from build.series.patchfile import parse

#: What would end a line of a patch or a bracket argument of CMake, or separate the items of a CMake list.
_UNFIT = re.compile(r"[\x00-\x1f\x7f;]|\]=*\]")
_REFERENCE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_PLACE = re.compile(rb"@([A-Z][A-Z0-9_]*)@")


class Kind(Enum):
    """The type of a build variable."""

    BOOLEAN = "boolean"
    PATH = "path"


class Parameter(Frozen, frozen=True):
    """One build variable.

    Attributes:
        name: as users write it; patches have `@NAME@` where its value goes.
        type: see `Kind`; a boolean is 0 or 1.
        default: the value if none is given; `{NAME}` stands for that of an earlier path. Relative paths are below the
            folder where the user is.
        usage: what it means, for people.
        excludes: booleans that cannot be on together with this one.
        only_with: booleans of which one must be on for this variable to matter; else it is 0 or empty in the patches.
        contains: what must exist in the folder.
        output: whether it is the folder for the result, which is made if it does not exist.
    """

    name: str
    type: Kind
    default: str
    usage: str
    excludes: tuple[str, ...] = ()
    only_with: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    output: bool = False

    def value(self, text: str, folder: Path) -> str:
        """Return the value that `text` stands for; UsageError if it is not of the type."""
        if self.type is Kind.BOOLEAN:
            if text not in {"0", "1"}:
                remedy = f"give {self.name}=1 or {self.name}=0"
                raise UsageError(f"{self.name}={text} is neither 0 nor 1", remedy=remedy)
            return text
        path = str(folder / Path(text).expanduser())
        if _UNFIT.search(path):
            what = f"{self.name}: the path {path!r} cannot be written into the build files"
            raise UsageError(what, remedy="use a path without line breaks, ';' and ']]', such as a symbolic link")
        return path

    def require(self, folder: Path) -> None:
        """Raise UsageError if a folder does not exist, or lacks something."""
        missing = next((part for part in self.contains if not (folder / part).exists()), None)
        if not folder.is_dir():
            what = f"{self.name}: the folder {folder} does not exist"
        elif missing:
            what = f"{self.name}: {folder} has no {missing}"
        else:
            return
        raise UsageError(what, cause=self.usage, remedy=f"give {self.name}=PATH")


def resolve(parameters: Sequence[Parameter], texts: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the value of every variable; one that does not matter with the others is 0 or empty.

    Args:
        parameters: the variables, in the order of the manifest.
        texts: values of some, as `NAME=VALUE`.
        folder: what relative paths are relative to.

    Raises:
        UsageError: not an assignment, an unknown name, a name twice, a value that is not of its type, variables that
            exclude each other, or a path that matters and does not exist; names the variable.
    """
    given = _given(texts, [item.name for item in parameters])
    values: dict[str, str] = {}
    for item in parameters:
        default = _REFERENCE.sub(lambda m: values[m[1]], item.default)
        values[item.name] = item.value(given.get(item.name) or default, folder)
    on = {name for name, value in values.items() if value == "1"}
    for item in parameters:
        if item.only_with and not on.intersection(item.only_with):
            values[item.name] = "0" if item.type is Kind.BOOLEAN else ""
            if given.get(item.name, values[item.name]) != values[item.name]:
                note(f"{item.name} matters with {' or '.join(item.only_with)} only: it is ignored")
    for item in parameters:
        for other in item.excludes:
            if values[item.name] == values[other] == "1":
                what = f"{item.name} and {other} exclude each other"
                raise UsageError(what, remedy=f"leave {item.name} or {other} out")
        if item.type is Kind.PATH and not item.output and values[item.name]:
            item.require(Path(values[item.name]))
    return values


def _given(texts: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name not in known:
            what = f"{text!r} is not NAME=VALUE of a build variable"
            raise UsageError(what, remedy="use one of: " + ", ".join(known))
        if name in found:
            raise UsageError(f"{name} is given twice", remedy=f"give {name} once")
        found[name] = value
    return found


def problems(parameters: Sequence[Parameter]) -> Iterator[str]:
    booleans = {item.name for item in parameters if item.type is Kind.BOOLEAN}
    earlier: dict[str, Kind] = {}
    for item in parameters:
        if not _NAME.fullmatch(item.name) or item.name in earlier:
            yield f"variable {item.name!r} is there twice, or not capital letters, digits and _"
        for other in sorted({*item.excludes, *item.only_with} - booleans):
            yield f"variable {item.name!r} names {other!r}, which is not a boolean"
        for other in _REFERENCE.findall(item.default):
            if earlier.get(other) is not Kind.PATH:
                yield f"the default of {item.name!r} names {other!r}, which is not an earlier path"
        if item.type is Kind.BOOLEAN and item.default not in {"0", "1"}:
            yield f"the default of {item.name!r} is neither 0 nor 1"
        earlier[item.name] = item.type


def unplaced(parameters: Sequence[Parameter]) -> set[str]:
    """Return the variables that only the patches can use: neither outputs nor parts of another's default."""
    used = {name for item in parameters for name in _REFERENCE.findall(item.default)}
    return {item.name for item in parameters if not item.output} - used


def places(patch: PatchFile) -> set[tuple[str, ChangeKind]]:
    """Return the variables that the added lines of a patch name as `@NAME@`, and in what kinds of changes."""
    added = ((change.kind, line) for change in patch.changes for hunk in change.hunks for line in hunk.added)
    return {(name.decode(), kind) for kind, line in added for name in _PLACE.findall(line)}


def render(patch: PatchFile, values: Mapping[str, str]) -> PatchFile:
    """Return the patch with every `@NAME@` of `values` replaced in the files that it adds, and their blob ids.

    Only in new files: the blob id of a file that the patch modifies could not be known without the sources.
    """
    encoded = {name.encode(): os.fsencode(value) for name, value in values.items()}
    starts = [change.line for change in patch.changes]
    lines = lines_of(patch.data)
    parts = list(lines[: starts[0] - 1])
    for change, start, end in zip(patch.changes, starts, [*starts[1:], len(lines) + 1], strict=True):
        section = lines[start - 1 : end - 1]
        parts += _added(change, section, encoded) if change.kind is ChangeKind.ADDED else section
    return parse(b"".join(parts), patch.name)


def _added(change: FileChange, section: Iterable[bytes], values: Mapping[bytes, bytes]) -> list[bytes]:
    def value(match: re.Match[bytes]) -> bytes:
        return values.get(match[1], match[0])

    content = _PLACE.sub(value, change.added_content)
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest().encode()
    lines = [_PLACE.sub(value, line) if line.startswith(b"+") else line for line in section]
    before = (change.new_blob or "").encode()
    return [line.replace(before, blob) if line.startswith(b"index ") else line for line in lines]
