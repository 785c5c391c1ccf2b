"""The thread that reports the ends of a device driver's operations, in the order in which they were launched."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from multiworld.drivers import cuda
from multiworld.drivers.work import Work


class Completer:
    """Waits for the operations in a driver's stream, in a call that releases the GIL.

    A condition of its own: what is launched must not wake those who wait for the driver.

    Args:
        finish: waits for the end of an operation on the device, and reports it.
        idle: called when nothing is left.
    """

    def __init__(self, finish: Callable[[Work], None], idle: Callable[[], None]) -> None:
        self._finish, self._idle = finish, idle
        self._changed = threading.Condition()
        self._works: deque[Work] = deque()
        self._ended = False

    def start(self, stream: cuda.PrivateStream, name: str) -> None:
        """Start the thread.

        Args:
            stream: of the driver.
            name: of the thread.
        """
        threading.Thread(target=self._run, args=(stream,), name=name, daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether an operation has not ended."""
        return bool(self._works)

    @property
    def left(self) -> tuple[Work, ...]:
        """The operations that have not ended."""
        with self._changed:
            return tuple(self._works)

    def add(self, work: Work) -> None:
        """``work`` is in the stream."""
        with self._changed:
            self._works.append(work)
            self._changed.notify_all()

    def end(self, seconds: float) -> bool:
        """Nothing follows: whether all is over within ``seconds``; the thread ends then."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._works, seconds)

    def _run(self, stream: cuda.PrivateStream) -> None:
        torch.cuda.set_device(stream.device)
        torch.cuda.set_stream(stream.torch)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._works or self._ended)
                if not self._works:
                    return
                work = self._works[0]
            self._finish(work)
            with self._changed:
                self._works.popleft()
                last = not self._works
                if last and self._ended:
                    self._changed.notify_all()
            if last:
                self._idle()
