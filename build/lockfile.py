"""The header of a lock: the digests of what it is made from and of its content.

Whether a lock still fits is a comparison of digests, without a resolver and without network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from build.errors import ReleaseDataError
from build.paths import atomic_write

_HEADER = "# Made by `nox -s lock`, not by hand: `nox -s lock -- --check` compares the digests.\n"
_DIGESTS = re.compile(r"# inputs: ([0-9a-f]{64})\n# content: ([0-9a-f]{64})\n")


class State(Enum):
    """Results of comparing a lock with its sources."""

    FITS = "fits"
    MISSING = "is not there"
    STALE = "what it is made from has changed since"
    EDITED = "was changed by hand or is damaged"


def digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def state(path: Path, inputs: str) -> State:
    """Compare a lock with the digest of what it is made from now."""
    if not path.is_file():
        return State.MISSING
    _, separator, rest = path.read_text(encoding="utf-8").partition(_HEADER)
    found = _DIGESTS.match(rest) if separator else None
    if found is None or digest([rest[found.end() :]]) != found[2]:
        return State.EDITED
    return State.FITS if found[1] == inputs else State.STALE


def require(states: Mapping[str, State], made_from: str) -> None:
    """Raise ReleaseDataError for locks, by file name, that do not fit what they are made from; each is named."""
    if wrong := {f"locks/{name}": state for name, state in states.items() if state is not State.FITS}:
        lines = "\n".join(f"{name}: {state.value}" for name, state in wrong.items())
        raise ReleaseDataError(
            f"locks are out of date: {', '.join(wrong)}",
            cause=f"{lines}\n(they are made from {made_from})",
            remedy="run `nox -s lock`, conda locks where conda is, and commit the result",
        )


def write(path: Path, inputs: str, text: str) -> None:
    """Write a lock with its header, in one step."""
    with atomic_write(path) as part:
        part.write_text(f"{_HEADER}# inputs: {inputs}\n# content: {digest([text])}\n{text}", encoding="utf-8")
