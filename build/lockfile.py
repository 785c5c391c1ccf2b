"""The header of a lock: the digests of what it is made from and of its content.

Whether a lock still fits is a comparison of digests, without a resolver and without network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

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
    """Return the digest of all that a lock is made from."""
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


def write(path: Path, inputs: str, text: str) -> None:
    """Write a lock with its header, in one step."""
    with atomic_write(path) as part:
        part.write_text(f"{_HEADER}# inputs: {inputs}\n# content: {digest([text])}\n{text}", encoding="utf-8")
