"""Every fatal error of the tooling, each with its own exit code and a message in three parts."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent
from typing import ClassVar


class ToolError(Exception):
    """Base of all errors a user can meet.

    Args:
        what: what happened, one sentence.
        cause: the likely cause.
        remedy: what to do, or which setting to change.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.what]
        if self.cause:
            parts.append("cause:\n" + indent(self.cause, "  "))
        if self.remedy:
            parts.append("to do:\n" + indent(self.remedy, "  "))
        return "\n".join(parts)


class UsageError(ToolError):
    """The command line asks for something impossible."""

    exit_code = 2


class UnknownReleaseError(ToolError):
    """`build/releases.toml` has no entry of that release."""

    exit_code = 3


class ReleaseDataError(ToolError):
    """`build/releases.toml` or a manifest is not valid."""

    exit_code = 4


class EnvironmentUnfitError(ToolError):
    """This machine lacks something the work needs: compiler, disk, network, platform, Python."""

    exit_code = 5


class SourceError(ToolError):
    """No source tree was found, or the tree is not that of the release."""

    exit_code = 6


class DigestMismatchError(SourceError):
    """A file's digest, a commit or a header is not the pinned one."""

    exit_code = 7


class PatchError(ToolError):
    """A patch is malformed, unsafe or does not fit its release."""

    exit_code = 8


class NeedsFullBuildError(PatchError):
    """A patch changes what units outside the overlay see."""

    exit_code = 9


class CompileError(ToolError):
    """The compiler or linker failed."""

    exit_code = 10


class OverlayCheckError(ToolError):
    """An overlay fails one of its checks."""

    exit_code = 11


class WheelError(ToolError):
    """A wheel is malformed or could not be assembled."""

    exit_code = 12


class ProbeError(ToolError):
    """A probe or a wheel test does not give its expected outcome."""

    exit_code = 13


class BusyError(ToolError):
    """Another process holds the lock for longer than this one waits."""

    exit_code = 14


class ClaimError(ToolError):
    """A wheel is not what its name, its record or its provenance claims."""

    exit_code = 17


class NoDeviceError(ToolError):
    """Tests for an NVIDIA device were run and none of them could show anything: not a failure, and not a success."""

    exit_code = 21


class NeedsHumanError(ToolError):
    """A port leaves hunks that only a person can decide: neither a failure nor a success."""

    exit_code = 20


class HostsError(ToolError):
    """Hosts of a cluster could not be reached, or do not run what was wanted; the other hosts do."""

    exit_code = 25


class PendingError(ToolError):
    """A dry run found hosts that an installation would change."""

    exit_code = 26


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
