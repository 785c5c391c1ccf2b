"""A CUDA device: the streams and memory of those who call operations, and calls of the runtime that torch lacks.

What a ``CudaDevice`` does is what any CUDA program does in the calling thread; it may wait for a kernel that hangs, so
nothing of it is called under a lock. The runtime's own calls release the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from multiworld.engine import library
from multiworld.matching.device import Moment

_NON_BLOCKING = 1  # cudaStreamNonBlocking: no implicit order with the legacy default stream
_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_NOT_READY = 600
#: what a call reports about its own arguments, about stream capture, or about a device that another process has for
#: itself: the device is well
_CONTAINED = frozenset({0, 1, 2, 46, 101, 400, _NOT_READY, *range(900, 910)})
_BUS_ID_BYTES = 32
_NAP = 1e-3


class RuntimeMissingError(RuntimeError):
    """No CUDA runtime can be called in this process."""


@functools.cache
def runtime() -> Any:
    """The CUDA runtime that torch uses.

    Raises:
        RuntimeMissingError: there is none, or it is linked into torch without its names.
    """
    # The process's own names first: whatever is preloaded takes the place of the library for torch, too.
    for name in (None, str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so")):
        try:
            found = ctypes.CDLL(name)
            found.cudaStreamCreateWithFlags  # noqa: B018 - looks the name up
        except (OSError, AttributeError):
            continue
        return found
    raise RuntimeMissingError("this process has no CUDA runtime whose functions can be called")


def functions() -> dict[str, int]:
    """The addresses of the runtime's functions that launches need.

    Raises:
        RuntimeMissingError: there is no runtime.
    """
    names = (name for name in library.launch_functions() if name.startswith("cuda"))
    return {name: ctypes.cast(getattr(runtime(), name), ctypes.c_void_p).value or 0 for name in names}


def check(code: int, call: str) -> None:
    """Raise for a call that failed."""
    if code:
        text = runtime().cudaGetErrorString
        text.restype = ctypes.c_char_p
        raise RuntimeError(f"{call}: CUDA error {code}, {text(code).decode()}")


class PrivateStream:
    """A CUDA stream that has no other user meanwhile.

    Torch hands out 32 per device in turn, so that two worlds would share one, and the abort of one wait for the other.
    """

    def __init__(self, device: torch.device, pointer: int) -> None:
        self.device, self.pointer = device, pointer
        self.torch = torch.cuda.ExternalStream(pointer, device=device)

    def drains(self, seconds: float) -> bool:
        """Return whether nothing is left in it, now or within ``seconds``; False on a lost device, too."""
        until = time.monotonic() + seconds
        while code := _query(self.pointer):
            if code != _NOT_READY or time.monotonic() > until:
                return False
            time.sleep(_NAP)
        return True


def sticky_error(stream: int) -> int:
    """The error that every call on the thread's current device returns from now on, asked for in ``stream``; 0 if there
    is none."""
    codes = [_query(stream) for _ in range(2)]
    return codes[0] if codes[0] == codes[1] and codes[0] not in _CONTAINED else 0


def _query(stream: int) -> int:
    """Ask for the error of a stream, or of the device, without an end to any capture.

    A stream that is being captured is not asked. Another thread's capture in the global mode bears questions of a
    thread in the relaxed mode alone.
    """
    handle, capturing, mode = ctypes.c_void_p(stream), ctypes.c_int(), ctypes.c_int(_RELAXED)
    code = int(runtime().cudaStreamIsCapturing(handle, ctypes.byref(capturing)))
    if code or capturing.value:
        return code
    if code := int(runtime().cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))):
        return code
    try:
        return int(runtime().cudaStreamQuery(handle))
    finally:
        runtime().cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))


_guard = threading.Lock()
#: streams that were given back. They are used again, not destroyed: torch's allocator keeps memory for each stream
_free: defaultdict[int, list[PrivateStream]] = defaultdict(list)


def take_stream(device: torch.device) -> PrivateStream:
    """A stream for the calling thread alone; it and its device become the thread's current ones."""
    torch.cuda.set_device(device)
    with _guard:
        made = _free[device.index].pop() if _free[device.index] else None
    if made is None:
        handle = ctypes.c_void_p()
        check(runtime().cudaStreamCreateWithFlags(ctypes.byref(handle), _NON_BLOCKING), "cudaStreamCreateWithFlags")
        made = PrivateStream(device, int(handle.value or 0))
    torch.cuda.set_stream(made.torch)
    return made


def give_back(stream: PrivateStream) -> None:
    """``stream``, in which nothing is left, may be used by another."""
    with _guard:
        _free[stream.device.index].append(stream)


def bus_id(index: int) -> str:
    """The PCI address of a device, which is the same for all processes of a host."""
    text = ctypes.create_string_buffer(_BUS_ID_BYTES)
    check(runtime().cudaDeviceGetPCIBusId(text, _BUS_ID_BYTES, index), "cudaDeviceGetPCIBusId")
    return text.value.decode()


class CudaDevice:
    """The CUDA device of a world."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index  # torch is slow to find the number of a device again
        self._streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}  # and to make the objects of streams

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` lies on a CUDA device; which one is checked with the other arguments."""
        return bool(tensor.is_cuda)

    def capturing(self) -> bool:
        """Return whether the calling thread's current stream is being captured into a graph."""
        if torch._C._cuda_getDevice() == self._index:
            return bool(torch.cuda.is_current_stream_capturing())
        with torch.cuda.device(self._index):
            return bool(torch.cuda.is_current_stream_capturing())

    def stream(self) -> torch.cuda.Stream:
        """The calling thread's current stream."""
        said = torch._C._cuda_getCurrentStream(self._index)
        if (stream := self._streams.get(said)) is None:
            stream = self._streams[said] = torch.cuda.current_stream(self._index)
        return stream

    def now(self) -> Moment:
        """This moment in the calling thread's current stream."""
        return _moment(self.stream())

    def room(self, nbytes: int, moment: Moment) -> tuple[torch.Tensor, Moment]:
        """New memory that belongs to the stream of ``moment``, and when it may be used."""
        with torch.cuda.stream(moment.stream):
            made = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            # Of now and not of before: it may be memory that the stream still works on for its last owner.
            return made, _moment(moment.stream)

    def copies_of(self, tensors: Sequence[torch.Tensor], moment: Moment) -> tuple[list[torch.Tensor], Moment]:
        """Copies of what is in ``tensors`` from ``moment`` on, made in the calling thread's current stream."""
        here = self.stream()
        here.wait_event(moment.event)
        return [tensor.clone() for tensor in tensors], _moment(here)

    def adopt(self, tensor: torch.Tensor, moment: Moment) -> torch.Tensor:
        """``tensor``, memory of the stream of ``moment``, for the calling thread's current stream from there on.

        What belongs to another stream is copied. ``record_stream`` would save the copy, but to free memory with
        recorded streams is a CUDA call in a destructor: on a lost device it ends the process.
        """
        here = self.stream()
        here.wait_event(moment.event)
        if here == moment.stream:
            return tensor
        copy = tensor.clone()
        moment.stream.wait_event(_moment(here).event)  # the memory has no other user before it is copied
        return copy


def _moment(stream: torch.cuda.Stream) -> Moment:
    event = torch.cuda.Event()
    event.record(stream)
    return Moment(stream, event, event.cuda_event)
