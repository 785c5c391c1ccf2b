"""``recovering``: a training loop that goes on in the same processes after a death."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

import torch

from multiworld.errors import MultiWorldError, OpTimeout, PeerLost
from multiworld.torch.process_group import WorldProcessGroup

logger = logging.getLogger(__name__)

#: what a training loop goes on after
RECOVERED: Final = PeerLost, OpTimeout


class Attempt:
    """One attempt at one step, as a ``with`` block: what broke the world ends the block, and the step comes again."""

    def __init__(self, pg: WorldProcessGroup, step: int) -> None:
        self._pg, self._step, self._before = pg, step, pg.raised
        self.failure: MultiWorldError | None = None

    def __enter__(self) -> int:
        """Return the number of the step."""
        return self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        typed = self._pg.typed_error(error, self._before)
        if typed is None or (typed is error and not isinstance(error, RECOVERED)):
            return False
        if not isinstance(typed, RECOVERED):
            raise typed from error
        self.failure = typed.with_traceback(None)  # its frames keep what is to be made anew
        return True


def recovering(
    pg: WorldProcessGroup,
    steps: range,
    *,
    sync: Callable[[int], object],
    reset: Callable[[], object] = lambda: None,
    replace: bool = True,
    timeout: float | None = None,
) -> Iterator[Attempt]:
    """Go through ``steps`` on all members of ``pg``, and take a step again whose world broke.

        for attempt in multiworld.recovering(pg, range(steps), sync=load_from, reset=wrap):
            with attempt as step:
                train(step)

    A replacement does the same, from any step. Before the first step and after each rejoin all members call ``sync``
    and then ``reset``, and go on with the step after the last one that any member has finished.

    Args:
        pg: a world's ``process_group``, or one of ``init_process_group("multiworld")``.
        steps: numbers of the steps, which mean the same on every member.
        sync: called with the rank of the member that has finished the most: takes over its state, by collectives.
        reset: makes anew what keeps a state that a replacement has not, such as DDP's buckets. Wrap the model here and
            not before: a replacement begins with ``sync``, as the others do.
        replace: whether replacements come; without, the members that are left go on by ``shrink``.
        timeout: seconds that a rejoin or shrink may take; None is the world's ``join_timeout``.

    Raises:
        RendezvousError, StaleGeneration: a rejoin or shrink failed.
    """
    done = steps.start
    failure: MultiWorldError | None = None
    while True:
        if failure is not None:
            logger.warning("step %d comes again: %s", done, failure)
            (pg.rejoin if replace else pg.shrink)(timeout=timeout)
        try:
            with pg.typed():  # what runs in C++ loses the type of a loss
                done = _agree(pg, done, sync)
                reset()
        except RECOVERED as error:
            failure = error
            continue
        failure = None
        while done < steps.stop and failure is None:
            attempt = Attempt(pg, done)
            yield attempt
            failure = attempt.failure
            done += steps.step if failure is None else 0
        if failure is None:
            return


def _agree(pg: WorldProcessGroup, done: int, sync: Callable[[int], object]) -> int:
    """Take over the state of the member that has finished the most steps; the first step that it has not."""
    finished = [torch.zeros(1, dtype=torch.int64) for _ in range(pg.size())]
    work = pg.allgather([finished], [torch.tensor([done])])
    if work is not None:
        work.wait()
    counts = [int(one) for one in finished]
    sync(counts.index(max(counts)))
    return max(counts)
