"""The store that a backend is set up with: kept by the members themselves, over their lanes.

So the rendezvous store is not needed once a world stands: its host may die. A wait for a peer's value ends when the
world breaks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

Broadcast = Callable[[str, bytes], None]


class SetupStore(dist.Store):  # type: ignore[misc]  # torch is not followed by the type checker
    """A store whose ``set`` goes to all members of a group, and whose ``get`` waits for theirs.

    Args:
        broadcast: sends a key and its value to the other members.
        timeout: seconds that ``get`` waits.
    """

    def __init__(self, broadcast: Broadcast, timeout: float) -> None:
        super().__init__()
        self._broadcast = broadcast
        self.timeout_seconds = timeout
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._stopped = False

    def set(self, key: str, value: Any) -> None:
        """Keep the value and send it to the others."""
        data = value if isinstance(value, bytes) else bytes(value, "utf-8") if isinstance(value, str) else bytes(value)
        self._put(key, data)
        self._broadcast(key, data)

    def receive(self, key: str, value: bytes) -> None:
        """A member's value has come."""
        self._put(key, value)

    def stop(self) -> None:
        """Let all waits fail at once."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """The value, waiting for it."""
        self._wait([key], self.timeout_seconds)
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys have values."""
        self._wait(keys, self.timeout_seconds if timeout is None else timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values now."""
        return all(key in self._values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values, waiting for them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Backends use plain get and set then."""
        return False

    def _put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def _wait(self, keys: list[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._stopped and not self.check(keys):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no value for {keys} within {timeout} s")
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if self._stopped:
                raise ConnectionAbortedError("the world broke while its backend was set up")
