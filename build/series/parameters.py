"""The build variables of a series: what its patches leave open, typed, and the values that a user gives them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from build.errors import UsageError
from build.releases import Frozen

#: What would end a line of a patch or a bracket argument of CMake, or separate the items of a CMake list.
_UNFIT = re.compile(r"[\x00-\x1f\x7f;]|\]=*\]")
_REFERENCE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ON, _OFF = "1", "0"


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

    @property
    def off(self) -> str:
        """The value where the variable does not matter."""
        return _OFF if self.type is Kind.BOOLEAN else ""


def parse_assignments(texts: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, str]:
    """Read `NAME=VALUE` arguments.

    Raises:
        UsageError: not an assignment, an unknown name, or a name twice.
    """
    known = [item.name for item in parameters]
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name not in known:
            raise UsageError(
                f"{text!r} is not NAME=VALUE of a build variable", remedy="use one of: " + ", ".join(known)
            )
        if name in found:
            raise UsageError(f"{name} is given twice", remedy=f"give {name} once")
        found[name] = value
    return found


def resolve(parameters: Sequence[Parameter], given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the value of every variable.

    Args:
        parameters: the variables, in the order of the manifest.
        given: values of some, by name.
        folder: what relative paths are relative to.

    Raises:
        UsageError: a value that is not of its type, variables that exclude each other, or a path that matters and does
            not exist; names the variable.
    """
    values: dict[str, str] = {}
    for item in parameters:
        text = given.get(item.name) or _REFERENCE.sub(lambda match: values[match[1]], item.default)
        values[item.name] = _boolean(item.name, text) if item.type is Kind.BOOLEAN else _path(item.name, text, folder)
    effective = _effective(parameters, values)
    _refuse_exclusive(parameters, effective)
    for item in parameters:
        if item.type is Kind.PATH and not item.output and effective[item.name]:
            _require(item, Path(effective[item.name]))
    return effective


def ignored(parameters: Sequence[Parameter], given: Mapping[str, str], values: Mapping[str, str]) -> list[str]:
    """Return the given variables that do not matter with these values, and with which they would."""
    return [
        f"{item.name} matters with {' or '.join(item.only_with)} only: it is ignored"
        for item in parameters
        if item.only_with and given.get(item.name, item.off) != item.off and values[item.name] == item.off
    ]


def combinations(parameters: Sequence[Parameter], path: str) -> Iterator[dict[str, str]]:
    """Yield the values of every combination of booleans that is allowed, once; `path` is the value of each path."""
    booleans = [item for item in parameters if item.type is Kind.BOOLEAN]
    seen: list[dict[str, str]] = []
    for bits in itertools.product((_OFF, _ON), repeat=len(booleans)):
        values = {item.name: path for item in parameters}
        values |= {item.name: bit for item, bit in zip(booleans, bits, strict=True)}
        values = _effective(parameters, values)
        if values not in seen and not list(_exclusive(parameters, values)):
            seen.append(values)
            yield values


def unplaced(parameters: Sequence[Parameter]) -> set[str]:
    """Return the variables that only the patches can use: neither outputs nor parts of another's default."""
    used = {name for item in parameters for name in _REFERENCE.findall(item.default)}
    return {item.name for item in parameters if not item.output and item.name not in used}


def problems(parameters: Sequence[Parameter]) -> list[str]:
    """Return what is wrong with the variables of a manifest, as sentences."""
    found = []
    earlier: dict[str, Kind] = {}
    booleans = {item.name for item in parameters if item.type is Kind.BOOLEAN}
    for item in parameters:
        if not _NAME.fullmatch(item.name) or item.name in earlier:
            found.append(f"variable {item.name!r} is there twice, or not capital letters, digits and _")
        found += [
            f"variable {item.name!r} names {other!r}, which is not a boolean"
            for other in (*item.excludes, *item.only_with)
            if other not in booleans
        ]
        found += [
            f"the default of {item.name!r} names {other!r}, which is not an earlier path"
            for other in _REFERENCE.findall(item.default)
            if earlier.get(other) is not Kind.PATH
        ]
        if item.type is Kind.BOOLEAN and item.default not in {_ON, _OFF}:
            found.append(f"the default of {item.name!r} is neither 0 nor 1")
        earlier[item.name] = item.type
    return found


def _boolean(name: str, text: str) -> str:
    if text not in {_ON, _OFF}:
        raise UsageError(f"{name}={text} is neither 0 nor 1", remedy=f"give {name}=1 or {name}=0")
    return text


def _path(name: str, text: str, folder: Path) -> str:
    path = str(folder / Path(text).expanduser())
    if _UNFIT.search(path):
        raise UsageError(
            f"{name}: the path {path!r} cannot be written into the build files",
            cause="CMake ends an item of a list, or an argument, at one of its characters",
            remedy="use a path without line breaks, ';' and ']]', such as a symbolic link",
        )
    return path


def _effective(parameters: Sequence[Parameter], values: Mapping[str, str]) -> dict[str, str]:
    """Return the values with those switched off that do not matter."""
    on = {item.name for item in parameters if values[item.name] == _ON and item.type is Kind.BOOLEAN}
    return {
        item.name: values[item.name] if not item.only_with or on & set(item.only_with) else item.off
        for item in parameters
    }


def _exclusive(parameters: Sequence[Parameter], values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for item in parameters:
        yield from ((item.name, other) for other in item.excludes if values[item.name] == values[other] == _ON)


def _refuse_exclusive(parameters: Sequence[Parameter], values: Mapping[str, str]) -> None:
    for one, other in _exclusive(parameters, values):
        raise UsageError(f"{one} and {other} exclude each other", remedy=f"leave {one} or {other} out")


def _require(item: Parameter, path: Path) -> None:
    missing = next((part for part in item.contains if not (path / part).exists()), None)
    if not path.is_dir():
        what = f"{item.name}: the folder {path} does not exist"
    elif missing:
        what = f"{item.name}: {path} has no {missing}"
    else:
        return
    raise UsageError(what, cause=item.usage, remedy=f"give {item.name}=PATH")
