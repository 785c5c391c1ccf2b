"""The payloads of one peer's messages that stay on the device: begun on both drivers once they are matched."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import torch

from multiworld.matching.device import DeviceEnd
from multiworld.matching.operation import Host, Launch, Registry, Sink
from multiworld.matching.protocol import Kind, Mode, Placement, channel
from multiworld.matching.send_receive import ReceiveOperation, SendOperation

#: modes of DATA whose payload does not follow it
ON_DEVICE: Final = frozenset(map(int, (Mode.DEVICE, Mode.DEVICE_TENSOR)))
#: what is said of a tensor on the device: bytes of its payload; its shape follows, see ``tensors.shapes``
LENGTH: Final = struct.Struct("<Q")
_MAX_SAID_BYTES: Final = LENGTH.size + 8 * 255 + 1


class Transfers:
    """The messages of one peer that stay on the device. All methods are called with the registry's lock held."""

    def __init__(self, registry: Registry, lane: Sink, host: Host, landed: Callable[[ReceiveOperation], None]) -> None:
        self._registry, self._lane, self._host, self._landed = registry, lane, host, landed

    def send(self, operation: SendOperation, end: DeviceEnd, seq: int) -> None:
        """A send is matched with the post of that number."""
        mode = Mode.DEVICE if operation.mode == Mode.DEVICE else Mode.DEVICE_TENSOR
        said = operation.payload
        self._lane.put(Kind.DATA, operation.dtype, mode, seq, operation.key, said, sum(map(len, said)))
        if not operation.nbytes:
            operation.complete()
            return
        us, peer = self._registry.membership.rank, self._lane.peer
        operation.running = not operation.copying
        begin = lambda driver: driver.send(_data(end), 1, after=end.moment.event)  # noqa: E731
        launch = operation.launch = Launch(operation, (us, peer), begin, operation.complete, streamed=end.streamed)
        launch.borrows = launch.ready = not operation.copying
        self._host.launch(channel(us, peer), launch)

    def on_data(self, operation: ReceiveOperation | None, dtype: int, mode: int, said: int) -> Placement:
        """The peer begins to send on the device; of a tensor with its shape it says the length here, and the shape."""
        exact = mode == Mode.DEVICE
        fits = said == 0 if exact else LENGTH.size < said <= _MAX_SAID_BYTES
        asked = Mode.DEVICE if exact else Mode.TENSOR
        if not fits or operation is None or operation.end is None or operation.mode != asked:
            self._registry.protocol_error(self._lane.peer, "a payload on the device that was not asked for")
            return None, None
        operation.arriving = True
        operation.dtype = dtype
        if exact:
            self._receive(operation, operation.end, operation.nbytes)
            return None, None
        text = memoryview(bytearray(said))
        return text, lambda: self._on_shape(operation, bytes(text))

    def _on_shape(self, operation: ReceiveOperation, said: bytes) -> None:
        (nbytes,) = LENGTH.unpack_from(said)
        if operation.end is None or nbytes > operation.nbytes:
            self._registry.protocol_error(self._lane.peer, f"a tensor of {nbytes} bytes that was not asked for")
            return
        operation.shape = said[LENGTH.size :]
        self._receive(operation, operation.end, nbytes)

    def _receive(self, operation: ReceiveOperation, end: DeviceEnd, nbytes: int) -> None:
        if not nbytes:
            self._landed(operation)
            return
        us, peer = self._registry.membership.rank, self._lane.peer
        operation.running = operation.borrowed
        begin = lambda driver: driver.recv(_data(end), 0, after=end.moment.event)  # noqa: E731
        launch = Launch(
            operation, (peer, us), begin, lambda: self._landed(operation), value=peer, streamed=end.streamed
        )
        launch.borrows, launch.ready = operation.borrowed, end.data is not None
        operation.launch = launch
        self._host.launch(channel(peer, us), launch)
        if end.data is None:
            self._host.aside(lambda: self._find_room(end, launch, nbytes))

    def _find_room(self, end: DeviceEnd, launch: Launch, nbytes: int) -> None:
        """Find memory for a message whose length the sender has said, or that has no waiter. Without the lock."""
        try:
            data, moment = end.device.room(nbytes, end.moment)
        except RuntimeError as error:  # what torch raises when there is no memory
            with self._registry.lock:
                what = f"a message of {nbytes} bytes for which the device has no memory: {error}"
                self._registry.protocol_error(self._lane.peer, what)
            return
        with self._registry.lock:
            end.data, end.moment = data, moment
            launch.set_ready()


def _data(end: DeviceEnd) -> torch.Tensor:
    """The memory of an end that is ready."""
    if end.data is None:
        raise LookupError("a transfer began without memory")
    return end.data
