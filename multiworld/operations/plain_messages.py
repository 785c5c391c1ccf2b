"""Plain messages and broadcasts: each is one call of the compiled engine, with hardly any Python around it.

This is a way past the general one for what is most frequent and nothing special. A thread or a task sends or receives a
plain tensor, and the other side is soon there. Everything else is left to the general way, which has errors for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.autograd import profiler

from multiworld.engine.engine import CompiledCollective, CompiledReceive, CompiledSend, Engine, Outcome
from multiworld.errors import MultiWorldError
from multiworld.matching.device import DeviceEnd, Moment
from multiworld.matching.protocol import CODES, Mode, message_key
from multiworld.operations.call import Call, GroupBase, SyncCall
from multiworld.operations.collectives import broadcast
from multiworld.operations.giving_up import give_up, give_up_awaited
from multiworld.operations.p2p import MAX_TAG
from multiworld.process.threads import blocking
from multiworld.process.torch_modes import without_torch_modes
from multiworld.session.bridge import NO_LOOP, PATIENCE
from multiworld.tensors import memory_check
from multiworld.tensors.on_device import received
from multiworld.tensors.staging import writable

if TYPE_CHECKING:
    from multiworld.matching.collective_plan import Plan
    from multiworld.matching.membership import GroupMembers

#: shorter limits are the general way's
LEAST_LIMIT: Final = 1.0
#: of a message on the device: its event, whether its caller goes on with the stream, where it is held, and what makes
#: its operation
_Device = tuple[int, bool, dict[int, Any], Callable[[], Any]]


@blocking
def exchange(
    group: GroupBase, name: str, tensor: torch.Tensor, rank: Any, tag: Any, timeout: Any, stream: bool
) -> bool:
    """Send ``tensor`` to ``rank``, or receive it, and wait for that; False if it is none of the plain messages.

    Raises:
        MultiWorldError: as ``Group.send`` and ``Group.recv``.
    """
    session = group.member.session
    engine = session.engine
    native = engine.native
    peer = _plain_peer(group, rank, tag, engine.op_timeout if timeout is None else timeout)
    if native is None or peer is None or asyncio._get_running_loop() is not None or _is_watched():
        return False
    message = _Message(group, name, peer, tensor, stream)
    if (device := message.on_device()) is False:
        return False
    number, began = [0], time.monotonic()
    try:
        key = message_key(group.gid, tag)
        outcome = native.exchange(number, name == "recv", peer, key, tensor, device, PATIENCE)
        if outcome is None:
            return False
        if message.is_over(native, outcome, number):
            engine.exchanged(name, time.monotonic() - began)
        else:
            message.finish(number, timeout)
    except BaseException:
        if (operation := message.not_given_up(number)) is not None:
            give_up(session, operation)
        raise
    return True


async def exchange_awaited(
    group: GroupBase, name: str, tensor: torch.Tensor, rank: Any, tag: Any, timeout: Any, stream: bool
) -> bool:
    """Do as ``exchange`` does, and await it."""
    member = group.member
    session, loop = member.session, asyncio._get_running_loop()
    engine, bridge = session.engine, session.bridge
    native = engine.native
    peer = _plain_peer(group, rank, tag, engine.op_timeout if timeout is None else timeout)
    if native is None or peer is None or loop is None or loop is not member.loop or _is_watched():
        return False
    message = _Message(group, name, peer, tensor, stream)
    if (device := message.on_device()) is False:
        return False
    number, began = [0], time.monotonic()
    try:
        key = message_key(group.gid, tag)
        outcome = native.begin(number, name == "recv", peer, key, tensor, device, *bridge.turn)
        if outcome is None:
            return False
        if outcome == Outcome.PENDING:
            await bridge.ended(number[0], began)
            outcome, *_ = native.outcome(number[0])
        if message.is_over(native, outcome, number):
            engine.exchanged(name, time.monotonic() - began)
        else:
            with Call(group, name, timeout, under_way=True) as call:
                await call.done(engine.adopt(message.operation, number))
    except BaseException as error:
        if (operation := message.not_given_up(number)) is not None:
            await give_up_awaited(session, operation, error)
        raise
    return True


class _Message:
    """A message without an operation, as long as it needs none."""

    __slots__ = ("_engine", "_group", "_left", "_moment", "_name", "_operation", "_peer", "_stream", "_tensor")

    def __init__(self, group: GroupBase, name: str, peer: int, tensor: torch.Tensor, stream: bool) -> None:
        self._group, self._name, self._peer, self._tensor, self._stream = group, name, peer, tensor, stream
        self._engine, self._left = group.member.session.engine, False
        self._moment: Moment | None = None
        self._operation: CompiledSend | CompiledReceive | None = None

    def on_device(self) -> _Device | Literal[False] | None:
        """Return what compiled code has to know of one on the device; None of others, False if it cannot launch it."""
        engine = self._engine
        device = engine.device
        if device is None or not getattr(self._tensor, "is_cuda", False):
            return None
        alone = (self._peer, self._name == "recv") in engine.launches_alone
        if not alone or self._tensor.device != self._group.member.torch_device:
            return False
        try:
            if device.capturing():
                return False
            self._moment = device.now()
        except RuntimeError:  # of the device; the general way tells more of it
            return False
        return self._moment.address, self._stream, engine.held, self.operation

    def is_over(self, native: Any, outcome: int, number: list[int]) -> bool:
        """Tell whether its caller can go on, and let go of it; False if it has an operation, or needs one."""
        if outcome == Outcome.ENQUEUED:
            return self._leaves(native, number[0])
        over = outcome == Outcome.DONE
        if over and self._moment is not None:
            over = self._engine.held.pop(number[0], None) is not None
        if over:
            native.take(number[0])
        return over

    def _leaves(self, native: Any, number: int) -> bool:
        """Let the caller go on with the stream."""
        engine = self._engine
        if engine.device is None or not native.join(number, engine.device.stream().cuda_stream):
            return False
        with engine.lock:
            if number not in engine.held:
                return False
            self._left = True
            if native.leave(number):
                del engine.held[number]
                native.take(number)
        return True

    def operation(self) -> CompiledSend | CompiledReceive:
        """Make its operation, once."""
        if self._operation is None:
            with without_torch_modes():
                self._operation = self._made()
            self._operation.done = self._left
        return self._operation

    def _made(self) -> CompiledSend | CompiledReceive:
        engine, tensor, signature, end = self._engine, self._tensor, None, None
        if engine.device is not None and self._moment is not None:
            signature = Mode.DEVICE, CODES[tensor.dtype], tensor.nbytes
            memory = writable(tensor).reshape(-1).view(torch.uint8)
            end = DeviceEnd(engine.device, self._moment, memory, self._stream)
        if self._name == "send":
            return CompiledSend(engine, self._name, self._peer, signature, tensor, end=end)
        receive = CompiledReceive(engine, self._name, (self._peer,), signature, tensor, end=end)
        if end is not None and not self._left:
            receive.finish = received(self._group, tensor, receive)
        return receive

    def finish(self, number: list[int], timeout: float | None) -> None:
        """Go on the general way, in this thread, with what is not done yet, or not well."""
        try:
            with SyncCall(self._group, self._name, timeout, under_way=True) as call:
                call.done(call.engine.adopt(self.operation, number))
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where

    def not_given_up(self, number: list[int]) -> CompiledSend | CompiledReceive | None:
        """Return the operation of one that was started, unless that was given up."""
        if not number[0] and self._operation is None:
            return None
        operation = self._engine.adopt(self.operation, number)
        return None if operation.withdrawn else operation


async def broadcast_plain(
    group: GroupBase, call: Callable[..., Any], tensor: torch.Tensor, src: Any, timeout: Any
) -> bool:
    """Broadcast and wait for that, as ``call`` does; False if it is nothing plain, or too long for one frame.

    Raises:
        MultiWorldError: as ``Group.broadcast``.
    """
    member, ranks = group.member, group.ranks
    session, loop = member.session, asyncio._get_running_loop()
    engine, bridge = session.engine, session.bridge
    native, limit = engine.native, engine.op_timeout if timeout is None else timeout
    plain = type(src) is int and 0 <= src < len(ranks) and type(limit) in (float, int) and limit >= LEAST_LIMIT
    awaits = call is Call  # else this thread waits
    here = loop is not None and loop is member.loop if awaits else loop is None
    if native is None or not (plain and here) or _is_watched():
        return False
    number, began = [0], time.monotonic()
    try:
        us = group.rank
        turn = bridge.turn if awaits else NO_LOOP
        outcome = native.broadcast(number, group.gid, ranks, group.digest, src, us, tensor, *turn)
        if outcome is None:
            return False
        if outcome == Outcome.PENDING:
            if awaits:
                await bridge.ended(number[0], began)
            else:
                native.wait(number[0], PATIENCE)
            outcome = native.broadcasted(number[0], ranks[src], tensor, us != src)
        if outcome == Outcome.DONE:
            engine.exchanged("broadcast", time.monotonic() - began)
            native.take(number[0])
        else:
            with call(group, "broadcast", timeout, under_way=True) as general:
                await general.done(broadcast(_Adopting(engine, number), group, tensor, src))  # type: ignore[arg-type]
    except BaseException:
        if number[0]:
            session.cancelled("broadcast")
            native.withdraw(number[0])
        raise
    return True


class _Adopting:
    """An engine in which the collective is under way already that it is asked to start."""

    def __init__(self, engine: Engine, number: list[int]) -> None:
        self.device, self._engine, self._number = engine.device, engine, number

    def collective(self, group: GroupMembers, plan: Plan) -> CompiledCollective:
        return self._engine.adopt(lambda: CompiledCollective(self._engine, group, plan), self._number)


def _plain_peer(group: GroupBase, rank: Any, tag: Any, limit: Any) -> int | None:
    """Find the world rank of another member; None unless all these arguments are as plain as they can be."""
    if type(rank) is not int or type(tag) is not int or type(limit) not in (float, int):
        return None
    if not (0 <= rank < len(group.ranks) and 0 <= tag <= MAX_TAG and limit >= LEAST_LIMIT):
        return None
    peer = group.ranks[rank]
    return None if peer == group.member.world_rank else peer


def _is_watched() -> bool:
    """Tell whether a profiler or the check of memory follows this call; compiled code asks for modes and transforms."""
    return memory_check.ACTIVE or profiler._is_profiler_enabled
