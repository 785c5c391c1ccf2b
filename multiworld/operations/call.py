"""Calls of operations: started outside of the caller's modes, then awaited, or waited for by a thread.

A call is the block in which an operation is started and waited for:

    with Call(group, "send", timeout) as call:
        await call.done(p2p.send(call.engine, group, tensor, dst, tag))

No wait returns before the caller's memory is the caller's again. On a device that is so in the order of the calling
thread's current stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from multiworld.config import is_duration
from multiworld.errors import DeviceFailed, InvalidArgument, MultiWorldError
from multiworld.matching.membership import GroupMembers
from multiworld.operations.giving_up import give_up, give_up_awaited
from multiworld.process.event_loop import check_no_loop
from multiworld.process.torch_modes import torch_modes_active, transform, without_torch_modes
from multiworld.session.member import Member
from multiworld.tensors import memory_check

if TYPE_CHECKING:
    from typing_extensions import Self

    from multiworld.matching.operation import Operation
    from multiworld.session.session import Session


class GroupBase(GroupMembers):
    """Members of a world that this process is one of."""

    member: Member


class _Call:
    """One call of one operation of a group.

    Args:
        timeout: seconds; None is the world's ``op_timeout``.
        under_way: whether the operation is, so that an interrupt leaves no half of a start.

    Raises:
        InvalidArgument: the timeout cannot be right, or a transform of ``torch.func`` surrounds the call.
        PeerLost, OpTimeout, WorldClosed: the world is broken or closed.
        WrongContext: the call comes from another process or event loop than it should.

    Attributes:
        engine: what the operation is started in.
    """

    __slots__ = ("_name", "_outside", "_session", "_started", "_timeout", "_watch", "_watched", "engine")
    _enter: Callable[[Member, str], Session]

    def __init__(self, group: GroupBase, name: str, timeout: float | None, under_way: bool = False) -> None:
        if timeout is not None and not is_duration(timeout):
            what = f"timeout is {timeout!r}"
            raise _invalid(group, name, what, "pass seconds above 0; None is the world's op_timeout")
        if transform() is not None:
            what = "called inside a transform of torch.func (vmap, grad, jvp)"
            raise _invalid(group, name, what, "call it outside")
        self._session = session = self._enter(group.member, name)
        self._name, self._timeout, self._started = name, timeout, under_way
        self._outside: contextlib.ExitStack | None = None  # of the caller's modes, until the operation is started
        self._watched: contextlib.ExitStack | None = None  # by a profiler, and by the check of memory, until the end
        self._watch: Callable[[Operation], Operation] | None = None
        self.engine = session.engine

    def __enter__(self) -> Self:
        watched = memory_check.ACTIVE or profiler._is_profiler_enabled
        if watched:
            self._be_watched()
        if watched or torch_modes_active():
            self._outside = contextlib.ExitStack()
            self._outside.enter_context(without_torch_modes())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outside is not None:
            self._outside.close()
        try:
            if isinstance(error, RuntimeError):
                self._look_for_loss(error)
            elif not (self._started or error is None or isinstance(error, Exception)):
                # A signal handler raised in the middle of the start, and how much of that is done cannot be known.
                self._session.interrupted(f"{self._name} began")
        finally:
            if self._watched is not None:
                self._watched.close()

    def _be_watched(self) -> None:
        """Enter a profiler's span that names the world and generation, and the check of memory."""
        us = self._session.membership
        span = f"multiworld::{self._name} world={us.name} generation={us.generation}"
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.profiler.record_function(span))
            self._watch = stack.enter_context(memory_check.watching())
            self._watched = stack.pop_all()

    def _look_for_loss(self, error: RuntimeError) -> None:
        """Look whether torch raised for the loss of the device, which ends every world on it.

        Raises:
            DeviceFailed: it did.
        """
        if isinstance(error, MultiWorldError):
            return
        self._session.torch_failed(error)
        if isinstance(self.engine.failure, DeviceFailed):
            raise self.engine.failure.with_context(operation=self._name) from error

    def _is_done(self, operation: Operation) -> bool:
        """Take over an operation that was started, in the caller's modes again; whether it is done already."""
        if self._outside is not None:
            self._outside.close()
            self._outside = None
        if self._watch is not None:
            self._watch(operation)
        self._started = True
        return operation.done

    def _result(self, operation: Operation) -> Any:
        """Make the result of a done operation, outside of the caller's modes; raises its error."""
        if operation.finish is None:
            return operation.result()
        with without_torch_modes():
            return operation.result()


class Call(_Call):
    """A call that is awaited in the world's event loop."""

    __slots__ = ()
    _enter = staticmethod(Member.enter_loop)

    async def done(self, operation: Operation) -> Any:
        """Await the operation and return its result; a cancelled await withdraws it."""
        if not self._is_done(operation):
            await self._wait(operation)
        return self._result(operation)

    async def _wait(self, operation: Operation) -> None:
        operation.set_deadline(self._timeout)
        session = self._session
        try:
            if session.bridge.attend(operation):
                return
            future = asyncio.get_running_loop().create_future()
            with session.lock:
                if not operation.attach(partial(session.bridge.resolve, future)):
                    return
            await future
        except BaseException as error:
            await give_up_awaited(session, operation, error)
            raise


class SyncCall(_Call):
    """A call whose thread waits, and moves the session's data meanwhile."""

    __slots__ = ()
    _enter = staticmethod(Member.enter)

    def __init__(self, group: GroupBase, name: str, timeout: float | None, under_way: bool = False) -> None:
        check_no_loop(name, group.member.name, group.member.world_rank)
        super().__init__(group, name, timeout, under_way)

    def done(self, operation: Operation) -> Any:
        """Wait for the operation and return its result; an interrupt withdraws it."""
        if not self._is_done(operation):
            try:
                self._wait(operation)
            except BaseException:
                if not operation.withdrawn:  # interrupted before the wait, or after it
                    give_up(self._session, operation)
                raise
        return self._result(operation)

    def _wait(self, operation: Operation) -> None:
        operation.set_deadline(self._timeout)
        try:
            self._session.bridge.wait(operation)
        except BaseException:
            give_up(self._session, operation)
            raise


def _invalid(group: GroupBase, operation: str, what: str, remedy: str) -> InvalidArgument:
    member = group.member
    return InvalidArgument(member.name, what, remedy=remedy, rank=member.world_rank, operation=operation)
