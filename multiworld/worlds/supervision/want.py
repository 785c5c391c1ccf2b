"""What a program wants of its worlds, as frozen data."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from multiworld.config import DEFAULT_JOIN_TIMEOUT, Heartbeat, WorldConfig, is_duration, whole_number
from multiworld.errors import InvalidArgument, told_of
from multiworld.rendezvous.join_arguments import Defaults, checked_config
from multiworld.store.sources import StoreLike, parsed

#: what becomes of a world that lost a member: it waits for the replacement, or goes on without it
OnLoss: TypeAlias = Literal["rejoin", "shrink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One world that is to be kept; what is not named here is an argument of ``MultiWorld.join``.

    Args:
        min_size: fewest members that a world goes on with that shrinks; None: one. A world that rejoins needs all.
        on_loss: ``"rejoin"`` waits for the replacement of a lost member; ``"shrink"`` goes on without it, and waits
            only where fewer than ``min_size`` are left. A replacement comes in as a newcomer, when all members call
            ``World.grow``.
    """

    store: StoreLike = "env://"
    rank: int | None = None
    size: int | None = None
    min_size: int | None = None
    on_loss: OnLoss = "rejoin"
    backend: str = "gloo"
    device: torch.device | str | None = None
    op_timeout: float | None = None
    join_timeout: float = DEFAULT_JOIN_TIMEOUT
    heartbeat: Heartbeat | None = None

    def config(self, name: str, defaults: Defaults) -> WorldConfig:
        """Check all fields; raises as ``MultiWorld.join``."""
        times = self.op_timeout, self.join_timeout, self.heartbeat
        config = checked_config(defaults, name, self.rank, self.size, self.backend, self.device, None, *times)
        with told_of(name, config.rank, "maintain"):
            parsed(self.store)
            if self.on_loss not in get_args(OnLoss):
                known = " or ".join(map(repr, get_args(OnLoss)))
                raise InvalidArgument(what=f"on_loss is {self.on_loss!r}", remedy=f"pass {known}")
            self._check_min_size(config.size)
        return config

    def _check_min_size(self, size: int) -> None:
        least, what = whole_number(self.min_size), f"min_size is {self.min_size!r}, and size {size}"
        if self.min_size is None:
            return
        if self.on_loss == "shrink" and not 1 <= (least or 0) <= size:
            raise InvalidArgument(what=what, remedy=f"pass a number of members, 1 to {size}")
        if self.on_loss == "rejoin" and least != size:
            cause = "a world that rejoins goes on when all of its members are there"
            remedy = "leave min_size out, or pass on_loss='shrink'"
            raise InvalidArgument(what=what, cause=cause, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The patience of a supervisor with a world that fails. Times in seconds.

    The pause before the attempt ``n`` is drawn between 0 and ``first * 2**n``, so that the members of a world do not
    all come at the same time.

    Args:
        longest: upper limit of a pause.
        failures: breaks and failed attempts ``within`` that time after which a world is given up. An attempt that waits
            for a missing member takes ``join_timeout``: with the defaults, such a world is never given up.
    """

    first: float = 0.1
    longest: float = 10.0
    failures: int = 20
    within: float = 300.0

    def __post_init__(self) -> None:
        seconds = all(map(is_duration, (self.first, self.longest, self.within)))
        if not seconds or (whole_number(self.failures) or 0) < 1:
            remedy = "pass seconds above 0, and a whole number of failures above 0"
            raise InvalidArgument(what=f"{self!r} is not valid", remedy=remedy)

    def pause(self, attempt: int) -> float:
        """Draw the seconds to wait before the attempt of this number, from 0."""
        return random.uniform(0.0, min(self.longest, self.first * 2.0 ** min(attempt, 60)))  # noqa: S311 - no secret
