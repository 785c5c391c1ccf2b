"""A driver for tensors on a CUDA device: one communicator, its private stream, and the threads that serve it.

Two threads take turns: one of them at a time makes the communicator, launches on it and ends it; nothing else calls
NCCL. The other one waits for the ends of the operations. An abort is asked for by a flag. Where the one that launches
does not come to it, since it is inside a call that does not return, another thread aborts. What hangs even then is left
to its thread, with the memory that it uses.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from multiworld.backends import cuda, device_failures
from multiworld.backends.device_communicator import Communicator, Facts, Member, host_id, meet
from multiworld.backends.device_threads import DeviceThreads, Work
from multiworld.backends.setup_store import SetupStore
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


class DeviceDriver:
    """See ``Driver``."""

    on_device = True

    def __init__(self, communicator: Communicator, store: SetupStore, us: Member) -> None:
        self.name = communicator.name
        self._communicator, self._store, self._us = communicator, store, us
        self._device = torch.device(us.device)
        self._stream: cuda.PrivateStream | None = None
        self._changed = threading.Condition()
        self._threads = DeviceThreads(self._launch, self._outcome, self._look, self._end)
        self._doubtful: list[Work] = []
        self._failure: BaseException | None = None
        self._started = self._made = self._ending = self._ended = False
        self._remains = False  # what is launched may come into the stream still: NCCL launches in a thread of its own
        self._forget_device: Callable[[], None] = lambda: None

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

    def broadcast(self, tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        return self._start(lambda to: to.broadcast(tensor, root), tensor, after)

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        return self._start(lambda to: to.all_reduce(tensor, op), tensor, after)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, *, after: Any = None) -> Work:
        return self._start(lambda to: to.reduce(tensor, root, op), tensor, after)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, after: Any = None) -> Work:
        return self._start(lambda to: to.all_gather(outputs, tensor), (outputs, tensor), after)

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        return self._start(lambda to: to.gather(outputs, tensor, root), (outputs, tensor), after)

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, *, after: Any = None) -> Work:
        return self._start(lambda to: to.scatter(output, tensors, root), (output, tensors), after)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        return self._start(lambda to: to.reduce_scatter(output, tensor, op), (output, tensor), after)

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        after: Any = None,
    ) -> Work:
        return self._start(
            lambda to: to.all_to_all(output, tensor, output_splits, input_splits), (output, tensor), after
        )

    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._start(lambda to: to.send(tensor, peer), tensor, after)

    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._start(lambda to: to.recv(tensor, peer), tensor, after)

    def watch(self, work: Work, finished: Finished, launched: Launched | None = None) -> None:
        work.watch(finished, launched)

    def join(self, work: Work) -> None:
        """Let the calling thread's current stream wait for the end of ``work``, if that was not waited for already.

        Raises:
            DeviceFailed: the device is lost for this process.
        """
        if work.end is not None and not work.has_succeeded:
            try:
                torch.cuda.current_stream(self._device.index).wait_event(work.end)
            except RuntimeError as error:
                raise self._explained(error) from error

    def abort(self) -> None:
        """Ask for the abort of the communicator; returns at once. Remembered while it is being made."""
        self._store.stop()
        self._fail(ConnectionAbortedError("the world broke"))

    def close(self, deadline: float) -> None:
        """Free everything: in good order if nothing failed, and by an abort if that takes too long."""
        until = time.monotonic() + deadline
        self._threads.close()
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

    def _start(self, launch: Callable[[Any], Any], tensors: Any, after: Any) -> Work:
        work = Work(launch, tensors, after)
        if not self._threads.add(work):
            work.is_over(self._failure or ConnectionAbortedError("the communicator was closed"))
        return work

    def _fail(self, failure: BaseException) -> None:
        """Launch nothing any more, and have the launching thread abort. The first failure counts. Blocks on nothing."""
        with self._changed:
            if self._failure is not None or self._ended:
                return
            self._failure = failure
            started = self._started
            self._changed.notify_all()
        queued = self._threads.stop()
        if started:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts none: the process frees it
                threading.Thread(target=self._see_it_end, name=self._thread("abort"), daemon=True).start()
        for work in queued:
            self._over(work, failure)

    def _over(self, work: Work, failure: BaseException) -> None:
        """A work that was never launched, or whose launch failed."""
        work.is_over(failure)
        work.release()

    def _see_it_end(self) -> None:
        """After a failure: let go of what waits, and abort from here if the one that launches does not come to it."""
        if not self._within(RESCUE_SECONDS, lambda: self._ending):
            rescue = threading.Thread(target=self._abort, name=self._thread("rescue"), daemon=True)
            with contextlib.suppress(RuntimeError):
                rescue.start()
        until = time.monotonic() + LET_GO_SECONDS - RESCUE_SECONDS
        ended = self._within(until - time.monotonic(), lambda: self._ended)
        if ended and self._threads.is_empty(max(0.0, until - time.monotonic())):
            return
        launching = self._threads.launching
        for work in (*self._threads.left, *([] if launching is None else [launching])):  # our threads keep the memory
            work.is_over(self._failure)
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
        self._threads.work()

    def _assist(self) -> None:
        try:
            if self._stream is not None:
                torch.cuda.set_device(self._device)
                torch.cuda.set_stream(self._stream.torch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the device is lost
            self._fail(self._explained(error))
        self._threads.work()

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
        ours = Facts(us.rank, self.name, self._communicator.version(), host_id(), bus)
        try:
            meet(self._store, us, ours)
            self._communicator.connect(self._store, self._stream.pointer, self._has_failed)
        except TimeoutError as error:
            raise self._late(self._store.timeout_seconds) from error
        with self._changed:
            self._made = self._failure is None
            self._changed.notify_all()

    def _has_failed(self) -> bool:
        return self._failure is not None

    def _look(self) -> None:
        try:
            failure = self._communicator.failure()
            oldest = next((work.handle for work in self._threads.left), None)
            if failure is None and oldest is not None:
                # Its end may never come: torch's watchdog can fail, or hang, in the abort that would end it.
                failure = self._communicator.outcome(oldest)
        except Exception as error:  # noqa: BLE001 - of torch's and NCCL's many types
            failure = error
        if failure is not None:
            self._fail(self._explained(failure))

    def _launch(self, work: Work) -> bool:
        """Put ``work`` into the stream; NCCL may connect to peers first, and wait for them in that."""
        stream, launch = self._stream, work.launch
        if stream is None or launch is None:
            return False
        try:
            if work.after is not None:
                stream.torch.wait_event(work.after)
            work.handle = launch(self._communicator)
            end = torch.cuda.Event(blocking=True)
            end.record(stream.torch)
        except DriverRefused as refused:
            self._over(work, refused)
            return False
        except Exception as error:  # noqa: BLE001 - of torch's and NCCL's many types: the launch failed
            failure = self._explained(error)
            self._doubtful.append(work)  # part of it may have been launched: its memory is kept until the abort
            self._fail(failure)
            work.is_over(self._failure)
            return False
        work.end = end
        work.was_launched()
        return True

    def _end(self) -> None:
        if self._failure is None:
            try:
                self._communicator.finalize(self._has_failed)
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
        self._give_back(self._threads.is_empty(ABORT_SECONDS))

    def _give_back(self, empty: bool) -> None:
        """Let others have the stream; or keep it with all that it uses, if anything is left in it.

        An abort may have failed, or the device be lost; what failed in its launch may be in the stream all the same.
        """
        free = empty and not self._remains
        if free and self._stream is not None and self._stream.drains(DRAIN_SECONDS):
            self._communicator.release()
            self._doubtful.clear()
            cuda.give_back(self._stream)
        elif self._stream is not None:
            immortal(self._communicator)  # its destructor would wait in whatever thread collects it
            immortal(self._doubtful)

    def _abort(self) -> None:
        try:
            self._communicator.abort()
        except Exception as error:  # noqa: BLE001 - it fails as the device or the communicator did before
            self._remains = True
            us = self._us
            logger.warning("world %r, rank %d: the abort of a communicator failed: %s", us.world, us.rank, error)

    def _outcome(self, work: Work) -> BaseException | None:
        """Wait for the end of ``work``; an abort ends it on the device, too."""
        try:
            work.end.synchronize()
            failure = self._failure or self._communicator.outcome(work.handle)
        except Exception as error:  # noqa: BLE001 - of torch's many types
            failure = error
        if failure is not None and failure is not self._failure:
            self._fail(self._explained(failure))
        return None if failure is None else self._failure

    # errors

    def _explained(self, error: BaseException) -> BaseException:
        """``error``, or the loss of the device that is behind it."""
        lost = device_failures.failure_of(self._us.device)
        if lost is not None or self._stream is None:
            return error if lost is None else lost
        code = self._stream.sticky_error()
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
