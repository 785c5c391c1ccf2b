"""Large collectives on the CPU: what the members move to each other over the lanes, step by step.

A step is over when all its parts are there; then the plan computes, and the next step begins. Nothing is sent before
its receiver has named the place for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import torch

from multiworld.matching.collective_plan import Part, Steps

if TYPE_CHECKING:
    from multiworld.matching.membership import GroupMembers
    from multiworld.operations.reduction import Reduction

#: a reduction is done in pieces of this many bytes: one is in the cache still when it is computed on, and the lock of
#: the world is held for as long as that takes
PIECE_BYTES: Final = 2 << 20
#: pieces begin at multiples of so many elements, where vectors do
_ELEMENTS: Final = 64

#: memory of reductions that is kept for the next ones: the kernel takes longer to give new memory than a piece takes to
#: come
_rooms: Final[deque[torch.Tensor]] = deque(maxlen=4)
_MOST_KEPT_BYTES: Final = 16 << 20

#: the memory for, or of, a group rank
Memory = Callable[[int], torch.Tensor]


def others(group: GroupMembers) -> list[int]:
    """The other ranks of the group, from the next one on: not all begin with the same one."""
    return [(group.rank + step) % group.size for step in range(1, group.size)]


def exchange(group: GroupMembers, outgoing: Memory, incoming: Memory) -> list[Part]:
    """Parts to and from every other rank."""
    ranks = others(group)
    return [Part(True, rank, incoming(rank)) for rank in ranks] + [Part(False, rank, outgoing(rank)) for rank in ranks]


def collect(group: GroupMembers, outgoing: torch.Tensor, incoming: Memory, root: int) -> list[Part]:
    """Parts from every other rank to ``root``."""
    if group.rank != root:
        return [Part(False, root, outgoing)]
    return [Part(True, rank, incoming(rank)) for rank in others(group)]


def distribute(group: GroupMembers, outgoing: Memory, incoming: torch.Tensor, root: int) -> list[Part]:
    """Parts from ``root`` to every other rank."""
    if group.rank != root:
        return [Part(True, root, incoming)]
    return [Part(False, rank, outgoing(rank)) for rank in others(group)]


class Reducer:
    """Reduces pieces of what every rank has, in rank order: each piece by one rank, so all get the same bits.

    Args:
        like: a tensor of the dtype that is reduced.
        count: elements of the largest piece.
    """

    def __init__(self, group: GroupMembers, reduction: Reduction, like: torch.Tensor, count: int) -> None:
        self._group, self._reduction = group, reduction
        most = min(count, max(1, PIECE_BYTES // like.element_size()))
        self.count = -(-most // _ELEMENTS) * _ELEMENTS
        self._memory = _room(group.size * self.count * like.element_size())
        self.room = self._memory.view(like.dtype)[: group.size * self.count].view(group.size, self.count)

    def gathered(self, outgoing: Memory, like: torch.Tensor) -> list[Part]:
        """Parts that bring us what the others have of our piece, which is as long as ``like``."""
        return exchange(self._group, outgoing, lambda rank: self.room[rank, : like.numel()])

    def reduce(self, target: torch.Tensor, own: torch.Tensor) -> None:
        """Reduce what has come, and what is our ``own``, into ``target``."""
        pieces = [self.room[rank, : own.numel()] for rank in range(self._group.size)]
        pieces[self._group.rank] = own
        self._reduction.apply(target, pieces)

    def close(self) -> None:
        """Give the memory to the next ones; nothing comes any more."""
        if self._memory.nbytes <= _MOST_KEPT_BYTES:
            _rooms.append(self._memory)


def _room(nbytes: int) -> torch.Tensor:
    with suppress(IndexError):  # another thread may take the last one
        if (kept := _rooms.popleft()).nbytes >= nbytes:
            return kept
    return torch.empty(-(-nbytes // 16) * 2, dtype=torch.int64, device="cpu").view(torch.uint8)


def reduce_scatter(
    group: GroupMembers, reducer: Reducer, inputs: Sequence[torch.Tensor], target: torch.Tensor
) -> Steps:
    """Reduce ``inputs``, one for each rank, to ``target``, ours."""
    pieces = [one.split(reducer.count) for one in inputs]
    with closing(reducer):
        for place, part in enumerate(target.split(reducer.count)):
            yield reducer.gathered(lambda rank, place=place: pieces[rank][place], part)  # type: ignore[misc]
            reducer.reduce(part, pieces[group.rank][place])


def all_reduce(group: GroupMembers, reducer: Reducer, whole: torch.Tensor, root: int | None) -> Steps:
    """Reduce ``whole`` in place, at every rank or at ``root``; results go out while the next pieces come in."""
    follow: list[Part] = []
    with closing(reducer):
        for block in whole.split(reducer.count * group.size):
            pieces = _pieces(block, group.size)
            own = pieces[group.rank]
            result = own if root in (None, group.rank) else reducer.room[group.rank, : own.numel()]
            yield follow + reducer.gathered(pieces.__getitem__, own)
            reducer.reduce(result, own)
            if root is None:
                follow = exchange(group, lambda _, result=result: result, pieces.__getitem__)  # type: ignore[misc]
            else:
                follow = collect(group, result, pieces.__getitem__, root)
        yield follow


def _pieces(block: torch.Tensor, count: int) -> list[torch.Tensor]:
    """``block`` in so many pieces, of which the last ones may be shorter, or empty."""
    each = -(-block.numel() // (count * _ELEMENTS)) * _ELEMENTS
    return [block[each * place : each * (place + 1)] for place in range(count)]
