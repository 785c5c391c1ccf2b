"""A CUDA device as the callers of operations see it: their streams, memory in the order of these, and copies.

Calls are those of any CUDA program in the calling thread; they may wait for a kernel that hangs, so none is made under
a lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multiworld.matching.device import Moment


class CudaDevice:
    """The CUDA device of a world.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index  # torch is slow to find the number of a device again

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` lies on a CUDA device; which one is checked with the other arguments."""
        return bool(tensor.is_cuda)

    def capturing(self) -> bool:
        """Whether the calling thread's current stream is being captured into a graph."""
        with torch.cuda.device(self._index):
            return bool(torch.cuda.is_current_stream_capturing())

    def now(self) -> Moment:
        """This moment in the calling thread's current stream."""
        return _moment(torch.cuda.current_stream(self._index))

    def room(self, nbytes: int, moment: Moment) -> tuple[torch.Tensor, Moment]:
        """New memory that belongs to the stream of ``moment``, and when it may be used."""
        with torch.cuda.stream(moment.stream):
            made = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            # Of now and not of before: it may be memory that the stream still works on for its last owner.
            return made, _moment(moment.stream)

    def copies_of(self, tensors: Sequence[torch.Tensor], moment: Moment) -> tuple[list[torch.Tensor], Moment]:
        """Copies of what is in ``tensors`` from ``moment`` on, made in the calling thread's current stream."""
        here = torch.cuda.current_stream(self._index)
        here.wait_event(moment.event)
        return [tensor.clone() for tensor in tensors], _moment(here)

    def adopt(self, tensor: torch.Tensor, moment: Moment) -> torch.Tensor:
        """``tensor``, memory of the stream of ``moment``, for the calling thread's current stream from there on.

        What belongs to another stream is copied. ``record_stream`` would save the copy, but to free memory with
        recorded streams is a CUDA call in a destructor: on a lost device it ends the process.
        """
        here = torch.cuda.current_stream(self._index)
        here.wait_event(moment.event)
        if here == moment.stream:
            return tensor
        copy = tensor.clone()
        moment.stream.wait_event(_moment(here).event)  # nobody gets the memory before it is copied
        return copy


def _moment(stream: torch.cuda.Stream) -> Moment:
    event = torch.cuda.Event()
    event.record(stream)
    return Moment(stream, event)
