"""The exit status of a run of nox: the tooling's own, where nox says 1 for every failure. Standard library only."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

#: What nox itself says when a session failed.
FAILED = 1
#: Statuses that say that nothing failed and that it did not succeed either: see `build/errors.py`.
NEITHER = frozenset({20, 21})

_noted: list[int] = []


class Session(Protocol):
    """What the noxfile defines: `func` is called with nox's session."""

    func: Callable[..., object]


@contextmanager
def of_tooling() -> Iterator[None]:
    """Note the exit status of the command of the tooling that a block runs, if nox raises its failure."""
    try:
        yield
    except Exception as failure:
        _note(_status(failure))
        raise


def watch(sessions: Iterable[Session]) -> None:
    """Note 1 for each session that fails for another reason: its command is not the tooling's, or an install failed."""
    for session in sessions:
        session.func = _watched(session.func)


def final(status: str | int | None) -> str | int | None:
    """Return the status to end with instead of nox's `status`.

    Several sessions may have failed. The first that failed outright decides, else the first of all.
    """
    if status != FAILED or not _noted:
        return status
    return next((item for item in _noted if item not in NEITHER), _noted[0])


def _status(failure: Exception) -> int:
    """Return the exit status of a failed command; 1 where a signal ended it, or it was not started."""
    status = getattr(failure, "return_code", None)
    if status is None:  # nox before 2026 only has the words "Returned code 20"
        words = re.fullmatch(r"Returned code (\d+)", str(failure))
        status = int(words[1]) if words else FAILED
    return status if status > 0 else FAILED


def _note(status: int) -> None:
    if not _noted:
        # nox ends with sys.exit(1), and offers nothing to change that.
        leave = sys.exit
        sys.exit = lambda status=None, /: leave(final(status))
    _noted.append(status)


def _watched(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> object:
        known = len(_noted)
        try:
            return function(*arguments, **options)
        except Exception:
            if len(_noted) == known:
                _note(FAILED)
            raise

    return call
