"""A scene: a store, actors, worlds among them, and what they have to say when one of them is hit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from multiworld import BrokenWorldException, PeerLost, TcpStoreAddress, WorldState
from multiworld.chaos.cast import Actor, Cast, OverdueError, Running, VanishedError
from multiworld.chaos.injector import Fired, Injector
from multiworld.chaos.messages import Outcome
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import ANSWER_SECONDS, JOIN_SECONDS

CALM = "calm"
_numbers = itertools.count(1)


class Scene:
    """Actors of one test, the store they meet at, and the faults that hit them.

    Attributes:
        cast: where actors come from.
        injector: what makes the faults.
        backend: the row of the backend table that this run is about.
    """

    def __init__(self, cast: Cast, injector: Injector, backend: str) -> None:
        self.cast = cast
        self.injector = injector
        self.backend = backend
        self._store: TcpStoreAddress | None = None
        self._host: Actor | None = None

    @property
    def host(self) -> Actor:
        """The actor that hosts the store and does nothing else."""
        if self._host is None:
            self._host = self.actor("store-host")
            self._store = self._host.run(acts.serve)
        return self._host

    def host_at(self, network: str, address: str) -> None:
        """Host the store in a network namespace."""
        self._host = self.actor("store-host", network=network)
        self._store = self._host.run(acts.serve, address)

    def host_with(self, env: dict[str, str]) -> None:
        """Host the store in an actor with this environment."""
        self._host = self.actor("store-host", env=env)
        self._store = self._host.run(acts.serve)

    @property
    def store(self) -> TcpStoreAddress:
        """The store that serves all worlds of the scene."""
        assert self.host is not None
        assert self._store is not None
        return self._store

    def actor(self, name: str = "", **options: Any) -> Actor:
        """A fresh worker process."""
        return self.cast.actor(name or f"worker-{next(_numbers)}", **options)

    def actors(self, count: int) -> list[Actor]:
        """Fresh worker processes."""
        return [self.actor() for _ in range(count)]

    def start_join(self, name: str, actor: Actor, rank: int, size: int, **options: Any) -> Running:
        """One actor begins to join."""
        options = {"store": self.store, "backend": self.backend, "join_timeout": JOIN_SECONDS, **options}
        return actor.start(acts.join, name, rank, size, options)

    def join(self, name: str, actors: Sequence[Actor], **options: Any) -> int:
        """All ``actors`` join ``name``, in the order of their ranks; the generation, which is the same for all."""
        running = [self.start_join(name, actor, rank, len(actors), **options) for rank, actor in enumerate(actors)]
        results = [call.result(JOIN_SECONDS + 5) for call in running]
        assert [rank for rank, _ in results] == list(range(len(actors)))
        generations = {generation for _, generation in results}
        assert len(generations) == 1, f"members of one assembly are in generations {generations}"
        return generations.pop()

    def everywhere(self, actors: Sequence[Actor], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function in all ``actors`` at once; their results."""
        running = [actor.start(function, *args) for actor in actors]
        try:
            return [call.result(ANSWER_SECONDS) for call in running]
        except OverdueError as overdue:
            raise OverdueError(f"{overdue}; of the others: {[_came_of(call) for call in running]}") from None

    def works(self, name: str, actors: Sequence[Actor], rounds: int = 2) -> None:
        """Assert that the world carries messages and collectives, with the right data."""
        self.everywhere(actors, acts.ring, name, rounds)

    def broken(self, name: str, actors: Sequence[Actor]) -> list[BrokenWorldException]:
        """Assert that the world is broken for all ``actors``; the failure of each."""
        found = [actor.run(acts.standing, name) for actor in actors]
        assert [s.state for s in found] == [WorldState.BROKEN] * len(actors)
        return [s.failure for s in found]


def _came_of(call: Running) -> str:
    """What a call has come to by now, for a message."""
    try:
        outcome = call.outcome(0.1)
    except (OverdueError, VanishedError) as error:
        return type(error).__name__
    return repr(outcome.error or "done")


def lost(outcome: Outcome, world: str, rank: int | None, within: float, fired: Fired, how: set[str]) -> PeerLost:
    """Assert that a call ended with the loss of ``rank`` (None: any), noticed in one of the ways ``how``, in time."""
    error = outcome.error
    assert isinstance(error, PeerLost), f"got {error!r} and value {outcome.value!r}"
    assert error.world == world
    assert error.ranks, str(error)
    assert rank is None or error.ranks == (rank,), f"accused ranks {error.ranks}: {error}"
    assert error.how in how, f"noticed by {error.how!r}: {error}"
    delay = outcome.ended - fired.at
    assert delay <= within, f"noticed {delay:.3f} s after the fault"
    return error
