"""The work that reading an object may cause: counted, and keys weighed before they are hashed.

A value of a few hundred bytes whose parts are shared can take forever to be hashed or compared. Keys of one hash make a
dict as slow as a list. Both hold the GIL. The work may not exceed what the length of the message warrants.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

from multiworld.errors import ObjectRefused

#: work that every object may cause, and more for each byte; a unit is about ten nanoseconds
BASE_WORK: Final = 2_000_000
WORK_PER_BYTE: Final = 8
#: how deep a tuple or frozenset that is hashed may be: the interpreter's own hashing has no bound, and a stack has one
MAX_KEY_DEPTH: Final = 64
#: keys of one hash in one dict or set; each further one is compared with all of them
MAX_COLLISIONS: Final = 64
#: what can be made to collide only by who knows the process's own secret, or hardly
_SAFE_KEYS: Final = frozenset({type(None), bool, float, *((str, bytes) if sys.flags.hash_randomization else ())})
_LEAVES: Final = frozenset({type(None), bool, int, float, str, bytes})
_SMALL: Final = 1 << 60  # whole numbers below it are their own hash


def refuse(what: str) -> NoReturn:
    """Raise ``ObjectRefused`` for an object that does or needs ``what``."""
    raise ObjectRefused(what=what)


class Budget:
    """The work that one object may still cause.

    Args:
        nbytes: length of its message.
    """

    def __init__(self, nbytes: int) -> None:
        self._work = BASE_WORK + WORK_PER_BYTE * nbytes
        self._weights: dict[int, tuple[int, int, Any]] = {}  # weight, depth and the value itself, by id
        self._hashes: dict[int, tuple[dict[int, int], Any]] = {}  # of the keys in a dict or set, by its id

    def spend(self, units: int) -> None:
        """Count work, before it is done; raises ``ObjectRefused`` when it is too much."""
        self._work -= units
        if self._work < 0:
            refuse("the object causes far more work than its length warrants")

    def admit(self, key: Any, container: Any) -> None:
        """Make sure that ``key`` can be hashed, and compared with the others in ``container``, in bounded time."""
        kind = type(key)
        if kind in _SAFE_KEYS:
            self._work -= 1 + (len(key) >> 8 if kind is str or kind is bytes else 0)
        elif kind is int and -_SMALL < key < _SMALL:
            self._work -= 1
        else:
            self.spend(4 * self._weight(key, 0)[0])
            self._count_hash(hash(key), container)
        if self._work < 0:
            self.spend(0)

    def _count_hash(self, code: int, container: Any) -> None:
        known = self._hashes.get(id(container))
        if known is None:
            known = self._hashes[id(container)] = {}, container
        count = known[0][code] = known[0].get(code, 0) + 1
        if count > MAX_COLLISIONS:
            refuse("the object holds a dict or set whose keys collide")

    def _weight(self, value: Any, depth: int) -> tuple[int, int]:
        """Return how many values are visited when ``value`` is hashed or compared, and how deep they lie."""
        kind = type(value)
        if kind is tuple and _LEAVES.issuperset(map(type, value)):
            return 1 + len(value) + sum(map(sys.getsizeof, value)) // 256, 1
        if kind is tuple or kind is frozenset:
            return self._weight_of_parts(value, depth)
        if kind in _LEAVES:
            return 1 + sys.getsizeof(value) // 256, 0
        if kind is range or kind is slice:
            return 4 + sum(map(sys.getsizeof, (value.start, value.stop, value.step))) // 64, 1
        return 8, 0

    def _weight_of_parts(self, value: Any, depth: int) -> tuple[int, int]:
        known = self._weights.get(id(value))
        if known is None:
            if depth > MAX_KEY_DEPTH:
                refuse(f"the object holds a key that is nested more than {MAX_KEY_DEPTH} deep")
            weight = below = 1
            for part in value:
                more, deep = self._weight(part, depth + 1)
                self.spend(8)
                weight, below = weight + more, max(below, deep + 1)
                if weight > self._work:
                    refuse("the object holds a key that cannot be hashed in reasonable time")
            known = self._weights[id(value)] = weight, below, value
        if depth + known[1] > MAX_KEY_DEPTH:
            refuse(f"the object holds a key that is nested more than {MAX_KEY_DEPTH} deep")
        return known[0], known[1]
