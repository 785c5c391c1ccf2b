"""A receive from any source: asked of all peers, taken from the first that offers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from multiworld.errors import MultiWorldError
from multiworld.matching.device import DeviceEnd
from multiworld.matching.operation import Operation
from multiworld.matching.send_receive import End, Received, Signature

from .frames import Kind
from .peer_messages import AnySource, PeerMessages
from .send_receive import ReceiveOperation, View


class AnyReceive(Received):
    """It asks all peers (ANY), turns into an ordinary receive from the first that offers, and tells all when it is
    served.

    Args:
        view: where the message goes; None if it stays on the device.
        keep: what must stay alive until then.
        candidates: of the peers that may send it, one at least.
        waiting: all receives from any source that wait.
        numbers: of these receives.
        end: where it goes on the device.
    """

    def __init__(
        self,
        key: int,
        signature: Signature,
        view: View,
        keep: Any,
        candidates: tuple[PeerMessages, ...],
        waiting: list[AnySource],
        numbers: Iterator[int],
        end: End = None,
    ) -> None:
        super().__init__(candidates[0].registry, "recv", keep, end=end)
        self.key = key
        self.signature = signature
        self.view = view
        self.peers = tuple(messages.lane.peer for messages in candidates)
        self.seq = -1
        self.chosen: _Chosen | None = None
        self._candidates, self._waiting, self._numbers = candidates, waiting, numbers

    def unreachable(self) -> tuple[int, ...]:
        """Return all peers if every one has left and nothing that one of them sent lies ready; else none."""
        lies_ready = any(messages.kept.get(self.key) for messages in self._candidates)
        return self.peers if self.registry.departed.issuperset(self.peers) and not lies_ready else ()

    def start(self) -> None:
        """Take a message that lies ready, or ask everybody."""
        self._waiting.append(self)
        if any(map(self.take_kept, self._candidates)):
            return
        self.seq = next(self._numbers)
        for messages in self._candidates:
            messages.lane.put(Kind.ANY, seq=self.seq, key=self.key)

    def take_kept(self, messages: PeerMessages) -> bool:
        """Receive from ``messages`` if a message of ours lies there."""
        if self.chosen is None and messages.ready(self.key):
            self.choose(messages)
        return self.chosen is not None

    def choose(self, messages: PeerMessages, *, offered: bool = False) -> None:
        """Receive from this peer, and from no other.

        An offer binds the peer: its message waits for our answer, which comes with the receive (TAKE). So no other
        receive of ours can take it meanwhile, and leave us waiting for a peer that has nothing more.
        """
        self.chosen = _Chosen(self, messages)
        if offered:
            self.chosen.offer = self.seq
        self._close(answering=messages.lane.peer if offered else -1)
        messages.receive(self.chosen)

    def withdraw(self) -> None:
        self.withdrawn = True
        self.registry.operations.discard(self)
        if self.chosen is not None:
            self.chosen.withdraw()
        elif not self.done:  # else the world has ended, and with it all that was asked
            self._close()

    def give_back(self) -> None:
        if self.chosen is not None:
            self.chosen.give_back()

    def held_by_backend(self) -> list[Operation]:
        return [] if self.chosen is None else self.chosen.held_by_backend()

    def detach(self) -> None:
        if self.chosen is not None:
            self.chosen.detach()

    @property
    def taken(self) -> DeviceEnd | None:
        return None if self.chosen is None else self.chosen.taken

    def needs(self, peer: int) -> bool:
        if self.chosen is not None:
            return self.chosen.needs(peer)
        return all(p in self.registry.departed for p in self.peers)

    def awaits(self) -> tuple[int, ...]:
        return self.peers if self.chosen is None else self.chosen.awaits()

    def waiting_for(self) -> str:
        return f"one of the ranks {list(self.peers)} to send"

    def _close(self, answering: int = -1) -> None:
        """Take no offers any more, and tell all but the peer whose offer is being answered."""
        self._waiting.remove(self)
        if self.seq >= 0:
            for messages in self._candidates:
                if messages.lane.peer != answering:
                    messages.lane.put(Kind.ANY_DONE, seq=self.seq, key=self.key)


class _Chosen(ReceiveOperation):
    """The ordinary receive that an any-source receive has turned into."""

    def __init__(self, parent: AnyReceive, messages: PeerMessages) -> None:
        super().__init__("recv", messages, parent.key, parent.signature, parent.view, parent.keep, parent.end)
        self.asked_by: AnyReceive | None = parent  # until it is done: nothing is to be left in a circle

    def complete(self, value: Any = None) -> None:
        super().complete(value)
        parent, self.asked_by = self.asked_by, None
        if parent is not None:
            parent.launch = self.launch
            parent.complete(value)

    def fail(self, error: MultiWorldError) -> None:
        super().fail(error)
        parent, self.asked_by = self.asked_by, None
        if parent is not None:
            parent.fail(error)
