"""A broadcast of a plain tensor: one call of the compiled engine, as with plain messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from multiworld.engine.engine import CompiledCollective, Engine, Outcome
from multiworld.operations.call import Call, GroupBase
from multiworld.operations.collectives import broadcast
from multiworld.operations.plain_messages import LEAST_LIMIT, is_watched
from multiworld.session.bridge import NO_LOOP, PATIENCE

if TYPE_CHECKING:
    from multiworld.matching.collective_plan import Plan
    from multiworld.matching.membership import GroupMembers


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
    if native is None or not (plain and here) or is_watched():
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
