"""The control block of a process on the imitation (see native/control.h): counters, injections, switches.

It is a file: readable after the process has ended, and writable by another process while it runs.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import time
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_MAGIC, _VERSION = 0x55504730, 2
_HEADER = struct.Struct("=8I64s6IQ64s8I")
_RECORD = struct.Struct("=40s3i7I")
_INJECTION = struct.Struct("=3i2I")  # action, code, comm, after, times: behind a record's name
_CHANGED = 8 * 4 + 64 + 4  # the header's word that every change counts up
_SWITCHES = _HEADER.size - 8 * 4
_SEEN, _GENERATION = 40 + 6 * 4, 40 + 9 * 4  # in a record
_FUTEX_WAKE = 1
_ANY_COMMUNICATOR = -1
_ALL_WAITERS = 2**31 - 1


class Action(IntEnum):
    """The effect of an injection on a call."""

    NONE = 0
    FAIL = 1  # returns the code
    HANG = 2  # blocks its thread until the injection is lifted
    HOLD = 3  # takes an NCCL operation, but does not begin it until the injection is lifted


class Switch(IntEnum):
    """A property of the imitation."""

    NETWORK = 0  # peers are on other hosts: NCCL notices their death
    FREE_WAITS = 1  # cudaFree waits for the device
    LOAD_WAITS = 2  # so does the loading of a module
    MISUSE_ABORTS = 3  # the use of a dead handle ends the process
    STICKY = 4  # CUDA errors that damage the context (700, 719 ...) are returned by every later call; on by default


@dataclass(frozen=True, slots=True)
class Site:
    """Counters of one injection site: all its calls, those that were hit, threads hanging in it."""

    name: str
    calls: int
    fired: int
    hanging: int


@dataclass(frozen=True, slots=True)
class Control:
    """The counters of the imitation, in the order of its header; `sites` by name."""

    unimplemented: int  # calls to functions that are not imitated
    launched: int  # NCCL operations that reached a stream
    queued: int  # NCCL operations that waited for a group to close
    aborted: int  # communicators aborted
    last_unimplemented: str  # the name of the last of these functions
    process: int
    changed: int  # grows with every change from outside
    misused: int  # uses of a stream, event, communicator or memory after its end
    sticky: int  # the CUDA error that every later call returns, 0 for none
    communicators: int  # live ones
    streams: int  # live ones that the program made
    allocated: int  # bytes of device memory
    last_misused: str  # the function of the last misuse
    sites: dict[str, Site]

    def fired(self, names: tuple[str, ...]) -> int:
        return sum(self.sites[name].fired for name in names)


def read_control(path: Path) -> Control | None:
    """Return the counters in a control file, None when the process did not load the imitation."""
    return _parsed(path.read_bytes() if path.is_file() else b"")


def _parsed(data: bytes | mmap.mmap) -> Control | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, count, size, *values = _HEADER.unpack_from(data)
    if (magic, version, size) != (_MAGIC, _VERSION, _RECORD.size):
        return None
    sites = [_site(data, _HEADER.size + i * _RECORD.size) for i in range(count)]
    # The switches, which come last, are left out.
    counters = dict(zip([item.name for item in fields(Control)][:-1], values, strict=False))
    counters |= {name: _text(counters[name]) for name in ("last_unimplemented", "last_misused")}
    return Control(**counters, sites={site.name: site for site in sites})


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode()


def _site(data: bytes | mmap.mmap, at: int) -> Site:
    name, *numbers = _RECORD.unpack_from(data, at)
    _action, _code, _comm, _after, _times, calls, _seen, fired, hanging, _generation = numbers
    return Site(_text(name), calls, fired, hanging)


class Remote:
    """Another process's control block, mapped: injects failures into it while it runs.

    Usable as a context manager.
    """

    def __init__(self, folder: Path, process: int, seconds: float = 20.0) -> None:
        """Map the block of a process that was started with `imitation.environment`.

        Args:
            folder: the folder given there.
            process: its id.
            seconds: how long to wait for it to load the imitation.

        Raises:
            TimeoutError: it did not.
        """
        self._view = _mapped(folder / str(process), time.monotonic() + seconds)
        count, size = struct.unpack_from("=2I", self._view, 8)
        self._records = {}
        for at in range(_HEADER.size, _HEADER.size + count * size, size):
            self._records[_text(self._view[at : at + 40])] = at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap it; what was injected stays."""
        self._view.close()

    def inject(
        self, site: str, action: Action, code: int = 0, *, comm: int = _ANY_COMMUNICATOR, after: int = 0, times: int = 0
    ) -> None:
        """Set what a call of that process does.

        Args:
            site: the call's name, e.g. "ncclAllReduce"; one of `GPULESS_SITES` in native/control.h.
            action: what becomes of it.
            code: the error code of `FAIL`.
            comm: only calls on this communicator, counted from 0 in order of creation.
            after: matching calls to let pass first.
            times: matching calls to hit after that; 0 means all.

        Raises:
            KeyError: no such site.
        """
        at = self._records[site]
        _INJECTION.pack_into(self._view, at + 40, Action.NONE, code, comm, after, times)
        struct.pack_into("=I", self._view, at + _SEEN, 0)
        struct.pack_into("=i", self._view, at + 40, action)
        self._add(at + _GENERATION)
        # Wake what waits for a change; without this system call it would look within some milliseconds.
        self._add(_CHANGED)
        word = ctypes.c_uint32.from_buffer(self._view, _CHANGED)
        if (number := {"x86_64": 202, "aarch64": 98}.get(platform.machine())) is not None:
            ctypes.CDLL(None).syscall(number, ctypes.byref(word), _FUTEX_WAKE, _ALL_WAITERS, None, None, 0)
        del word  # it holds the map

    def lift(self, *sites: str) -> None:
        """Take the injections of these sites back; what they hold or hang goes on."""
        for site in sites:
            self.inject(site, Action.NONE)

    def switch(self, which: Switch, *, on: bool) -> None:
        """Turn a property of the imitation on or off in that process."""
        struct.pack_into("=I", self._view, _SWITCHES + 4 * which, on)

    def counters(self) -> Control:
        found = _parsed(self._view)
        assert found is not None  # noqa: S101 - it was whole when it was mapped
        return found

    def _add(self, at: int) -> None:
        (value,) = struct.unpack_from("=I", self._view, at)
        struct.pack_into("=I", self._view, at, (value + 1) % 2**32)


def _mapped(path: Path, until: float) -> mmap.mmap:
    while True:
        if path.is_file() and path.stat().st_size >= _HEADER.size:
            with path.open("r+b") as stream:
                view = mmap.mmap(stream.fileno(), 0)
            if _parsed(view) is not None:
                return view
            view.close()
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name}: that process did not load the imitation ({path})")
        time.sleep(0.01)
