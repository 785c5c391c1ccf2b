"""The driver for tensors on a CUDA device: one communicator, its private stream, and the threads that serve it.

Two threads launch and wait in turns, in compiled code and without the GIL (``engine/launch``): one of them at a time
makes the communicator, launches on it and ends it; nothing else calls NCCL. An abort is asked for by a flag. Where the
one that launches does not come to it, since it is inside a call that does not return, another thread aborts. What hangs
even then is left to its thread, with the memory that it uses.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any

import torch

from multiworld.backends import cuda, device_failures
from multiworld.backends.device_members import Facts, Member, host_id, meet
from multiworld.backends.setup_store import SetupStore
from multiworld.engine import library
from multiworld.errors import BackendFailed
from multiworld.matching.driver import DriverRefused, Finished, Launched
from multiworld.process.thread_parking import immortal

logger = logging.getLogger(__name__)

#: how long the one that launches has to come to an abort, before another thread aborts
RESCUE_SECONDS = 0.3
#: how long after an abort the operations are over for those who wait; their memory is kept until the device is done
LET_GO_SECONDS = 0.5
#: an abort that takes longer is left to its thread
ABORT_SECONDS = 10.0
#: how long what is in the stream after its last operation may take: the abort of kernels, the end of an event
DRAIN_SECONDS = 1.0
#: how long an orderly close waits for the other members of the host before it aborts
FINALIZE_SECONDS = 2.0

#: kind, source, target, count, dtype, reduction, peer or root: see ``Call`` in ``engine/launch/communicator.h``
Call = tuple[int, int, int, int, int, int, int]


class _Job(IntEnum):
    """What the launcher asks one of the two threads for; see ``Job`` in ``engine/launch/launcher.h``."""

    NONE, TELL, PREPARE, LOOK, END = range(5)


class _Report(IntEnum):
    """What became of a launch; see ``Report`` in ``engine/launch/launcher.h``."""

    LAUNCHED, OVER, FAILED, BROKEN = range(4)


class Work:
    """An operation under way. It keeps its tensors alive until the device no longer uses them.

    Args:
        number: of the launch.
        tensors: the memory that it uses.
        after: CUDA event that it waits for on the device; None for nothing.
        prepare: launches what compiled code cannot, in the launching thread; returns what ``DeviceDriver.outcome``
            takes, and calls that are still to be made. None if compiled code makes all calls.

    Attributes:
        handle: what ``prepare`` returned.
        error: of its end; the first end counts.
    """

    def __init__(
        self, number: int, tensors: Any, after: Any, prepare: Callable[[], tuple[Any, list[Call]]] | None
    ) -> None:
        self.number, self.tensors, self.after, self.prepare = number, tensors, after, prepare
        self.handle: Any = None
        self.error: BaseException | None = None
        self.is_launched = self.is_over = False
        self.finished: Finished | None = None
        self.launched: Launched | None = None

    def release(self) -> None:
        """The device no longer uses the memory."""
        self.tensors = self.after = self.prepare = self.handle = None

    def due(self) -> list[Callable[[], None]]:
        """The calls of its watchers that are due now, in their order; each is returned once."""
        calls: list[Callable[[], None]] = []
        if self.launched is not None and self.is_launched and self.error is None:
            calls.append(self.launched)
            self.launched = None
        if self.finished is not None and self.is_over:
            # Let go of: the watchers refer to the work.
            calls.append(partial(self.finished, self.error))
            self.finished = self.launched = None
        return calls


class DeviceDriver(ABC):
    """See ``Driver``; a subclass has the operations, and the communicator.

    The communicator belongs to one thread at a time, which has its device and its stream as the current ones. Only
    ``abort_communicator`` may be called from another thread, as the last resort, while that thread is inside a call.
    """

    name: str

    def __init__(self, store: SetupStore, us: Member) -> None:
        self._store, self._us = store, us
        self._device = torch.device(us.device)
        self._stream: cuda.PrivateStream | None = None
        self._launcher = library.launcher()
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._works: dict[int, Work] = {}  # that the device may use memory of
        self._dropped: set[int] = set()  # that were given up before they were adopted
        self._guard = threading.Lock()  # of the works' ends and watchers
        self._due: deque[Callable[[], None]] = deque()
        self._telling = threading.Lock()
        self._doubtful: list[Work] = []
        self._failure: BaseException | None = None
        self._started = self._made = self._ending = self._ended = False
        self._remains = False  # what is launched may come into the stream still: NCCL launches in a thread of its own
        self._forget_device: Callable[[], None] = lambda: None
        self._adopt: Callable[[int], None] = lambda _: None  # a transfer of compiled code's, see ``transfers``

    # the communicator

    @abstractmethod
    def version(self) -> str:
        """Return what has to be the same on all members, in text."""

    @abstractmethod
    def connect(self, stream: int) -> None:
        """Meet the other members, and open the launcher; operations go into ``stream``, its address. May block."""

    def failure(self) -> BaseException | None:
        """Return a failure in the background that compiled code does not see; None if there is none."""
        return None

    def outcome(self, handle: Any) -> BaseException | None:  # noqa: ARG002 - NCCL itself knows no single operations
        """Return how an operation went so far, at once."""
        return None

    @abstractmethod
    def abort_communicator(self) -> None:
        """Stop its kernels and free it. May block. Harmless if it is gone, or not made yet."""

    @abstractmethod
    def finalize(self) -> None:
        """Free it in good order, when nothing is under way here, unless the driver fails meanwhile. May block."""

    def release(self) -> None:  # noqa: B027 - nothing is left of a communicator that was freed
        """Let go of what an abort or an end leaves, when no operation and no call is under way any more. May block."""

    # what is asked of a driver

    def open(self) -> None:
        """Make the communicator with all members.

        Raises:
            BackendFailed: it was not made in time, or the members do not fit together.
            DeviceFailed: the device is lost for this process.
            ConnectionAbortedError: ``abort`` was called meanwhile.
        """
        self._forget_device = device_failures.listen(self._us.device, self._fail)
        limit = self._store.timeout_seconds
        with self._changed:
            if self._failure is None:
                self._started = True
                threading.Thread(target=self._live, name=self._thread("launch"), daemon=True).start()
            self._changed.wait_for(lambda: self._made or self._failure is not None, min(limit, threading.TIMEOUT_MAX))
            failure, made = self._failure, self._made
        if not self._started:
            self._forget_device()
        if failure is None and not made:
            failure = self._late(limit)
            self._fail(failure)
        if failure is not None:
            raise failure

    def transfers(self, adopt: Callable[[int], None]) -> Any:  # noqa: ARG002 - for those that have a launcher alone
        """See ``Driver.transfers``."""
        return None

    def adopt(self, number: int, memory: Any, *, dropped: bool) -> Work:
        """See ``Driver.adopt``."""
        work = self._works[number] = Work(number, memory, None, None)
        with self._changed:  # ``_fail`` may have met its number before it was here
            dropped |= number in self._dropped
        if dropped:
            self._let_go(work, self._failure or ConnectionAbortedError("the communicator was closed"))
        return work

    def watch(self, work: Work, finished: Finished, launched: Launched | None = None) -> None:
        with self._guard:
            work.finished, work.launched = finished, launched
            if launched is not None and not work.is_over:
                work.is_launched |= self._launcher.tell_launch(work.number)
            self._due.extend(work.due())
        self._call()

    def join(self, work: Work) -> None:
        """Let the calling thread's current stream wait for the end of ``work``, if that was not waited for already.

        Raises:
            DeviceFailed: the device is lost for this process.
        """
        if not work.is_over or work.error is not None:
            try:
                self._launcher.join(work.number, torch.cuda.current_stream(self._device.index).cuda_stream)
            except RuntimeError as error:
                raise self._explained(error) from error

    def abort(self) -> None:
        """Ask for the abort of the communicator; returns at once. Remembered while it is being made."""
        self._store.stop()
        self._fail(ConnectionAbortedError("the world broke"))

    def close(self, deadline: float) -> None:
        """Free everything: in good order if nothing failed, and by an abort if that takes too long."""
        until = time.monotonic() + deadline
        self._launcher.close()
        with self._changed:
            if not self._started:
                return
            if self._failure is None:
                self._changed.wait_for(lambda: self._ended, min(deadline, FINALIZE_SECONDS))
            in_order = self._ended
        if not in_order:
            self._fail(ConnectionAbortedError("the communicator was closed"))
            with self._changed:
                self._changed.wait_for(lambda: self._ended, max(0.0, until - time.monotonic()))

    # starting and failing, from any thread

    def _start(
        self,
        tensors: Any,
        after: Any,
        calls: list[Call] | None,
        prepare: Callable[[], tuple[Any, list[Call]]] | None = None,
    ) -> Work:
        """Launch ``calls``, or what ``prepare`` makes of it in the launching thread."""
        number = next(self._numbers)
        work = self._works[number] = Work(number, tensors, after, prepare)
        if not self._launcher.add(number, calls, 0 if after is None else after.cuda_event):
            self._let_go(work, self._failure or ConnectionAbortedError("the communicator was closed"))
        return work

    def _fail(self, failure: BaseException) -> None:
        """Launch nothing any more, and have the launching thread abort. The first failure counts. Blocks on nothing."""
        with self._changed:
            if self._failure is not None or self._ended:
                return
            self._failure = failure
            started = self._started
            self._changed.notify_all()
        queued = self._launcher.stop()
        if started:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts none: the process frees it
                threading.Thread(target=self._see_it_end, name=self._thread("abort"), daemon=True).start()
        with self._changed:
            found = [self._works.get(number) for number in queued]
            self._dropped.update(number for number, work in zip(queued, found, strict=True) if work is None)
        for work in found:
            if work is not None:
                self._let_go(work, failure)

    def _let_go(self, work: Work, error: BaseException | None) -> None:
        """The device does not use its memory, or does so no more."""
        self._works.pop(work.number, None)
        work.release()
        self._is_over(work, error)

    def _is_over(self, work: Work, error: BaseException | None) -> None:
        """It has ended, for those who watch; the first end counts."""
        with self._guard:
            if not work.is_over:
                work.is_over, work.error = True, error
                work.is_launched |= error is None
                self._due.extend(work.due())
        self._call()

    def _call(self) -> None:
        """Make the calls that are due, unless another thread is making them: so they stay in order."""
        while self._due and self._telling.acquire(blocking=False):
            try:
                while self._due:
                    self._due.popleft()()
            except Exception:  # noqa: PERF203 - the others must hear of theirs
                logger.exception("handling the end of an operation failed")
            finally:
                self._telling.release()

    def _see_it_end(self) -> None:
        """After a failure: let go of what waits, and abort from here if the one that launches does not come to it."""
        self._adopt(0)
        if not self._within(RESCUE_SECONDS, lambda: self._ending):
            rescue = threading.Thread(target=self._abort, name=self._thread("rescue"), daemon=True)
            with contextlib.suppress(RuntimeError):
                rescue.start()
        until = time.monotonic() + LET_GO_SECONDS - RESCUE_SECONDS
        ended = self._within(until - time.monotonic(), lambda: self._ended)
        if ended and self._launcher.drained(max(0.0, until - time.monotonic())):
            return
        for work in tuple(self._works.values()):  # it keeps the memory
            self._is_over(work, self._failure)
        if not self._within(ABORT_SECONDS, lambda: self._ended):
            immortal(self)  # destructors would wait for the same call
            what = f"the abort of its {self.name} communicator has not ended in {ABORT_SECONDS} s"
            cause = "NCCL or the CUDA driver hangs, or a kernel of this process does not end"
            remedy = "other worlds go on; if they are slow, or memory is short, start this process again"
            logger.error("%s", self._us.failed(what, cause, remedy))

    def _within(self, seconds: float, reached: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(reached, seconds)

    # in the two threads

    def _live(self) -> None:
        try:
            self._make()
            threading.Thread(target=self._assist, name=self._thread("assist"), daemon=True).start()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this communicator
            self._fail(self._explained(error))
        self._serve()

    def _assist(self) -> None:
        try:
            if self._stream is not None:
                torch.cuda.set_device(self._device)
                torch.cuda.set_stream(self._stream.torch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the device is lost
            self._fail(self._explained(error))
        self._serve()

    def _make(self) -> None:
        us = self._us
        try:
            self._stream = cuda.take_stream(self._device)
            bus = cuda.bus_id(self._device.index)
        except cuda.RuntimeMissingError:
            raise
        except RuntimeError as error:
            device_failures.look(us.device, error)
            raise device_failures.failure_of(us.device) or self._refused(error) from error
        ours = Facts(us.rank, self.name, self.version(), host_id(), bus)
        try:
            meet(self._store, us, ours)
            self.connect(self._stream.pointer)
        except TimeoutError as error:
            raise self._late(self._store.timeout_seconds) from error
        with self._changed:
            self._made = self._failure is None
            self._changed.notify_all()

    def _serve(self) -> None:
        """Do what the launcher leaves to Python, until all is over."""
        while True:
            job, number, reports = self._launcher.next()
            if job == _Job.TELL:
                for report in reports:
                    self._hear(*report)
            elif job == _Job.PREPARE:
                self._prepare(self._works[number])
            elif job == _Job.LOOK:
                self._look(self._works.get(number))
            elif job == _Job.END:
                self._end()
            else:
                return

    def _hear(self, what: int, number: int, text: str) -> None:
        """Take up a report; its ``text`` is that of an error."""
        if what == _Report.BROKEN:
            self._fail(self._explained(RuntimeError(text)))
            return
        if number not in self._works:
            self._adopt(number)
        work = self._works[number]
        if what == _Report.LAUNCHED:
            with self._guard:
                work.is_launched = True
                self._due.extend(work.due())
            self._call()
        elif what == _Report.OVER:
            self._let_go(work, self._outcome(work, text))
        else:
            self._launch_failed(work, RuntimeError(text))

    def _prepare(self, work: Work) -> None:
        """Put ``work`` into the stream; NCCL may connect to peers first, and wait for them in that."""
        if work.prepare is None:
            return
        try:
            work.handle, calls = work.prepare()
        except DriverRefused as refused:
            self._let_go(work, refused)
        except Exception as error:  # noqa: BLE001 - of torch's and NCCL's many types: the launch failed
            self._launch_failed(work, error)
        else:
            self._launcher.go_on(work.number, calls)

    def _launch_failed(self, work: Work, error: BaseException) -> None:
        """Part of it may have been launched: its memory is kept until the abort."""
        failure = self._explained(error)
        self._doubtful.append(work)
        del self._works[work.number]
        self._fail(failure)
        self._is_over(work, self._failure)

    def _look(self, oldest: Work | None) -> None:
        handle = None if oldest is None else oldest.handle  # the other thread may have heard of its end meanwhile
        try:
            # The end of the oldest may never come: torch's watchdog can fail, or hang, in the abort that would end it.
            failure = self.failure() or (None if handle is None else self.outcome(handle))
        except Exception as error:  # noqa: BLE001 - of torch's and NCCL's many types
            failure = error
        if failure is not None:
            self._fail(self._explained(failure))

    def _outcome(self, work: Work, text: str) -> BaseException | None:
        """Tell how a work went whose end has come, or could not be waited for; an abort ends it on the device, too."""
        failure: BaseException | None
        try:
            failure = RuntimeError(text) if text else self._failure or self.outcome(work.handle)
        except Exception as error:  # noqa: BLE001 - of torch's many types
            failure = error
        if failure is not None and failure is not self._failure:
            self._fail(self._explained(failure))
        return None if failure is None else self._failure

    def _end(self) -> None:
        if self._failure is None:
            try:
                self.finalize()
            except Exception as error:  # noqa: BLE001 - of torch's and NCCL's many types
                self._fail(self._explained(error))
        if self._failure is not None:
            with self._changed:
                self._ending = True
                self._changed.notify_all()
            self._abort()
        self._forget_device()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._give_back(self._launcher.drained(ABORT_SECONDS))

    def _give_back(self, empty: bool) -> None:
        """Let others have the stream; or keep it with all that it uses, if anything is left in it.

        An abort may have failed, or the device be lost; what failed in its launch may be in the stream all the same.
        """
        free = empty and not self._remains
        if free and self._stream is not None and self._stream.drains(DRAIN_SECONDS):
            self.release()
            self._launcher.release()
            self._doubtful.clear()
            cuda.give_back(self._stream)
        elif self._stream is not None:
            immortal(self)  # destructors of the communicator's would wait in whatever thread collects it

    def _abort(self) -> None:
        try:
            self.abort_communicator()
        except Exception as error:  # noqa: BLE001 - it fails as the device or the communicator did before
            self._remains = True
            us = self._us
            logger.warning("world %r, rank %d: the abort of a communicator failed: %s", us.world, us.rank, error)

    # errors

    def _explained(self, error: BaseException) -> BaseException:
        """``error``, or the loss of the device that is behind it."""
        lost = device_failures.failure_of(self._us.device)
        if lost is not None or self._stream is None:
            return error if lost is None else lost
        code = cuda.sticky_error(self._stream.pointer)
        return device_failures.report(self._us.device, code, str(error)) if code else error

    def _refused(self, error: RuntimeError) -> BackendFailed:
        return self._us.failed(
            f"CUDA refuses the device {self._us.device}: {str(error).partition(chr(10))[0]}",
            cause="another process has it for itself (compute mode Exclusive Process), or its memory is full",
            remedy="pass another device=, or end the process that nvidia-smi shows on this one",
        )

    def _late(self, limit: float) -> BackendFailed:
        return self._us.failed(
            f"the {self.name} communicator of {self._us.size} members was not made within {limit} s",
            cause="a member is slow, or NCCL cannot connect the members: wrong interface, firewall, shared memory",
            remedy="raise join_timeout=, set NCCL_SOCKET_IFNAME, or look at what NCCL_DEBUG=INFO prints",
        )

    def _thread(self, what: str) -> str:
        return f"mw-nccl-{what}-{self._us.world}"
