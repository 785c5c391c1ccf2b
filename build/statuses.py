"""The exit status of a run of nox: the tooling's own, where nox says 1 for every failure. Standard library only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def of_tooling() -> Iterator[None]:
    """End nox with the exit status of the tooling's command that a block runs, if that fails.

    The sessions after it do not run. nox itself reports a command that a signal ended, or that was not started.
    """
    try:
        yield
    except Exception as failure:
        # Only newer versions of nox have the status as a number; the words are the same in all.
        if status := re.fullmatch(r"Returned code (\d+)", str(failure)):
            sys.exit(int(status[1]))
        raise
