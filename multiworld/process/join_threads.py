"""The threads in which joins advance: a few for each store, however many joins are under way.

A join is a generator. It yields a ``Pause`` wherever it waits for other members, and holds no thread until it goes on.
What it does between two pauses may block for a store or a peer; so each store has threads of its own, and one that does
not answer holds no join of another one up.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")

#: threads of one store
MOST_THREADS: Final = 16
#: joins that wait for members look at the store so much less often for each of them, in seconds
CROWD_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait of ``seconds``, cut short by ``JoinJob.wake``. ``urgent`` ones wait for connections and not for the store:
    they go on first, since a peer waits for them."""

    seconds: float
    urgent: bool = False


Steps: TypeAlias = Generator[Pause, None, T]


class JoinJob(Generic[T]):
    """One join or rejoin under way since a monotonic time; ``done`` has its outcome. ``given_up`` is set once it has no
    waiter any more, and keeps no outcome alive.
    """

    def __init__(self, threads: JoinThreads, give_back: Callable[[T], object]) -> None:
        self.done: Future[T] = Future()
        self.since = time.monotonic()
        self._threads = threads
        self._give_back = give_back
        self.steps: Steps[T]
        self.given_up = threading.Event()
        #: number of its entry in the queue that counts; 0 while it runs
        self.entry = 0
        self.woken = False

    def wake(self) -> None:
        """Let it look at once. From any thread."""
        self._threads.wake(self)

    def cancel(self) -> bool:
        """Give it up; whether it was not done yet."""
        if not self.done.cancel():
            return False
        self.given_up.set()
        self.wake()
        return True

    @property
    def crowd(self) -> int:
        """Number of joins that wait for the threads of the store, or for members."""
        return self._threads.waiting

    def advance(self) -> Pause | None:
        """Go on to the next pause; None at the end. In a thread of the store."""
        try:
            return next(self.steps)
        except StopIteration as end:
            self._settle(end.value)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with contextlib.suppress(InvalidStateError):  # given up
                self.done.set_exception(error)
        return None

    def _settle(self, value: T) -> None:
        try:
            self.done.set_result(value)
        except InvalidStateError:
            self._give_back(value)


class JoinThreads:
    """The threads of one store, ``MOST_THREADS`` at most. They end when no join is under way; at most one of them waits
    for a pause to end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: what waits, urgent joins first: when it is due, number of the entry, job
        self._queues: tuple[_Queue, _Queue] = [], []
        self._parked: dict[JoinJob[Any], None] = {}
        self._numbers = itertools.count(1)
        self._threads = 0
        self._idle = False

    @property
    def waiting(self) -> int:
        """Number of joins that wait, for a thread or for members."""
        return len(self._parked)

    def start(self, steps: Callable[[JoinJob[T]], Steps[T]], give_back: Callable[[T], object]) -> JoinJob[T]:
        """Begin a join with the generator of ``steps``; an outcome after it was given up goes to ``give_back``."""
        job: JoinJob[T] = JoinJob(self, give_back)
        job.steps = steps(job)
        with self._changed:
            self._enqueue(job, time.monotonic(), urgent=False)
            more = self._needs_thread()
        try:
            self._start_thread(more)
        except RuntimeError:
            with self._changed:  # it has no caller, so no thread must begin it later
                job.given_up.set()
                job.entry = 0
                self._parked.pop(job, None)
            raise
        return job

    def wake(self, job: JoinJob[Any]) -> None:
        """Let ``job`` go on at once; one that runs goes on without its next pause."""
        with self._changed:
            if job not in self._parked:
                job.woken = True
                return
            self._enqueue(job, time.monotonic(), urgent=True)
            more = self._needs_thread()
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            self._start_thread(more)

    def wake_all(self) -> None:
        for job in tuple(self._parked):
            self.wake(job)

    def _enqueue(self, job: JoinJob[Any], due: float, *, urgent: bool) -> None:
        """Queue ``job``; an entry that it has already counts no more."""
        job.entry = next(self._numbers)
        self._parked[job] = None
        heapq.heappush(self._queues[0 if urgent else 1], (due, job.entry, job))

    def _needs_thread(self) -> bool:
        """Return whether a thread has to be started for what is due; it is counted already. Under the lock."""
        if self._idle:
            self._changed.notify()
            return False
        needed = self._threads < MOST_THREADS
        self._threads += needed
        return needed

    def _start_thread(self, needed: bool) -> None:
        """Start a thread, if one is ``needed``; not under the lock, which the hub may wait for.

        Raises:
            RuntimeError: that cannot be, and there is none that does the work.
        """
        if not needed:
            return
        try:
            threading.Thread(target=self._work, name="mw-join", daemon=True).start()
        except RuntimeError:  # the interpreter ends, or the process may have no more threads
            with self._changed:
                self._threads -= 1
                if not self._threads:
                    raise

    def _work(self) -> None:
        while (job := self._next()) is not None:
            pause = job.advance()
            if pause is not None:
                self._park(job, pause)

    def _park(self, job: JoinJob[Any], pause: Pause) -> None:
        with self._changed:
            least = 0.0 if pause.urgent else CROWD_SECONDS * len(self._parked)
            seconds = 0.0 if job.woken else max(pause.seconds, least)
            self._enqueue(job, time.monotonic() + seconds, urgent=pause.urgent or job.woken)
            job.woken = False

    def _next(self) -> JoinJob[Any] | None:
        """Wait for a job that is due; None to end the thread, since another one waits or nothing is left."""
        with self._changed:
            while (job := self._take(time.monotonic())) is None:
                if self._idle or not self._parked:
                    self._threads -= 1
                    self._changed.notify()  # what this thread parked may be due before what the other one waits for
                    return None
                self._idle = True
                try:
                    self._changed.wait(min(max(0.0, self._due() - time.monotonic()), threading.TIMEOUT_MAX))
                finally:
                    self._idle = False
            more = self._due() <= time.monotonic() and self._needs_thread()
        self._start_thread(more)  # if it cannot be started, this one does it all
        return job

    def _take(self, now: float) -> JoinJob[Any] | None:
        for queue in self._queues:
            while queue and (queue[0][0] <= now or queue[0][1] != queue[0][2].entry):
                _, entry, job = heapq.heappop(queue)
                if entry == job.entry:
                    job.entry = 0
                    del self._parked[job]
                    return job
        return None

    def _due(self) -> float:
        """When the next job is due, or an entry that counts no more."""
        return min((queue[0][0] for queue in self._queues if queue), default=math.inf)


_Queue: TypeAlias = list[tuple[float, int, JoinJob[Any]]]
