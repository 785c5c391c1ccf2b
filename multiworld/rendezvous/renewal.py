"""Connections of the last generation that go on in the next one, between members that both have kept them.

Nothing tells how much of the last generation is still under way on them, nor whether a frame was cut. So both sides
send a mark, and drop what comes before the other's. A mark is made of its sender's new incarnation, which did not exist
when that sent anything of the last generation. It is told to whoever was greeted before, with the same secret.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from multiworld.rendezvous.ledger import Claim

#: of what is dropped at once
_PIECE = 1 << 16


@dataclass(slots=True)
class Pair:
    """The connections to one member."""

    lane: socket.socket
    control: socket.socket
    #: ours and the member's, on each of them
    marks: tuple[bytes, bytes] = b"", b""
    #: the last bytes that came before the mark, which may have begun in them
    old: bytes = b""

    def close(self) -> None:
        self.lane.close()
        self.control.close()

    def begin(self) -> bool:
        """Send our mark on the control connection; whether it took it."""
        with contextlib.suppress(OSError):
            return self.control.send(self.marks[0]) == len(self.marks[0])
        return False

    def look(self) -> bool:
        """Read up to the member's mark, and nothing that follows; whether it is there.

        Raises:
            OSError: the connection has ended: the member has not kept it.
        """
        mark = self.marks[1]
        with contextlib.suppress(BlockingIOError):
            while seen := self.control.recv(_PIECE, socket.MSG_PEEK):
                found = (self.old + seen).find(mark)
                self.old += self.control.recv(len(seen) if found < 0 else found + len(mark) - len(self.old))
                if self.old.endswith(mark):
                    return True
                self.old = self.old[1 - len(mark) :]
            raise ConnectionResetError
        return False


@dataclass(slots=True)
class Kept:
    """Connections that were kept, by the identity of the member."""

    pairs: dict[str, Pair] = field(default_factory=dict)

    def among(self, claims: Mapping[int, Claim]) -> dict[int, Pair]:
        """Hand over those to members that have a place among ``claims``, by place, and close the others."""
        known = {place: claim.identity for place, claim in claims.items() if claim.identity in self.pairs}
        found = {place: self.pairs.pop(identity) for place, identity in known.items()}
        self.close()
        return found

    def close(self) -> None:
        while self.pairs:
            self.pairs.popitem()[1].close()


class Renewal:
    """The pairs whose mark has not come yet, by place.

    Attributes:
        failed: places of members that have not kept theirs.
    """

    def __init__(self, pairs: dict[int, Pair]) -> None:
        self._pairs, self._poll = pairs, select.poll()
        self._places = {pair.control.fileno(): place for place, pair in pairs.items()}
        self.failed: set[int] = set()
        for place, pair in tuple(pairs.items()):
            self._poll.register(pair.control, select.POLLIN)
            if not pair.begin():
                self._fail(place)

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def __contains__(self, place: int) -> bool:
        return place in self._pairs

    def look(self) -> Iterator[tuple[int, Pair]]:
        """Yield those whose mark has come."""
        for descriptor, _ in self._poll.poll(0) if self._pairs else ():
            place = self._places[descriptor]
            try:
                come = self._pairs[place].look()
            except OSError:
                self._fail(place)
            else:
                if come:
                    yield place, self._taken(place)

    def drop(self, place: int) -> None:
        """Close a pair, if it is still there."""
        if place in self._pairs:
            self._taken(place).close()

    def close(self) -> None:
        for place in tuple(self._pairs):
            self.drop(place)

    def _fail(self, place: int) -> None:
        self.drop(place)
        self.failed.add(place)

    def _taken(self, place: int) -> Pair:
        pair = self._pairs.pop(place)
        self._poll.unregister(pair.control)
        return pair


def mark_of(sender: Claim, where: str, secret: bytes | None) -> bytes:
    """The mark of a member in the generation that ``where`` tells."""
    return hmac.digest(secret or b"-", f"multiworld mark\n{where} {sender.incarnation}".encode(), "sha256")
