"""A thread per world that sees works through for which nobody waits, and runs the callbacks of their futures.

It waits for the oldest, which moves the data of all: mostly they end in the order of their starts. A callback may begin
operations and wait for them, as PowerSGD's does. In this thread they are driven where they are waited for.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiworld.session.member import Member
    from multiworld.torch.work import WorldWork

#: how long the oldest is waited for until the others are looked at
LOOK_SECONDS: Final = 0.02
#: how long the thread stays when there is nothing to do
IDLE_SECONDS: Final = 1.0


class Completer:
    """The works of one world that are on their way, and the thread that sees them through."""

    _all: Final[weakref.WeakKeyDictionary[Member, Completer]] = weakref.WeakKeyDictionary()

    def __init__(self, name: str) -> None:
        self._name = f"mw-works-{name}"
        self._news: queue.SimpleQueue[WorldWork | None] = queue.SimpleQueue()
        self._noted: deque[WorldWork] = deque()
        self._aged: list[WorldWork] = []
        self._ours: list[WorldWork] = []
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._sleeps = True

    @classmethod
    def of(cls, member: Member) -> Completer:
        """Return the one of this world."""
        return cls._all.setdefault(member, cls(member.name))

    def note(self, work: WorldWork) -> None:
        """See ``work`` through if nobody waits for it soon: peers may wait for what is to be done for it here."""
        self._noted.append(work)
        if self._sleeps:
            self._sleeps = False
            self._tell(None)

    def take(self, work: WorldWork) -> None:
        """See ``work`` through, whose ``driving`` the caller has acquired; now, if called by one of its callbacks."""
        for call in work.calls:
            call.set_deadline()
        if threading.get_ident() == self._ident:
            work.drive()
        else:
            self._tell(work)

    def drives(self, work: WorldWork) -> bool:
        """Drive ``work`` to its end if this is the thread of the completer, and it is one of its own."""
        if threading.get_ident() != self._ident:
            return False
        self._hear(wait=False)  # one that another thread has handed over just now is ours
        if work not in self._ours:
            return False
        self._ours.remove(work)
        work.drive()
        return True

    def _tell(self, work: WorldWork | None) -> None:
        with self._guard:
            self._news.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while True:
            self._hear(wait=not self._ours)
            if self._ours:
                self._turn()
            else:
                self._adopt()
            if not (self._ours or self._noted or self._aged) and self._leaves():
                return

    def _hear(self, *, wait: bool) -> None:
        """Take in what is new; with ``wait``, sleep until there is something, not for long while works are noted."""
        try:
            work = self._news.get(wait, LOOK_SECONDS if self._noted or self._aged else IDLE_SECONDS)
            while True:
                if work is not None:
                    self._ours.append(work)
                work = self._news.get_nowait()
        except queue.Empty:
            return

    def _turn(self) -> None:
        """Wait for the oldest for a moment, and end what is done: the others, too, if it is not."""
        if all(call.ends_within(LOOK_SECONDS) for call in self._ours[0].calls[:1]):
            self._ours.pop(0).drive()
            return
        for work in tuple(self._ours[1:]):
            if work in self._ours and all(call.ends_within(0.0) for call in work.calls):
                self._ours.remove(work)
                work.drive()
        self._adopt()

    def _adopt(self) -> None:
        """Take over what was noted before the last turn and nobody waits for."""
        aged, self._aged = self._aged, [self._noted.popleft() for _ in range(len(self._noted))]
        for work in aged:
            if not work.over and work.driving.acquire(blocking=False):
                for call in work.calls:  # none if it is over by now
                    call.set_deadline()
                self._ours.append(work)

    def _leaves(self) -> bool:
        """End the thread if nothing has come meanwhile."""
        self._sleeps = True
        self._hear(wait=True)
        with self._guard:
            if self._ours or self._noted or not self._news.empty():
                return False
            self._thread, self._ident = None, 0
            return True
