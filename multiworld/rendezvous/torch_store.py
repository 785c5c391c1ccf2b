"""Stores of torch's that have no other client than torch's: files, and objects of the caller's.

Their calls run in C++, and Python aborts the process when one comes back to an interpreter that is ending. So each call
passes a gate, which is closed when the process exits: those inside get a moment to come back, and none begins.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from multiworld.rendezvous.store_client import Unwanted

#: how long closing the gate waits for calls that are inside; a store whose host is frozen takes longer
CLOSING_SECONDS: Final = 1.0


class Gate:
    """Counts the calls that are in C++, and lets none in once it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Be inside for the block.

        Raises:
            Unwanted: the gate is closed.
        """
        with self._changed:
            if self._closed:
                raise Unwanted
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, seconds: float = CLOSING_SECONDS) -> bool:
        """Let nobody in any more; whether nobody is inside, after ``seconds`` at most."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._inside == 0, seconds)


class TorchStore:
    """A store object behind a gate; it has the methods that ``cells`` needs.

    Args:
        gate: which all calls pass.
        make: makes the object, or returns the caller's.
    """

    def __init__(self, gate: Gate, make: Callable[[], Any]) -> None:
        self._gate = gate
        with gate.passed():
            self.object = make()

    def compare_set(self, key: str, expected: str, desired: str) -> Any:
        """As the object's, like all that follow."""
        with self._gate.passed():
            return self.object.compare_set(key, expected, desired)

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        with self._gate.passed():
            self.object.set(key, value)

    def get(self, key: str) -> Any:
        """The value, waited for."""
        with self._gate.passed():
            return self.object.get(key)

    def wait(self, keys: list[str], timeout: Any) -> None:
        """Wait until all keys are there."""
        with self._gate.passed():
            self.object.wait(keys, timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a number; the sum."""
        with self._gate.passed():
            return int(self.object.add(key, amount))

    def delete_key(self, key: str) -> Any:
        """Delete a value; whether there was one."""
        with self._gate.passed():
            return self.object.delete_key(key)
