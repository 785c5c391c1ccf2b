"""Queues by key that cost nothing for keys that are not used any more."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

#: so many keys are kept before the empty queues among them are dropped
ROOM = 1024


class Queues(dict[int, deque[T]], Generic[T]):
    """A queue for each key, made when it is first used.

    Programs may give every message a tag of its own; the queues of old tags must not stay.
    """

    __slots__ = ("_room",)

    def __init__(self) -> None:
        super().__init__()
        self._room = ROOM

    def __missing__(self, key: int) -> deque[T]:
        if len(self) >= self._room:
            self._drop_empty()
        made = self[key] = deque()
        return made

    def _drop_empty(self) -> None:
        for key in [key for key, queue in self.items() if not queue]:
            del self[key]
        self._room = max(ROOM, 2 * len(self))
