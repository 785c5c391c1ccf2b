"""Gather wheels from folders with the records of their builds and tests; refuse what disagrees with a claim."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from build import record, seals
from build.console import counted
from build.errors import ClaimError, ToolError, UsageError
from build.paths import locked
from build.record import BuildRecord
from build.wheelhouse.model import Wheel, member, read_contents
from build.wheels.archive import check_archive, check_digests
from build.wheels.platforms import newer
from build.wheeltest.results import TestRecord

T = TypeVar("T")
#: Behind the name of a wheel: a file with the reason why the wheel is yanked.
YANKED = ".yanked"


@contextmanager
def gathered(folders: Sequence[Path]) -> Iterator[tuple[Wheel, ...]]:
    """Yield the wheels of `folders`, sorted, while no build can replace them.

    Raises:
        ClaimError: wheels or records are damaged, or disagree with each other; each is named.
        UsageError: a folder does not exist, or there is no wheel.
        BusyError: a build did not end in time.
    """
    if missing := [str(path) for path in folders if not path.is_dir()]:
        raise UsageError(f"no such folder: {', '.join(missing)}", remedy="name folders that hold wheels")
    with ExitStack() as stack:
        for path in sorted(set(folders)):
            if any(path.glob("build*.json")) and os.access(path, os.W_OK):
                stack.enter_context(locked(path / "build", f"the build in {path}"))
        yield _gather(folders)


def record_of(path: Path) -> BuildRecord | None:
    """Return the record, beside the wheel at `path`, of the build that made a wheel of that name and these bytes.

    If all that made one of that name claim other bytes, the last of them.
    """
    claims = _claimed(_records(path.parent, "build*.json", BuildRecord), path.name)
    return claims.get(seals.sha256_of(path)) or next(reversed(claims.values()), None)


def _claimed(builds: Sequence[BuildRecord], name: str) -> dict[str, BuildRecord]:
    """Return the builds that made a wheel called `name`, by the digest that they claim."""
    made = ((item, build) for build in builds for item in (build.patched, build.overlay) if item.name)
    return {item.sha256: build for item, build in made if item.name == name}


def _gather(folders: Sequence[Path]) -> tuple[Wheel, ...]:
    problems: list[str] = []
    found: dict[str, list[Wheel]] = defaultdict(list)
    for path in sorted(set(folders)):
        with _noted(problems):
            builds = _records(path, "build*.json", BuildRecord)
            tests = _records(path, "tests*.json", TestRecord)
            for place in sorted(path.glob("*.whl")):
                with _noted(problems):
                    found[place.name].append(_wheel(place, builds, tests))
    for name, wheels in found.items():
        if len({item.sha256 for item in wheels}) > 1:
            places = "\n".join(f"  {item.sha256} {item.path}" for item in wheels)
            problems.append(f"{len(wheels)} wheels are called {name}, with different bytes:\n{places}")
    if problems:
        what = f"nothing is published, {counted(len(problems), 'problem')}:\n- " + "\n- ".join(problems)
        raise ClaimError(what, remedy="build again, or take these files out of the folders")
    if not found:
        raise UsageError("there is no wheel to publish", remedy="`nox -s build-2.6.0`, or name a folder with wheels")
    return tuple(_merged(found[name]) for name in sorted(found))


def _merged(wheels: Sequence[Wheel]) -> Wheel:
    """Return one of equal wheels, preferably one with the record of its build; a yanked one stays yanked."""
    best = next((item for item in wheels if item.made is not None), wheels[0])
    return replace(best, yanked=next((item.yanked for item in wheels if item.yanked is not None), None))


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Add the error of the block to `problems`, so that the others are looked at, too."""
    try:
        yield
    except ToolError as error:
        problems.append(error.what)


def _records(folder: Path, pattern: str, form: type[T]) -> tuple[T, ...]:
    found = []
    for path in sorted(folder.glob(pattern)):
        _regular(path)
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=form))
        except msgspec.DecodeError as error:
            raise ClaimError(f"{path} is not a record of this version of the project: {error}") from None
    return tuple(found)


def _regular(path: Path) -> None:
    """Raise ClaimError unless `path` is a file, or a link to one: a FIFO would be read for ever."""
    if not path.is_file():
        raise ClaimError(f"{path} is not a file that can be read")


def _wheel(path: Path, builds: Sequence[BuildRecord], every: Sequence[TestRecord]) -> Wheel:
    _regular(path)
    digest, claims = seals.sha256_of(path), _claimed(builds, path.name)
    if claims and digest not in claims:
        want = ", ".join(sorted(claims))
        raise ClaimError(f"{path.name}: its SHA-256 is {digest}, the record of its build says {want}")
    made = claims.get(digest)
    wheel = Wheel(path, read_contents(path), digest, path.stat().st_size, _yanked(path), made, ())
    if made is None:
        check_digests(path)
    else:
        check_archive(path)
        check_claims(wheel, made)
    # One result per Python version: `tests.json` repeats one of the others.
    tests = {item.python: item for item in every if digest in (item.patched_sha256, item.overlay_sha256)}
    return replace(wheel, tests=() if made is None else tuple(tests[python] for python in sorted(tests)))


def check_claims(wheel: Wheel, made: BuildRecord) -> None:
    """Raise ClaimError unless name, tags and embedded record of a wheel are those of the build that made it."""
    proven = made.provenance
    if str(wheel.contents.version) != proven.version:
        raise ClaimError(f"{wheel.name}: its build is one of {proven.version}")
    if newer(wheel.platform, proven.platform) != wheel.platform:
        raise ClaimError(f"{wheel.name}: the overlay in it needs {proven.platform}, the tag promises an older system")
    if member(wheel.path, record.EMBEDDED) != record.encode(proven):
        raise ClaimError(f"{wheel.name}: its {record.EMBEDDED} is not what the record of its build says")


def _yanked(path: Path) -> str | None:
    place = path.with_name(path.name + YANKED)
    if not place.exists():
        return None
    _regular(place)
    try:
        return " ".join(place.read_text(encoding="utf-8").split())
    except UnicodeDecodeError as error:
        raise ClaimError(f"{place} is not text in UTF-8: {error}") from None
