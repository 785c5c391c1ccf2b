"""The entries of a world in the store: its generation, the claims of ranks, whether it is complete.

One store may serve many worlds: all keys are under the world's name, those of one assembly under its generation. A
generation has the size that its first member names, with a claim of each rank. Or it goes by a roster, see ``roster``:
then each candidate claims its identity, and the roster says who is in.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from multiworld.errors import RendezvousError
from multiworld.liveness.neighbour import ProcessId
from multiworld.store.agreed_keys import NUMBER, READ, keys_of
from multiworld.transport.greeting import PROTOCOL


class Claim(NamedTuple):
    """A rank taken by one incarnation of a process, and how to reach it. ``incarnation`` is a random number, new for
    every attempt to join; ``protocol`` is 1 where a claim has none; ``local`` names a listener for lanes of processes
    on the same host, if there is one; ``identity`` is that of the member in all generations; ``since`` is when it was
    made, in seconds since the epoch; ``kept`` are connections of the last generation, see ``renewal.Kept``."""

    incarnation: str
    address: str
    port: int
    machine: str
    pid: int
    started: int
    backend: str
    protocol: int = PROTOCOL
    local: str = ""
    identity: str = ""
    since: float = 0.0
    kept: str = ""

    def packed(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.machine, self.pid, self.started)

    @classmethod
    def unpacked(cls, value: str) -> Claim:
        """From the value of a key. Raises ``RendezvousError`` for a value that is not a claim."""
        with _ours():
            return _claim(json.loads(value))


_KINDS = [*map(type, Claim("", "", 0, "", 0, 0, "", 0))]
Rank = TypeVar("Rank", int, str)
#: the size of a generation whose members its roster names
BY_ROSTER: Final = 0
#: what the names of all worlds of a store are under; no world's keys begin with it
_NAMES: Final = "multiworld-names"


def _packed(claims: Iterable[Claim]) -> str:
    return json.dumps([claim._asdict() for claim in claims], sort_keys=True)


@functools.lru_cache(maxsize=4)  # all members of a process read the same roster
def _claims(value: str) -> tuple[Claim, ...]:
    with _ours():
        return tuple(map(_claim, json.loads(value)))


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise RendezvousError(
            what="the store holds a claim that multiworld did not write",
            cause="another program writes to this store under the same keys",
            remedy="use a store, or a name for the world, that no other program uses",
        ) from None


def _claim(fields: dict[str, Any]) -> Claim:
    """Other versions have other fields: a missing one is empty, a new one is left out."""
    values: list[Any] = [*map(fields.get, Claim._fields)]
    if [*map(type, values)] != _KINDS:
        values = [*map({"protocol": 1, **fields}.get, Claim._fields)]
        values = [value if type(value) is kind else kind() for value, kind in zip(values, _KINDS, strict=True)]
    return Claim._make(values)


#: of a generation: the roster, the newcomers that were invited before it, and the size, as far as they are there
Opened: TypeAlias = "tuple[Sequence[Claim], Sequence[Claim] | None, int | None]"


def _names_of_opened(generation: int, after: int) -> tuple[str, str, str]:
    return f"{generation}/roster", f"{after}/guests", f"{generation}/size"


def _opened(roster: str | None, guests: str | None, size: str | None) -> Opened:
    invited = None if guests is None else _claims(guests)
    return _claims(roster or "[]"), invited, None if size is None else int(size)


def names_of(store: Any) -> Iterator[str]:
    """The names of the worlds that were complete once, in the order of that."""
    keys = keys_of(store, _NAMES)
    for place in itertools.count():
        name = keys.read(str(place))
        if name is None:
            return
        yield name


class Ledger:
    """The keys of one world in one store. For one thread, with a client of its own."""

    def __init__(self, store: Any, world: str) -> None:
        self._store, self._keys, self._world = store, keys_of(store, f"multiworld/{world}"), world

    def generation(self) -> int:
        """The newest generation; 0 before the first."""
        return self._keys.number("generation")

    def advance(self, current: int, to: int | None = None) -> int:
        """Open a generation after ``current`` unless another process has; the newest one."""
        return self._keys.raise_from("generation", current, current + 1 if to is None else to)

    def claim(self, generation: int, rank: int | str, claim: Claim) -> Claim:
        """Take ``rank``, or an identity; the claim that holds it now, ours or an earlier one."""
        return Claim.unpacked(self._keys.put_first(f"{generation}/rank/{rank}", claim.packed()))

    def claimed(self, generation: int, rank: Rank) -> Claim | None:
        return self.claims(generation, (rank,)).get(rank)

    def claims(self, generation: int, ranks: Iterable[Rank]) -> dict[Rank, Claim]:
        """The claims of those ``ranks`` that are taken."""
        names = {f"{generation}/rank/{rank}": rank for rank in ranks}
        values = self._keys.exchange(dict.fromkeys(names, READ))
        return {rank: Claim.unpacked(value) for rank, value in zip(names.values(), values, strict=True) if value}

    def holder(self, generation: int, rank: int) -> Claim | None:
        """The claim of ``rank``, in a generation of either kind."""
        roster = self.roster(generation)
        if roster is None:
            return self.claimed(generation, rank)
        return roster[rank] if rank < len(roster) else None

    def open(self, after: int) -> tuple[int, Opened]:
        """Open the generation after ``after`` unless another process has; the newest one, and what is there of it."""
        names = _names_of_opened(after + 1, after)
        newest, *values = self._keys.exchange({"generation": (after, after + 1), **dict.fromkeys(names, READ)})
        return int(newest or 0), _opened(*values)

    def opened(self, generation: int, after: int) -> Opened:
        """What is there of a generation that ``after`` is before."""
        return _opened(*self._keys.exchange(dict.fromkeys(_names_of_opened(generation, after), READ)))

    def close_roster(self, generation: int, members: Sequence[Claim]) -> tuple[Sequence[Claim], int]:
        """Say who is in, by rank, unless another process has: what counts, and the newest generation then. Nobody means
        that it was given up."""
        return self._roster_and_newest(generation, _packed(members))

    def look(self, generation: int) -> tuple[Sequence[Claim] | None, int]:
        """The roster, None if it is open, and the newest generation then."""
        return self._roster_and_newest(generation, READ)

    def _roster_and_newest(self, generation: int, wanted: str | None) -> tuple[Any, int]:
        roster, newest = self._keys.exchange({f"{generation}/roster": wanted, "generation": NUMBER})
        return None if roster is None else _claims(roster), int(newest or 0)

    def await_roster(self, generation: int, seconds: float) -> bool:
        """Wait until the roster is closed, for ``seconds`` at most; False at once where the store cannot tell."""
        return self._keys.wait([f"{generation}/roster"], seconds)

    def await_claims(self, generation: int, identities: Iterable[str], seconds: float) -> bool:
        """Wait until all have claimed their identity, as ``await_roster``."""
        return self._keys.wait((f"{generation}/rank/{identity}" for identity in identities), seconds)

    def roster(self, generation: int) -> Sequence[Claim] | None:
        """The roster; None if it is open, or there is none."""
        value = self._keys.read(f"{generation}/roster")
        return None if value is None else _claims(value)

    def members(self, generation: int) -> Sequence[Claim]:
        """The members of a generation of either kind, by rank; nobody if they have not met."""
        roster = self.roster(generation)
        if roster is not None or not self.sealed(generation):
            return roster or ()
        return list(self.claims(generation, range(self.size(generation) or 0)).values())

    def invite(self, generation: int, guests: Sequence[Claim]) -> Sequence[Claim]:
        """Say which newcomers the generation after this one takes in, unless another process has: what counts."""
        return _claims(self._keys.put_first(f"{generation}/guests", _packed(guests)))

    def guests(self, generation: int) -> Sequence[Claim]:
        """The newcomers that were invited."""
        value = self._keys.read(f"{generation}/guests")
        return _claims(value) if value else ()

    def agree_size(self, generation: int, size: int) -> int:
        """The size of this generation: ours if we are the first to say."""
        return int(self._keys.put_first(f"{generation}/size", str(size)))

    def size(self, generation: int) -> int | None:
        """The size, once it is known."""
        value = self._keys.read(f"{generation}/size")
        if not value:
            return None
        return int(value) or len(self.roster(generation) or ()) or None

    def seal(self, generation: int) -> None:
        """All members have met: none can be added."""
        self._keys.put_first(f"{generation}/sealed", "yes")

    def sealed(self, generation: int) -> bool:
        return self._keys.read(f"{generation}/sealed") is not None

    def enroll(self) -> None:
        """Write the world's name where ``names_of`` finds it, unless that was done."""
        if self._keys.read("enrolled") is not None:
            return
        names = keys_of(self._store, _NAMES)
        place = begin = names.number("count")  # most likely the first that is free
        while names.put_first(str(place), self._world) != self._world:
            place += 1
        names.raise_from("count", begin, place + 1)
        self._keys.put_first("enrolled", "yes")

    def forget(self, generation: int, ranks: Iterable[int | str], whole: bool) -> None:
        """Delete the claims of ``ranks`` of an old generation, and what is common to them if ``whole``."""
        common = ("size", "sealed", "roster", "guests") if whole else ()
        self._keys.delete(*(f"{generation}/{name}" for name in (*(f"rank/{rank}" for rank in ranks), *common)))
        if whole:
            self._keys.forget_raise("generation", generation - 1)
