"""What the store says of a world: its generation, who claimed which rank, whether it is complete.

One store may serve many worlds: all keys are under the world's name, those of one assembly under its generation.
Nothing here blocks: a value is read with a compare-and-set that cannot succeed, because ``get`` of a missing key
would wait.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from multiworld.liveness.neighbour import ProcessId

_NEVER = "\x01never\x01"


@dataclass(frozen=True, slots=True)
class Claim:
    """A rank taken by one incarnation of a process, and how to reach it.

    Attributes:
        incarnation: random number, new for every attempt to join.
        address: where its listener and its pulse are.
        port: of the listener.
        pulse: port of the pulse.
        machine: see ``ProcessId``.
        pid: process number.
        started: see ``ProcessId``.
        backend: what it means to use.
    """

    incarnation: str
    address: str
    port: int
    pulse: int
    machine: str
    pid: int
    started: int
    backend: str

    def packed(self) -> str:
        """As the value of a key."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def process(self) -> ProcessId:
        """The process that claimed."""
        return ProcessId(self.machine, self.pid, self.started)

    @classmethod
    def unpacked(cls, value: str) -> Claim:
        """From the value of a key."""
        return cls(**json.loads(value))


class Ledger:
    """The keys of one world in one store. For one thread.

    Args:
        store: a client of the thread's own.
        world: name of the world.
    """

    def __init__(self, store: Any, world: str) -> None:
        self._store = store
        self._prefix = f"multiworld/{world}"

    def generation(self) -> int:
        """The newest generation, 0 if there is none."""
        value = self._read("generation")
        return int(value) if value else 0

    def advance(self, current: int, to: int | None = None) -> int:
        """Open a generation after ``current`` unless somebody else has; the newest one."""
        expected = str(current) if current else ""
        self._swap("generation", expected, str(current + 1 if to is None else to))
        return self.generation()

    def claim(self, generation: int, rank: int, claim: Claim) -> Claim:
        """Take ``rank``; the claim that holds it now, ours or an earlier one."""
        return Claim.unpacked(self._swap(f"{generation}/rank/{rank}", "", claim.packed()))

    def claimed(self, generation: int, rank: int) -> Claim | None:
        """Who holds ``rank``."""
        value = self._read(f"{generation}/rank/{rank}")
        return Claim.unpacked(value) if value else None

    def agree_size(self, generation: int, size: int) -> int:
        """The size of this generation: ours if we are the first to say."""
        return int(self._swap(f"{generation}/size", "", str(size)))

    def size(self, generation: int) -> int | None:
        """The size of this generation, if anybody has said."""
        value = self._read(f"{generation}/size")
        return int(value) if value else None

    def seal(self, generation: int) -> None:
        """All members have met: nobody can be added any more."""
        self._swap(f"{generation}/sealed", "", "yes")

    def sealed(self, generation: int) -> bool:
        """Whether all members have met."""
        return self._read(f"{generation}/sealed") is not None

    def forget(self, generation: int, ranks: range | tuple[int, ...], whole: bool) -> None:
        """Delete the claims of ``ranks`` of an old generation, and what is common to them if ``whole``."""
        names = [f"{generation}/rank/{rank}" for rank in ranks]
        names += [f"{generation}/size", f"{generation}/sealed"] if whole else []
        for name in names:
            self._store.delete_key(f"{self._prefix}/{name}")

    def _read(self, name: str) -> str | None:
        value = self._swap(name, _NEVER, _NEVER)
        return None if value == _NEVER else value

    def _swap(self, name: str, expected: str, desired: str) -> str:
        value = self._store.compare_set(f"{self._prefix}/{name}", expected, desired)
        return value.decode() if isinstance(value, bytes) else str(value)
