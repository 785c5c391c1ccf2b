"""The control block of a probed process (see native/control.h), readable after the process has ended."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = 0x55504730
_HEADER = struct.Struct("=8I64s")
_RECORD = struct.Struct("=40s3i7I")


@dataclass(frozen=True, slots=True)
class Site:
    """Counters of one injection site: all its calls, those that were hit, threads hanging in it."""

    name: str
    calls: int
    fired: int
    hanging: int


@dataclass(frozen=True, slots=True)
class Control:
    """The counters of the imitation.

    Args:
        launched: NCCL operations that reached a stream.
        queued: NCCL operations that waited for a group to close.
        aborted: communicators aborted.
        unimplemented: calls to functions that are not imitated.
        last_unimplemented: the name of the last of these.
        sites: per injection site, by name.
    """

    launched: int
    queued: int
    aborted: int
    unimplemented: int
    last_unimplemented: str
    sites: dict[str, Site]

    def fired(self, names: tuple[str, ...]) -> int:
        """Return how often any of these sites was hit."""
        return sum(self.sites[name].fired for name in names)


def read_control(path: Path) -> Control | None:
    """Return the counters in a control file, None when the process did not load the imitation."""
    data = path.read_bytes() if path.is_file() else b""
    if len(data) < _HEADER.size:
        return None
    magic, _version, count, size, missing, launched, queued, aborted, last = _HEADER.unpack_from(data)
    if magic != _MAGIC or size != _RECORD.size:
        return None
    sites = [_site(data, _HEADER.size + i * size) for i in range(count)]
    name = last.split(b"\0")[0].decode()
    return Control(launched, queued, aborted, missing, name, {site.name: site for site in sites})


def _site(data: bytes, at: int) -> Site:
    name, *numbers = _RECORD.unpack_from(data, at)
    _action, _code, _comm, _after, _times, calls, _seen, fired, hanging, _generation = numbers
    return Site(name.split(b"\0")[0].decode(), calls, fired, hanging)
