"""The client library of SwitchML, through the compiled shim: one context per process, which one process group owns."""

from __future__ import annotations

import ctypes
import enum
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from multiworld.switchml.errors import SwitchMLUnavailable

_INTERFACE = 1
_TYPES = {torch.float32: 0, torch.int32: 1}
_ERROR_BYTES = 1000


class Outcome(enum.IntEnum):
    """The ways in which an all-reduce ends; the numbers are those of ``shim.cpp``."""

    FINISHED = 0
    FAILED = 1
    TIMEOUT = 2
    STOPPED = 3


class Library:
    """The loaded shim.

    Raises:
        SwitchMLUnavailable: it cannot be loaded, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise SwitchMLUnavailable(what=f"there is no compiled shim {path}")
        try:
            loaded = ctypes.CDLL(str(path))
            self._start, self._sum = loaded.mw_switchml_start, loaded.mw_switchml_sum
            #: stops the context; what is not done fails
            self.stop: Callable[[], object] = loaded.mw_switchml_stop
            interface = loaded.mw_switchml_interface()
        except (OSError, AttributeError) as error:
            raise SwitchMLUnavailable(what=f"the shim {path} cannot be loaded: {error}") from None
        if interface != _INTERFACE:
            what = f"the shim {path} has interface {interface}, needed is {_INTERFACE}"
            raise SwitchMLUnavailable(what=what, remedy="run 'python -m multiworld.switchml compile' again")
        self._sum.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_double)

    def start(self, config: str, rank: int, size: int) -> str:
        """Start the context; return why it did not start, empty if it did."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        failed = self._start(config.encode(), rank, size, error, ctypes.c_size_t(_ERROR_BYTES))
        return error.value.decode("utf-8", "replace") if failed else ""

    def sum(self, given: torch.Tensor, result: torch.Tensor, seconds: float) -> Outcome:
        """Sum a contiguous tensor of this host over all ranks into ``result``, which may be the same tensor."""
        pointers = (given.data_ptr(), result.data_ptr())
        return Outcome(self._sum(*pointers, given.numel(), _TYPES[given.dtype], seconds))


#: held by the process group that has the one context of this process
OWNED = threading.Lock()
