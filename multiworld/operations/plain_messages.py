"""Plain messages of threads that wait: each is one call of the compiled engine, with hardly any Python around it.

This is a way past the general one for what is most frequent and nothing special. A thread sends or receives a plain
tensor, and the other side is soon there. Everything else is left to the general way, which has errors for it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import profiler

from multiworld.errors import MultiWorldError
from multiworld.matching.protocol import message_key
from multiworld.operations.call import GroupBase, SyncCall
from multiworld.operations.p2p import MAX_TAG
from multiworld.process.threads import blocking
from multiworld.process.torch_modes import torch_modes_active, transform
from multiworld.tensors import memory_check

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine

#: what has not ended after this many seconds becomes an operation with a deadline, which others can see
PATIENCE: Final = 0.05
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
    if native is None or peer is None or _observed():
        return False
    number, began = [0], time.monotonic()
    try:
        done = native.exchange(number, name == "recv", peer, message_key(group.gid, tag), tensor, PATIENCE)
        if done is None:
            return False
        if done:
            engine.exchanged(name, number[0], time.monotonic() - began)
        else:
            _finish(group, name, engine, number, peer, tensor, timeout)
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


def _observed() -> bool:
    """Tell whether modes, transforms, a profiler, the check of memory or an event loop have a say in this call."""
    return bool(
        memory_check.ACTIVE
        or profiler._is_profiler_enabled
        or torch_modes_active()
        or transform() is not None
        or asyncio._get_running_loop() is not None
    )


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
            call.done(engine.adopt(name, number, peer, tensor))
    except MultiWorldError as error:
        raise error.without_frames() from error.__cause__  # the caller's line says where
