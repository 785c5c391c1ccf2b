"""An actor: a worker process that runs the functions it is sent in its event loop, and reports how each ended."""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import pickle
import signal
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from multiworld.chaos.messages import Call, Cancel, Mark, Outcome, packed

if TYPE_CHECKING:
    from multiworld.multi import MultiWorld

LENGTH = struct.Struct("<I")


class Stage:
    """What a function of an actor has at hand.

    Attributes:
        name: the actor's.
        props: whatever earlier functions left for later ones.
    """

    def __init__(self, name: str, channel: socket.socket) -> None:
        self.name = name
        self.props: dict[str, Any] = {}
        self._channel = channel
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._mw: MultiWorld | None = None

    @property
    def mw(self) -> MultiWorld:
        """The actor's ``MultiWorld``, made at the first use."""
        if self._mw is None:
            from multiworld.multi import MultiWorld

            self._mw = MultiWorld()
        return self._mw

    async def close(self) -> None:
        """Close the actor's ``MultiWorld``; the next use makes another."""
        if self._mw is not None:
            closing, self._mw = self._mw, None
            await closing.close()

    def mark(self, name: str, value: Any = None) -> None:
        """Tell the conductor that we are here; it is out when this returns."""
        self._send(Mark(name, time.monotonic(), value))

    async def serve(self) -> None:
        """Run what is asked for until the conductor closes the channel."""
        self._channel.setblocking(False)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader), self._channel.dup()
        )
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._handle(pickle.loads(await reader.readexactly(length)))  # noqa: S301 - from our conductor
        except asyncio.IncompleteReadError:
            transport.close()

    def _handle(self, message: Call | Cancel) -> None:
        if isinstance(message, Cancel):
            if message.number in self._tasks:
                self._tasks[message.number].cancel()
            return
        task = asyncio.get_running_loop().create_task(self._run(message))
        self._tasks[message.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))

    async def _run(self, call: Call) -> None:
        started = time.monotonic()
        value, error = None, None
        try:
            value = call.function(self, *call.args)
            if inspect.isawaitable(value):
                value = await value
        except SystemExit:
            raise
        except BaseException as failure:  # noqa: BLE001 - reported to whoever called
            value, error = None, failure
        self._send(Outcome(call.number, started, time.monotonic(), value, error))

    def _send(self, message: Mark | Outcome) -> None:
        data = packed(message)
        with self._sending:
            self._channel.setblocking(True)
            try:
                self._channel.sendall(LENGTH.pack(len(data)) + data)
            finally:
                self._channel.setblocking(False)


def main(channel: int, name: str) -> None:
    """Be an actor until the conductor closes the channel or a function exits."""
    import torch

    torch.set_num_threads(1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # asked for when a call is overdue
    stage = Stage(name, socket.socket(fileno=channel))
    asyncio.run(stage.serve())
