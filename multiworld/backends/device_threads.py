"""The works and the two threads of a device driver: one launches, and the other one waits for their ends.

They take turns: the one that has launched waits for the end, unless the other one does, and leaves launching to it.
So a single operation wakes one thread, and not a second one for its end.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from multiworld.matching.driver import Finished, Launched

logger = logging.getLogger(__name__)


class Work:
    """An operation under way. It keeps its tensors alive until the device no longer uses them.

    Its watchers are called in order and never under a lock: launched, then finished.

    Args:
        launch: enqueues it; gets the communicator, and returns what ``Communicator.outcome`` takes.
        tensors: the memory that it uses.
        after: CUDA event that it waits for on the device; None for nothing.

    Attributes:
        end: CUDA event after it in the driver's stream; None until it is launched.
        handle: what ``launch`` returned.
    """

    def __init__(self, launch: Callable[[Any], Any], tensors: Any, after: Any) -> None:
        self.launch: Callable[[Any], Any] | None = launch
        self.tensors, self.after = tensors, after
        self.end: Any = None
        self.handle: Any = None
        self._guard = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._calling = self._is_launched = self._is_over = False
        self._error: BaseException | None = None
        self._finished: Finished | None = None
        self._launched: Launched | None = None

    @property
    def has_succeeded(self) -> bool:
        """True once its end was seen on the device, and it went well."""
        return self._is_over and self._error is None

    def watch(self, finished: Finished, launched: Launched | None) -> None:
        with self._guard:
            self._finished, self._launched = finished, launched
            self._tell(launched=self._is_launched, over=self._is_over)
        self._call()

    def was_launched(self) -> None:
        """It is in the driver's stream."""
        with self._guard:
            self._is_launched = True
            self._tell(launched=not self._is_over, over=False)
        self._call()

    def is_over(self, error: BaseException | None) -> bool:
        """It has ended, for those who watch; the first end counts. Whether this was it."""
        with self._guard:
            if self._is_over:
                return False
            self._is_over, self._error = True, error
            self._tell(launched=False, over=True)
        self._call()
        return True

    def release(self) -> None:
        """The device no longer uses the memory."""
        self.tensors = self.after = self.launch = self.handle = None

    def _tell(self, *, launched: bool, over: bool) -> None:
        if launched and self._launched is not None and self._error is None:
            self._calls.append(self._launched)
        if over and self._finished is not None:
            # Let go of: the watchers refer to the work.
            finished, self._finished, self._launched = self._finished, None, None
            self._calls.append(partial(finished, self._error))

    def _call(self) -> None:
        """Make the calls that are due, unless another thread is making them: so they stay in order."""
        while True:
            with self._guard:
                if self._calling or not self._calls:
                    return
                self._calling = True
                call = self._calls.popleft()
            try:
                call()
            except Exception:
                logger.exception("handling the end of an operation failed")
            finally:
                with self._guard:
                    self._calling = False


#: how often failures in the background are looked for while something is under way
LOOK_SECONDS = 0.1


class DeviceThreads:
    """The work of the two threads, and its distribution among them. It is called without a lock, and never raises.

    Args:
        launch: puts a work into the stream; returns whether it is there.
        outcome: waits for the end of a launched work; returns how it went.
        look: looks for failures in the background.
        end: ends the communicator; nothing is launched any more.

    Attributes:
        launching: what is on its way into the stream.
    """

    def __init__(
        self,
        launch: Callable[[Work], bool],
        outcome: Callable[[Work], BaseException | None],
        look: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._launch_one, self._outcome, self._look_once, self._end = launch, outcome, look, end
        lock = threading.Lock()
        self._jobs = threading.Condition(lock)  # the two wait here
        self._emptied = threading.Condition(lock)
        self._queued: deque[Work] = deque()
        self._works: deque[Work] = deque()  # launched
        self._launches = self._waits = False  # whether one of the two does
        self._stopped = self._closing = self._ended = False
        self._looks = False  # whether something was launched since the last look
        self.launching: Work | None = None

    @property
    def left(self) -> tuple[Work, ...]:
        """The works that were launched and have not ended."""
        with self._jobs:
            return tuple(self._works)

    def add(self, work: Work) -> bool:
        """Launch ``work`` after those before it; False once nothing is launched any more."""
        with self._jobs:
            if not self._stopped:
                self._queued.append(work)
                self._jobs.notify()
            return not self._stopped

    def stop(self) -> list[Work]:
        """Launch nothing any more, and end; returns what will not be launched."""
        with self._jobs:
            self._stopped = True
            queued, self._queued = list(self._queued), deque()
            self._jobs.notify_all()
        return queued

    def close(self) -> None:
        """End when all that was asked for is done."""
        with self._jobs:
            self._closing = True
            self._jobs.notify_all()

    def is_empty(self, seconds: float) -> bool:
        """Return whether nothing that was launched is left, now or within ``seconds``."""
        with self._emptied:
            return self._emptied.wait_for(lambda: not self._works, seconds)

    def work(self) -> None:
        """Do what there is to do until the end, in one of the two threads."""
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._jobs:
            while not (self._ended and not self._works):
                if not self._launches and (job := self._to_launch()) is not None:
                    self._launches = True
                    return job
                if self._works and not self._waits:
                    self._waits = True
                    return self._wait
                in_time = self._jobs.wait(LOOK_SECONDS if self._looks else None)
                if not in_time and not self._launches:
                    self._looks = bool(self._works)
                    self._launches = True
                    return self._look
            return None

    def _to_launch(self) -> Callable[[], None] | None:
        """Return the next step of the launching thread; under the lock."""
        if self._ended:
            return None
        if self._stopped or (self._closing and not self._queued and not self._works):
            self._stopped = self._ended = True
            self._jobs.notify_all()
            return self._end
        return self._launch if self._queued else None

    def _launch(self) -> None:
        """Launch what is queued; wait for its end, unless the other thread waits or more follows."""
        while True:
            with self._jobs:
                work = self.launching = self._queued.popleft() if self._queued else None
                if work is None:
                    self._launches = False
                    return
            launched = self._launch_one(work)
            with self._jobs:
                if launched:
                    self.launching = None
                    self._works.append(work)
                    if not self._looks:  # see that one looks
                        self._looks = True
                        self._jobs.notify()
                    if not (self._waits or self._queued or self._stopped):
                        self._launches, self._waits = False, True
                        break
                    self._jobs.notify()
        self._wait()

    def _wait(self) -> None:
        """Wait for the ends of what is launched, in their order.

        The report comes last: a woken waiter needs the interpreter, and this thread does not any more.
        """
        last = False
        while not last:
            work = self._works[0]
            error = self._outcome(work)
            work.release()
            with self._jobs:
                self._works.popleft()
                last = not self._works
                if last:
                    self._waits = False
                    self._emptied.notify_all()
            work.is_over(error)

    def _look(self) -> None:
        self._look_once()
        with self._jobs:
            self._launches = False
