"""The device of a world whose backend takes tensors where they are, as far as the matching needs to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

#: memory on the device, and the event after which it may be used, by address
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in the order of a stream: what was enqueued there before has happened when it is reached.

    Attributes:
        stream: of the caller.
        event: recorded there; a driver waits for it before it touches the caller's memory.
        address: of the event.
    """

    stream: Any
    event: Any
    address: int = 0


class Device(Protocol):
    """The device of a world. None of it may be called under a lock: a call can wait for a kernel that hangs."""

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` lies on a device of this kind; callable under a lock."""

    def capturing(self) -> bool:
        """Return whether the calling thread's current stream is being captured into a graph."""

    def stream(self) -> Any:
        """The calling thread's current stream."""

    def now(self) -> Moment:
        """This moment in the calling thread's current stream."""

    def room(self, nbytes: int, moment: Moment) -> tuple[torch.Tensor, Moment]:
        """New memory that belongs to the stream of ``moment``, and when it may be used."""

    def copies_of(self, tensors: Sequence[torch.Tensor], moment: Moment) -> tuple[list[torch.Tensor], Moment]:
        """Copies of what is in ``tensors`` from ``moment`` on, made in the calling thread's current stream."""

    def adopt(self, tensor: torch.Tensor, moment: Moment) -> torch.Tensor:
        """``tensor``, memory of the stream of ``moment``, for the calling thread's current stream from there on."""


@dataclass(slots=True)
class DeviceEnd:
    """Our end of a message whose payload stays on the device.

    Attributes:
        device: where the payload is.
        moment: when ``data`` may be used.
        data: the memory as flat bytes; None until there is room for it.
        streamed: whether the caller goes on as soon as the transfer is enqueued.
    """

    device: Device
    moment: Moment
    data: torch.Tensor | None = None
    streamed: bool = False

    def place(self) -> Place | None:
        """Return the address of the memory, and of the event, if compiled code can launch the transfer alone."""
        return None if self.data is None or self.streamed else (self.data.data_ptr(), self.moment.address)
