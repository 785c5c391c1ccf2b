"""Gloo: an unregistered process group of its own per group of a world."""

from __future__ import annotations

import functools
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from multiworld.backends import gloo_sockets
from multiworld.backends.calls import ProcessGroupCalls
from multiworld.backends.setup_store import SetupStore
from multiworld.matching.driver import Finished, Launched
from multiworld.process.thread_parking import immortal
from multiworld.transport.descriptors import open_numbers, require
from multiworld.transport.sockets import none_made

logger = logging.getLogger(__name__)

# Deadlines are the session's: a wait of Gloo's own that times out would close its connections behind our back.
_LONGEST = timedelta(days=1)
# A connect whose peer died before it dialled us has no socket that could be shut down: only its own timeout ends it.
# Where a group's timeout can be changed later, for the operations too, it is short while connecting.
_SET_TIMEOUT = "set_timeout"
_WORKERS = 2
#: an operation that has not ended this long after its connections were shut down never will
LOST_SECONDS = 3.0
#: how long an abort lets a connect go on. Older releases of Gloo end the process when a socket that they have accepted
#: is shut down before they have asked for its peer's name; what still connects after this time waits for somebody
CONNECTING_SECONDS = 0.5
#: what a group opens, connections on their way to be accepted included, with a margin for the rest of the process
_DESCRIPTORS, _DESCRIPTORS_PER_MEMBER = 8, 2
#: after the last connection is closed, time for Gloo's loop to leave the code that closed it
SETTLE_SECONDS = 0.02


def _device(address: str) -> Any:
    """A Gloo device at ``address``; connections made at once where newer releases would wait for the first use."""
    create = dist.ProcessGroupGloo.create_device
    try:
        return create(hostname=address, lazy_init=False)
    except TypeError:  # releases without the option connect at once
        return create(hostname=address)


def _options(address: str, connecting: timedelta) -> Any:
    kind = dist.ProcessGroupGloo
    options = getattr(kind, "_Options", None) or kind.Options
    made = options()
    made._devices = [_device(address)]
    made._timeout = connecting
    made._threads = _WORKERS
    return made


@functools.cache
def _timeout_can_be_set() -> bool:
    """Return whether this torch can change the timeout of an existing group; tried out on a group of one.

    The older ``_set_default_timeout`` changes the options only, and not what the operations use.
    """
    if not hasattr(dist.ProcessGroupGloo, _SET_TIMEOUT):
        return False
    try:
        group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, _options("127.0.0.1", _LONGEST))
        getattr(group, _SET_TIMEOUT)(_LONGEST)
    except (RuntimeError, TypeError):
        return False
    return True


class GlooDriver(ProcessGroupCalls):
    """One ``ProcessGroupGloo``."""

    name = "gloo"

    def __init__(self, store: SetupStore, rank: int, size: int, address: str) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._address = address
        self._under_way: dict[int, Any] = {}
        self._idle = threading.Condition()
        self._aborted = False
        self._not_connecting = threading.Event()
        self._not_connecting.set()

    def open(self) -> None:
        """Connect to all members.

        Raises:
            DescriptorsExhausted: there are too few; Gloo would end the process in the middle of it.
        """
        require(_DESCRIPTORS + _DESCRIPTORS_PER_MEMBER * self._size, "a group of the gloo backend")
        connecting = timedelta(seconds=min(self._store.timeout_seconds, _LONGEST.total_seconds()))
        settable = _timeout_can_be_set()
        with none_made():  # members of one process open at the same time: each would look at the sockets of all
            before = set(open_numbers())
            options = _options(self._address, connecting if settable else _LONGEST)
            listeners = set(open_numbers()) - before  # that of the device, and what others opened meanwhile
        self._not_connecting.clear()
        try:
            self._group = dist.ProcessGroupGloo(self._store, self._rank, self._size, options)
        finally:
            self._not_connecting.set()
        if settable:
            getattr(self._group, _SET_TIMEOUT)(_LONGEST)
        gloo_sockets.deafen(self._store.own, listeners)
        if self._aborted:
            raise ConnectionAbortedError("aborted while connecting")

    def watch(self, work: Any, finished: Finished, launched: Launched | None = None) -> None:
        """Report the end of ``work``; nothing polls and no thread waits for it."""
        with self._idle:
            self._under_way[id(work)] = work

        def done(future: Any) -> None:
            error: BaseException | None = None
            try:
                future.value()
            except Exception as failure:  # noqa: BLE001 - whatever the backend raises is the outcome
                error = failure
            try:
                if launched is not None and error is None:
                    launched()
                finished(error)
            finally:
                with self._idle:
                    self._under_way.pop(id(work), None)
                    self._idle.notify_all()

        work.get_future().add_done_callback(done)

    def _await_closed(self, until: float) -> None:
        """Wait until Gloo has closed the connections that were shut down.

        Its loop may be on the way to do so, and older releases crash if the group is destroyed meanwhile.
        """
        while gloo_sockets.remaining(self._store.own, self._store.others) and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(SETTLE_SECONDS)

    def abort(self) -> None:
        """Release every waiter by shutting down the sockets of this process group, and no other."""
        self._aborted = True
        self._store.stop()
        self._not_connecting.wait(CONNECTING_SECONDS)
        count = gloo_sockets.shut_down(self._store.own, self._store.others)
        logger.debug("gloo: %d sockets shut down", count)

    def close(self, deadline: float) -> None:
        """Drop the process group once nothing is under way."""
        self._store.stop()
        until = time.monotonic() + (min(deadline, LOST_SECONDS) if self._aborted else deadline)
        with self._idle:
            idle = self._idle.wait_for(lambda: not self._under_way, max(0.0, until - time.monotonic()))
        if self._aborted:
            self._await_closed(until)
        if not idle:
            logger.warning("gloo: operations did not end in %.1f s; their process group is left alone", deadline)
            # Its destructor would wait for that thread, and the interpreter destroys what any variable holds.
            immortal(self._group)
            immortal(self._store)
        self._group = None
