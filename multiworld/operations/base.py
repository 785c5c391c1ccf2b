"""How an operation is run for a group: started under the session, then awaited or waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch

from multiworld.config import is_duration
from multiworld.errors import DeviceFailed, InvalidArgument, MultiWorldError
from multiworld.matching.membership import GroupMembers, WorldFacts
from multiworld.operations.waiting import OperationHost, wait_async, wait_sync
from multiworld.process.event_loop import check_no_loop
from multiworld.process.threads import blocking
from multiworld.process.torch_modes import torch_modes_active, transform, without_torch_modes
from multiworld.tensors import memory_check

if TYPE_CHECKING:
    from multiworld.matching.engine import Engine
    from multiworld.matching.operation import Operation

Starter = Callable[..., "Operation"]


class GroupWorld(WorldFacts, Protocol):
    """The world of a group, as its operations enter it."""

    def _enter_async(self, operation: str) -> OperationHost:
        """The session for an operation of the running loop; raises a typed error if there is none."""

    def _enter_sync(self, operation: str) -> OperationHost:
        """The session for an operation of the calling thread; raises a typed error if there is none."""


def _check(group: GroupBase, timeout: float | None, starter: Starter) -> None:
    if timeout is not None and not is_duration(timeout):
        raise _invalid(
            group, starter, f"timeout is {timeout!r}", "pass seconds above 0; None is the world's op_timeout"
        )
    if transform() is not None:
        raise _invalid(group, starter, "called inside a transform of torch.func (vmap, grad, jvp)", "call it outside")


def _invalid(group: GroupBase, starter: Starter, what: str, remedy: str) -> InvalidArgument:
    world = group._world
    return InvalidArgument(world.name, what, remedy=remedy, rank=world.world_rank, operation=starter.__name__)


def _begin(engine: Engine, group: GroupBase, starter: Starter, *args: Any) -> Operation:
    """Start an operation, outside of the caller's modes."""
    with without_torch_modes():
        return starter(engine, group, *args)


def _look_after(session: OperationHost, starter: Starter, error: BaseException) -> None:
    """A start has raised. If that was an interrupt, the world ends: nobody knows how much of the start was done.

    Raises:
        DeviceFailed: the error is the loss of the world's device.
    """
    if not isinstance(error, Exception):
        session.interrupted(f"{starter.__name__} began")
    elif isinstance(error, RuntimeError):
        _look_for_loss(session, starter, error)


def _look_for_loss(session: OperationHost, starter: Starter, error: RuntimeError) -> None:
    """What torch raises in the caller's thread may be the loss of the device, which ends every world on it.

    Raises:
        DeviceFailed: it is.
    """
    if isinstance(error, MultiWorldError):
        return
    session.torch_failed(error)
    if isinstance(session.engine.failure, DeviceFailed):
        raise session.engine.failure.with_context(operation=starter.__name__) from error


def _profiled() -> bool:
    return bool(torch.autograd.profiler._is_profiler_enabled)


@contextlib.contextmanager
def _watched(session: OperationHost, group: GroupBase, starter: Starter, *args: Any) -> Iterator[Operation]:
    """Start an operation inside a profiler's span that names the world and generation, its memory watched."""
    us = session.membership
    span = torch.profiler.record_function(f"multiworld::{starter.__name__} world={us.name} generation={us.generation}")
    with span, memory_check.watching() as watch:
        try:
            operation = watch(_begin(session.engine, group, starter, *args))
        except BaseException as error:
            _look_after(session, starter, error)
            raise
        try:
            yield operation
        except RuntimeError as error:
            _look_for_loss(session, starter, error)
            raise


def _outcome(operation: Operation) -> Any:
    """The result of a done operation, made outside of the caller's modes; raises its error."""
    with without_torch_modes():
        return operation.result()


class GroupBase(GroupMembers):
    """Members of a world, and the way to run operations among them."""

    _world: GroupWorld

    async def _run(self, timeout: float | None, starter: Starter, *args: Any) -> Any:
        _check(self, timeout, starter)
        session = self._world._enter_async(starter.__name__)
        if memory_check.ACTIVE or _profiled():
            with _watched(session, self, starter, *args) as operation:
                if not operation.done:
                    await wait_async(session, operation, timeout)
                return _outcome(operation)
        engine = session.engine
        try:
            operation = _begin(engine, self, starter, *args) if torch_modes_active() else starter(engine, self, *args)
        except BaseException as error:
            _look_after(session, starter, error)
            raise
        if not operation.done:
            await wait_async(session, operation, timeout)
        try:
            return _outcome(operation) if torch_modes_active() else operation.result()
        except RuntimeError as error:
            _look_for_loss(session, starter, error)
            raise


class SyncBase:
    """The same for a thread that waits itself."""

    _group: GroupBase

    def __init__(self, group: GroupBase) -> None:
        self._group = group

    @blocking
    def _run(self, timeout: float | None, starter: Starter, *args: Any) -> Any:
        group = self._group
        check_no_loop(starter.__name__, group._world.name, group._world.world_rank)
        _check(group, timeout, starter)
        session = group._world._enter_sync(starter.__name__)
        if memory_check.ACTIVE or _profiled():
            with _watched(session, group, starter, *args) as operation:
                if not operation.done:
                    wait_sync(session, operation, timeout)
                return _outcome(operation)
        engine, amid = session.engine, torch_modes_active()
        try:
            operation = _begin(engine, group, starter, *args) if amid else starter(engine, group, *args)
        except BaseException as error:
            _look_after(session, starter, error)
            raise
        if not operation.done:
            wait_sync(session, operation, timeout)
        try:
            return _outcome(operation) if amid else operation.result()
        except RuntimeError as error:
            _look_for_loss(session, starter, error)
            raise
