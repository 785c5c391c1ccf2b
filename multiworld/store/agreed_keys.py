"""Named values in a store that are written once, and a number that only grows: all that members need to agree.

Nothing here blocks for longer than a lost race takes: ``get`` of a missing key would wait, so that it is only called
for keys that are known to be there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

import torch.distributed as dist

from multiworld.store.client import StoreClient
from multiworld.store.torch_store import TorchStore

#: what ``exchange`` is to do with a key: read the value, read the number, write this value unless there is one, or
#: raise the number if it still is the first of two to the second
Wanted: TypeAlias = "str | int | tuple[int, int] | None"
READ: Final = None
NUMBER: Final = 0
_NEVER: Final = "\x01never\x01"
#: how long the winner of the right to write may take before the next one may: it has probably died
WRITER_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.001
#: how often in a row a writer may have died in between, as far as the keys of that are deleted again
_TURNS: Final = 3


class _Keys:
    """Keys of ``store``, this thread's own client, that begin with ``prefix``."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def wait(self, names: Iterable[str], seconds: float) -> bool:
        """Wait until all ``names`` have values, for ``seconds`` at most; False at once if the store is not to be waited
        for, since its client holds the thread for good."""
        if isinstance(self._store, StoreClient):
            self._store.wait(map(self._key, names), seconds)
            return True
        return False


class CasKeys(_Keys):
    """The operations that members agree with, by compare-and-set; each is atomic for all processes."""

    def exchange(self, wanted: Mapping[str, Wanted]) -> list[str | None]:
        """Do what is wanted with each key, in this order and in one round trip where the store allows it; the values
        that they have now, None for those that were not written."""
        values = self._swap((name, *_swap_for(to)) for name, to in wanted.items())
        return [None if value == _NEVER else value for value in values]

    def read(self, name: str) -> str | None:
        """The value of ``name``, None if it was not written."""
        return self.exchange({name: READ})[0]

    def put_first(self, name: str, value: str) -> str:
        """Write ``name`` unless another process has; the value that it has now."""
        return self._swap([(name, "", value)])[0]

    def number(self, name: str) -> int:
        """The number ``name``, 0 if it was never raised."""
        return int(self.read(name) or 0)

    def raise_from(self, name: str, current: int, to: int) -> int:
        """Raise the number to ``to`` if it still is ``current``; the number that it is now."""
        return int(self.exchange({name: (current, to)})[0] or 0)

    def delete(self, *names: str) -> None:
        """Delete the values of ``names``, as far as they are there."""
        keys = map(self._key, names)
        if isinstance(self._store, StoreClient):
            self._store.delete_keys(keys)
            return
        for key in keys:
            self._store.delete_key(key)

    def forget_raise(self, name: str, current: int) -> None:
        """Delete what is left of ``raise_from(name, current, ...)``, which must not be called again: nothing."""

    def _swap(self, swaps: Iterable[tuple[str, str, str]]) -> list[str]:
        named = [(self._key(name), expected, desired) for name, expected, desired in swaps]
        if isinstance(self._store, StoreClient):
            values = self._store.compare_sets(named)
        else:
            values = [self._store.compare_set(*swap) for swap in named]
        return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _swap_for(wanted: Wanted) -> tuple[str, str]:
    """The value to expect, and the one to write."""
    if isinstance(wanted, tuple):
        current, to = wanted
        return str(current) if current else "", str(to)
    return ("", wanted) if isinstance(wanted, str) else (_NEVER, _NEVER)


class CounterKeys(_Keys):
    """The same by counters, for stores whose compare-and-set cannot be used: the first to count may write.

    A writer that dies between its count and its write holds the others up for ``WRITER_SECONDS``; then the next may.
    """

    def exchange(self, wanted: Mapping[str, Wanted]) -> list[str | None]:
        return [self._one(name, value) for name, value in wanted.items()]

    def _one(self, name: str, wanted: Wanted) -> str | None:
        if wanted is READ:
            return self.read(name)
        if isinstance(wanted, tuple):
            return str(self.raise_from(name, *wanted))
        return self.put_first(name, wanted) if isinstance(wanted, str) else str(self.number(name))

    def read(self, name: str) -> str | None:
        if not self._add(f"{name}/there", 0):
            return None
        try:  # if it was just deleted, ``get`` would wait for the store's own timeout
            self._store.wait([self._key(name)], timedelta(seconds=WRITER_SECONDS))
        except RuntimeError:
            return None
        value = self._store.get(self._key(name))
        return value.decode() if isinstance(value, bytes) else str(value)

    def put_first(self, name: str, value: str) -> str:
        for turn in itertools.count():
            if self._add(f"{name}/turn/{turn}", 1) == 1:
                self._store.set(self._key(name), value)
                self._add(f"{name}/there", 1)
                return value
            until = time.monotonic() + WRITER_SECONDS
            while time.monotonic() < until:
                held = self.read(name)
                if held is not None:
                    return held
                time.sleep(_POLL_SECONDS)
        raise AssertionError  # for the type checker: the turns do not end

    def number(self, name: str) -> int:
        return self._add(name, 0)

    def raise_from(self, name: str, current: int, to: int) -> int:
        for turn in itertools.count():
            if self.number(name) != current:
                break
            if self._add(f"{name}/from/{current}/{turn}", 1) == 1:
                return self._add(name, to - current)
            until = time.monotonic() + WRITER_SECONDS
            while self.number(name) == current and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
        return self.number(name)

    def delete(self, *names: str) -> None:
        for name in names:
            for key in (name, f"{name}/there", *(f"{name}/turn/{turn}" for turn in range(_TURNS))):
                self._store.delete_key(self._key(key))

    def forget_raise(self, name: str, current: int) -> None:
        for turn in range(_TURNS):
            self._store.delete_key(self._key(f"{name}/from/{current}/{turn}"))

    def _add(self, name: str, amount: int) -> int:
        return int(self._store.add(self._key(name), amount))


AgreedKeys: TypeAlias = CasKeys | CounterKeys


def keys_of(store: Any, prefix: str) -> AgreedKeys:
    """The keys of ``store`` that begin with ``prefix``, in the way that is safe with this torch.

    Our own client compares and sets on every torch. Up to torch 2.2 ``compare_set`` of torch's own objects makes the
    ``bytes`` it returns without holding the GIL (``init.cpp``: the result is built under
    ``call_guard<gil_scoped_release>``), which corrupts the memory of a process with other threads. These releases are
    known by a method that came later than the repair.
    """
    held = store.object if isinstance(store, TorchStore) else store
    unsafe = isinstance(held, dist.Store) and not hasattr(dist.Store, "check")
    return CounterKeys(store, prefix) if unsafe else CasKeys(store, prefix)
