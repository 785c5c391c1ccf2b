"""One error for all the exceptions that Python raises on a damaged zip archive."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from build.errors import WheelError

#: A flipped bit may claim encryption or an unknown method (RuntimeError; NotImplementedError is one), a wrong name or
#: date (ValueError; UnicodeDecodeError is one), or a place outside the file (EOFError, OverflowError).
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OverflowError, RuntimeError, KeyError)


@contextmanager
def reading(name: str, remedy: str = "get it again: remove the file and run again") -> Iterator[None]:
    """Raise WheelError for what damage to the archive `name` raises in the block."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # what a seek before the file's start gives
            raise
        what = f"{name} is not a wheel that can be read: {error or type(error).__name__}"
        raise WheelError(what, remedy=remedy) from error
