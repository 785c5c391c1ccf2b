"""The content of a hosted store: values, queues, and the waits for a key. Bounded, and without any I/O."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, MutableSet
from dataclasses import dataclass

from multiworld.store.wire import NUMBER
from multiworld.transport.greeting import GreetingError

#: what is counted for a key in addition to its bytes and those of its value
KEY_OVERHEAD_BYTES = 128


class Refused(Exception):
    """A request that cannot be served; its connection is closed, because many requests have no answer. ``complaint`` is
    for the host: the settings of the two sides differ. It is None for input of a stranger."""

    def __init__(self, why: str, complaint: GreetingError | None = None) -> None:
        super().__init__(why)
        self.complaint = complaint


@dataclass(frozen=True, slots=True)
class Limits:
    """The capacity of a store. ``keys`` includes queued values, ``total_bytes`` the keys and a constant for each."""

    key_bytes: int = 4096
    value_bytes: int = 1 << 20
    request_bytes: int = 4 << 20
    list_keys: int = 1 << 16
    keys: int = 1 << 17
    total_bytes: int = 64 << 20


class StoreData:
    """The keys of one store. For one thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._queued = 0
        self._bytes = 0
        self._waiters: dict[bytes, dict[Callable[[], None], None]] = {}
        self._awaited: dict[Callable[[], None], MutableSet[bytes]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> Iterable[bytes]:
        return self._values.keys()

    def get(self, key: bytes) -> bytes:
        """The value; empty if there is none, as torch's own server says."""
        return self._values.get(key, b"")

    def set(self, key: bytes, value: bytes) -> None:
        self._put(key, value)
        self._wake(key)

    def append(self, key: bytes, value: bytes) -> None:
        whole = self.get(key) + value
        if len(whole) > self._limits.value_bytes:
            raise Refused("the value grows too large")
        self.set(key, whole)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Write ``desired`` if the value is ``expected`` (empty: if there is none); the value that it is now.

        Where there is no value and one was expected, that one is returned, as torch's own server does.
        """
        held = self._values.get(key)
        if held is None and expected:
            return expected
        if held is None or held == expected:
            self.set(key, desired)
            return desired
        return held

    def add(self, key: bytes, amount: int) -> int:
        """Add to a value that is a number in text; the sum."""
        try:
            total = int(self.get(key) or b"0") + amount
            NUMBER.pack(total)
        except (ValueError, struct.error) as error:
            raise Refused("not a number of 64 bits") from error
        self.set(key, b"%d" % total)
        return total

    def delete(self, key: bytes) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._bytes -= self._cost(key, value)
        return True

    def has(self, keys: Iterable[bytes]) -> bool:
        """Return whether each key has a value, or something in its queue."""
        return all(key in self._values or key in self._queues for key in keys)

    def push(self, key: bytes, value: bytes) -> None:
        """Put a value at the end of a queue; the first waiter goes on."""
        self._charge(self._cost(key, value), 1)
        self._queued += 1
        self._queues.setdefault(key, deque()).append(value)
        for waiter in tuple(self._waiters.get(key, ()))[:1]:
            self._arrived(key, waiter)

    def pop(self, key: bytes) -> tuple[int, bytes]:
        """Take the first value of a queue; how many there were (0: nothing was taken), and the value."""
        queue = self._queues.get(key)
        if not queue:
            return 0, b""
        length, value = len(queue), queue.popleft()
        if not queue:
            del self._queues[key]
        self._queued -= 1
        self._bytes -= self._cost(key, value)
        return length, value

    def queued(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    def wait(self, keys: Iterable[bytes], waiter: Callable[[], None]) -> bool:
        """Return whether all keys are there; if not, call ``waiter`` once they are. A waiter has one wait at a time."""
        missing = {key for key in keys if not self.has((key,))}
        if missing:
            self._await(missing, waiter)
        return not missing

    def barrier(self, key: bytes, size: int, waiter: Callable[[], None]) -> bool:
        """Count up ``key``; whether ``size`` have come. If not, ``waiter`` is called when the last one has."""
        try:
            count = int(self.get(key) or b"0") + 1
        except ValueError as error:
            raise Refused("not a number") from error
        self._put(key, b"%d" % count)
        if count >= size:
            self._wake(key)
            return True
        self._await({key}, waiter)
        return False

    def _await(self, keys: MutableSet[bytes], waiter: Callable[[], None]) -> None:
        self.forget(waiter)
        self._awaited[waiter] = keys
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None

    def forget(self, waiter: Callable[[], None]) -> None:
        for key in self._awaited.pop(waiter, ()):
            self._drop(key, waiter)

    def _put(self, key: bytes, value: bytes) -> None:
        held = self._values.get(key)
        before = 0 if held is None else self._cost(key, held)
        self._charge(self._cost(key, value) - before, held is None)
        self._values[key] = value

    def _charge(self, size: int, keys: int) -> None:
        if len(self._values) + self._queued + keys > self._limits.keys:
            raise Refused("the store has too many keys")
        if size > 0 and self._bytes + size > self._limits.total_bytes:
            raise Refused("the store is full")
        self._bytes += size

    def _cost(self, key: bytes, value: bytes) -> int:
        return len(key) + len(value) + KEY_OVERHEAD_BYTES

    def _wake(self, key: bytes) -> None:
        for waiter in tuple(self._waiters.get(key, ())):
            self._arrived(key, waiter)

    def _arrived(self, key: bytes, waiter: Callable[[], None]) -> None:
        self._drop(key, waiter)
        awaited = self._awaited[waiter]
        awaited.discard(key)
        if not awaited:
            del self._awaited[waiter]
            waiter()

    def _drop(self, key: bytes, waiter: Callable[[], None]) -> None:
        waiters = self._waiters[key]
        del waiters[waiter]
        if not waiters:
            del self._waiters[key]
