"""Plain messages: each is one call of the compiled engine, with hardly any Python around it.

This is a way past the general one for what is most frequent and nothing special. A thread or a task sends or receives a
plain tensor, and the other side is soon there. Everything else is left to the general way, which has errors for it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import profiler

from multiworld.engine.engine import CompiledReceive, CompiledSend, Outcome
from multiworld.errors import MultiWorldError
from multiworld.matching.protocol import message_key
from multiworld.operations.call import Call, GroupBase, SyncCall
from multiworld.operations.p2p import MAX_TAG
from multiworld.process.threads import blocking
from multiworld.session.bridge import PATIENCE
from multiworld.tensors import memory_check

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine

#: shorter limits are the general way's
LEAST_LIMIT: Final = 1.0


@blocking
def exchange(group: GroupBase, name: str, tensor: torch.Tensor, rank: Any, tag: Any, timeout: Any) -> bool:
    """Send ``tensor`` to ``rank``, or receive it, and wait for that; False if it is none of the plain messages.

    Raises:
        MultiWorldError: as ``Group.send`` and ``Group.recv``.
    """
    member = group.member
    engine = member.session.engine
    native = engine.native
    peer = _plain_peer(group, rank, tag, engine.op_timeout if timeout is None else timeout)
    if native is None or peer is None or asyncio._get_running_loop() is not None or is_watched():
        return False
    number, began = [0], time.monotonic()
    try:
        done = native.exchange(number, name == "recv", peer, message_key(group.gid, tag), tensor, PATIENCE)
        if done is None:
            return False
        if done:
            engine.exchanged(name, time.monotonic() - began)
            native.take(number[0])
        else:
            _finish(group, name, engine, number, peer, tensor, timeout)
    except BaseException:
        native.withdraw(number[0])  # unless it is over
        raise
    return True


async def exchange_awaited(
    group: GroupBase, name: str, tensor: torch.Tensor, rank: Any, tag: Any, timeout: Any
) -> bool:
    """Do as ``exchange`` does, and await it."""
    member = group.member
    session, loop = member.session, asyncio._get_running_loop()
    engine, bridge = session.engine, session.bridge
    native = engine.native
    peer = _plain_peer(group, rank, tag, engine.op_timeout if timeout is None else timeout)
    if native is None or peer is None or loop is None or loop is not member.loop or is_watched():
        return False
    number, began = [0], time.monotonic()
    try:
        outcome = native.begin(number, name == "recv", peer, message_key(group.gid, tag), tensor, *bridge.turn)
        if outcome is None:
            return False
        if outcome == Outcome.PENDING:
            await bridge.ended(number[0], began)
            outcome, *_ = native.outcome(number[0])
        if outcome == Outcome.DONE:
            engine.exchanged(name, time.monotonic() - began)
            native.take(number[0])
        else:
            with Call(group, name, timeout) as call:
                await call.done(engine.adopt(_operation(engine, name, peer, tensor), number))
    except BaseException:
        native.withdraw(number[0])  # unless it is over
        raise
    return True


def _plain_peer(group: GroupBase, rank: Any, tag: Any, limit: Any) -> int | None:
    """Find the world rank of another member; None unless all these arguments are as plain as they can be."""
    if type(rank) is not int or type(tag) is not int or type(limit) not in (float, int):
        return None
    if not (0 <= rank < len(group.ranks) and 0 <= tag <= MAX_TAG and limit >= LEAST_LIMIT):
        return None
    peer = group.ranks[rank]
    return None if peer == group.member.world_rank else peer


def is_watched() -> bool:
    """Tell whether a profiler or the check of memory follows this call; compiled code asks for modes and transforms."""
    return memory_check.ACTIVE or profiler._is_profiler_enabled


def _operation(engine: Engine, name: str, peer: int, tensor: torch.Tensor) -> CompiledSend | CompiledReceive:
    if name == "send":
        return CompiledSend(engine, name, peer, None, tensor)
    return CompiledReceive(engine, name, (peer,), None, tensor)


def _finish(
    group: GroupBase,
    name: str,
    engine: Engine,
    number: list[int],
    peer: int,
    tensor: torch.Tensor,
    timeout: float | None,
) -> None:
    """Go on the general way with a message that is not done yet, or not well."""
    try:
        with SyncCall(group, name, timeout) as call:
            call.done(engine.adopt(_operation(engine, name, peer, tensor), number))
    except MultiWorldError as error:
        raise error.without_frames() from error.__cause__  # the caller's line says where
