"""The worlds of a store, as the store has them: read, and never written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multiworld.errors import RendezvousError
from multiworld.rendezvous.joining import store_silent
from multiworld.rendezvous.ledger import Ledger, names_of
from multiworld.store.client import Cancelled, Deadline, StoreFailed
from multiworld.store.sources import StoreSource


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member that has claimed its rank, from ``host``, as ``process``, at ``since`` seconds since the epoch.

    It may have died: the store does not know.
    """

    rank: int
    host: str
    process: int
    since: float


@dataclass(frozen=True, slots=True)
class ListedWorld:
    """A world in its newest generation; ``complete`` is False while it is assembled. ``members`` are by rank."""

    name: str
    generation: int
    size: int
    complete: bool
    members: tuple[ListedMember, ...]


def listed(source: StoreSource, timeout: float, cancelled: Callable[[], bool]) -> tuple[ListedWorld, ...]:
    """Read the worlds of a store that were complete once, by name.

    Raises:
        RendezvousError: the store does not answer in time, or holds what multiworld did not write.
    """
    try:
        store = source.open(Deadline(time.monotonic() + timeout, cancelled))
        return tuple(sorted((_world(store, name) for name in names_of(store)), key=lambda world: world.name))
    except StoreFailed as failed:
        what = f"the store {source.where} {failed.what}"
        raise RendezvousError(what=what, cause=failed.cause, remedy=failed.remedy) from None
    except (Cancelled, OSError, RuntimeError, ValueError) as error:  # torch's own are RuntimeErrors
        if isinstance(error, RendezvousError):
            raise
        raise store_silent(source.where, None) from error


def _world(store: Any, name: str) -> ListedWorld:
    ledger = Ledger(store, name)
    generation = ledger.generation()
    size = ledger.size(generation) or 0
    claims = ((rank, ledger.holder(generation, rank)) for rank in range(size))
    members = (ListedMember(rank, claim.address, claim.pid, claim.since) for rank, claim in claims if claim is not None)
    return ListedWorld(name, generation, size, bool(ledger.members(generation)), tuple(members))
