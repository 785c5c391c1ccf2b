"""One operation of a device driver, from its start to its end."""

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
