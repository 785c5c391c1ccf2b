"""What a damaged zip archive makes Python raise, told as one error."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from build.errors import WheelError

#: A flipped bit may claim encryption (RuntimeError), an unknown method (NotImplementedError), a name or a date that is
#: invalid (ValueError; UnicodeDecodeError is one), or a place outside the file (EOFError, OverflowError).
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    KeyError,
)


@contextmanager
def reading(name: str, remedy: str = "get it again: remove the file and run again") -> Iterator[None]:
    """Turn what damage to the archive `name` raises in the block into an error for people.

    Raises:
        WheelError: the archive is damaged.
    """
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # what a seek before the file's start gives
            raise
        raise WheelError(
            f"{name} is not a wheel that can be read: {error or type(error).__name__}",
            cause="the file is damaged, cut off, or something else",
            remedy=remedy,
        ) from error
