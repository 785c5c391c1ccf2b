"""The peers that a member watches: the next few in the order of ranks."""

from __future__ import annotations

from collections.abc import Collection

#: how many successors a member watches; worlds of one more than that are watched by everybody
SUCCESSORS = 3


def watched_by(rank: int, size: int, departed: Collection[int], leaving: Collection[int]) -> tuple[int, ...]:
    """The ranks that ``rank`` watches.

    Args:
        departed: ranks that have left; they are skipped.
        leaving: ranks that have said that they leave. They are watched as long as their last data is awaited, and do
            not count: the ranks behind them must not be left alone.
    """
    chosen: list[int] = []
    lasting = 0
    for step in range(1, size):
        peer = (rank + step) % size
        if peer in departed:
            continue
        chosen.append(peer)
        lasting += peer not in leaving
        if lasting == SUCCESSORS:
            break
    return tuple(chosen)
