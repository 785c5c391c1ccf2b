"""The control block of a process on the imitation (see native/control.h): counters, injections, switches.

It is a file: readable after the process has ended, and writable by another process while it runs.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from contextlib import AbstractContextManager
from ctypes import c_char, c_int32, c_uint32, c_uint64
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

_MAGIC, _VERSION = 0x55504730, 2
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


class _Block(ctypes.Structure):
    if TYPE_CHECKING:  # the value of a field

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401


class Site(_Block):
    """One injection site: the injection, and counters of all its calls, those that were hit, threads hanging in it."""

    _fields_ = (
        ("name", c_char * 40),
        *((name, c_int32) for name in ("action", "code", "comm")),
        *((name, c_uint32) for name in ("after", "times", "calls", "seen", "fired", "hanging", "generation")),
    )


class Control(_Block):
    """The counters of the imitation, as its header has them; `sites` by name."""

    _fields_ = (
        *((name, c_uint32) for name in ("magic", "version", "count", "size")),
        ("unimplemented", c_uint32),  # calls to functions that are not imitated
        ("launched", c_uint32),  # NCCL operations that reached a stream
        ("queued", c_uint32),  # NCCL operations that waited for a group to close
        ("aborted", c_uint32),  # communicators aborted
        ("_last_unimplemented", c_char * 64),
        ("process", c_uint32),
        ("changed", c_uint32),  # grows with every change from outside
        ("misused", c_uint32),  # uses of a stream, event, communicator or memory after its end
        ("sticky", c_uint32),  # the CUDA error that every later call returns, 0 for none
        ("communicators", c_uint32),  # live ones
        ("streams", c_uint32),  # live ones that the program made
        ("allocated", c_uint64),  # bytes of device memory
        ("_last_misused", c_char * 64),
        ("switches", c_uint32 * 8),
    )
    sites: dict[str, Site]

    @property
    def last_unimplemented(self) -> str:
        """The name of the last function that is not imitated."""
        return str(self._last_unimplemented.decode())

    @property
    def last_misused(self) -> str:
        """The function of the last misuse."""
        return str(self._last_misused.decode())

    def fired(self, names: tuple[str, ...]) -> int:
        return sum(int(self.sites[name].fired) for name in names)


def read_control(path: Path) -> Control | None:
    """Return the counters in a control file, None when the process did not load the imitation."""
    return _parsed(path.read_bytes() if path.is_file() else b"")


def _parsed(data: bytes | mmap.mmap) -> Control | None:
    found = Control.from_buffer_copy(data) if len(data) >= ctypes.sizeof(Control) else Control()
    if (found.magic, found.version, found.size) != (_MAGIC, _VERSION, ctypes.sizeof(Site)):
        return None
    every = (Site * found.count).from_buffer_copy(data, ctypes.sizeof(Control))
    found.sites = {site.name.decode(): site for site in every}
    return found


class Remote(AbstractContextManager["Remote"]):
    """Another process's control block, mapped: injects failures into it while it runs."""

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
        self._control = Control.from_buffer(self._view)
        every = (Site * self._control.count).from_buffer(self._view, ctypes.sizeof(Control))
        self._sites = {site.name.decode(): site for site in every}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap it; what was injected stays."""
        self._control, self._sites = Control(), {}  # what they were holds the map
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
        at = self._sites[site]
        at.action = Action.NONE
        at.code, at.comm, at.after, at.times, at.seen = code, comm, after, times, 0
        at.action = action
        at.generation += 1
        # Wake what waits for a change; without this system call it would look within some milliseconds.
        self._control.changed += 1
        word = ctypes.c_void_p(ctypes.addressof(self._control) + Control.changed.offset)
        if (number := {"x86_64": 202, "aarch64": 98}.get(platform.machine())) is not None:
            ctypes.CDLL(None).syscall(number, word, _FUTEX_WAKE, _ALL_WAITERS, None, None, 0)

    def lift(self, *sites: str) -> None:
        """Take the injections of these sites back; what they hold or hang goes on."""
        for site in sites:
            self.inject(site, Action.NONE)

    def switch(self, which: Switch, *, on: bool) -> None:
        """Turn a property of the imitation on or off in that process."""
        self._control.switches[which] = on

    def counters(self) -> Control:
        found = _parsed(self._view)
        assert found is not None  # noqa: S101 - it was whole when it was mapped
        return found


def _mapped(path: Path, until: float) -> mmap.mmap:
    while True:
        if path.is_file() and path.stat().st_size >= ctypes.sizeof(Control):
            with path.open("r+b") as stream:
                view = mmap.mmap(stream.fileno(), 0)
            if _parsed(view) is not None:
                return view
            view.close()
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name}: that process did not load the imitation ({path})")
        time.sleep(0.01)
