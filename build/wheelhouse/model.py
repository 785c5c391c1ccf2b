"""A wheel of the wheelhouse, as a frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.utils import NormalizedName
from packaging.version import Version

from build.record import BuildRecord
from build.wheeltest.results import TestRecord


class Form(Enum):
    """The form of a wheel."""

    PATCHED = "patched wheel"
    OVERLAY = "overlay wheel"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Contents:
    """The statements of a wheel about itself.

    Attributes:
        metadata: the bytes of METADATA.
        tags: compressed tags of the file name, e.g. `cp311-cp311-manylinux_2_34_x86_64`.
        requires_python: version specifier, empty without one.
    """

    project: NormalizedName
    version: Version
    tags: str
    metadata: bytes
    requires_python: str
    summary: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of the wheelhouse.

    Attributes:
        sha256: digest of the file.
        size: bytes.
        yanked: why it must not be chosen any more; None if it may, empty if no reason is given.
        made: the record of its build; None for a wheel that was not built by this project's `build`.
        tests: results of tests of exactly these bytes, one per Python version.
        at: the address of the folder that serves it; empty if that is the wheelhouse's own.
    """

    path: Path
    contents: Contents
    sha256: str
    size: int
    yanked: str | None = None
    made: BuildRecord | None = None
    tests: tuple[TestRecord, ...] = ()
    at: str = ""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def form(self) -> Form:
        if self.made is None:
            return Form.OTHER
        return Form.PATCHED if self.name == self.made.patched.name else Form.OVERLAY

    @property
    def platform(self) -> str:
        return self.contents.tags.rpartition("-")[2]
