"""Messages under way: a send and a receive, each from its post to its end.

All methods are called with the registry's lock held, unless they say otherwise.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from multiworld.matching.device import DeviceEnd
from multiworld.matching.operation import Operation, Registry
from multiworld.matching.protocol import Mode
from multiworld.matching.send_receive import EXACT, End, Payload, Received, Signature

from .sink import Sink

T = TypeVar("T")

#: where a payload on the lane goes; None for memory that is found when it comes
View = memoryview | None
#: so many keys are kept before the empty queues among them are dropped
ROOM = 1024


class Queues(dict[int, deque[T]], Generic[T]):
    """A queue for each key, made when it is first used.

    Programs may give every message a tag of its own; the queues of old tags must not stay.
    """

    __slots__ = ("_room",)

    def __init__(self) -> None:
        super().__init__()
        self._room = ROOM

    def __missing__(self, key: int) -> deque[T]:
        if len(self) >= self._room:
            for old in [old for old, queue in self.items() if not queue]:
                del self[old]
            self._room = max(ROOM, 2 * len(self))
        made = self[key] = deque()
        return made


class Messages(Protocol):
    """The messages of one peer, as one of them sees these: ``peer_messages.PeerMessages``."""

    registry: Registry
    lane: Sink
    sends: Queues[SendOperation]
    kept: Queues[ReceiveOperation]

    def send(self, operation: SendOperation) -> None:
        """Queue a send and match it if its receive is posted."""

    def receive(self, operation: ReceiveOperation) -> None:
        """Take a message that was kept, or post the receive."""

    def orphan(self, operation: ReceiveOperation) -> None:
        """Note that this receive has no waiter any more."""

    def divert(self, operation: ReceiveOperation) -> None:
        """Let what comes, or has come, lie in memory of our own."""

    def keep_landed(self, operation: ReceiveOperation) -> None:
        """Keep a message that lies in memory of our own for the next receive."""


class SendOperation(Operation):
    """A send: what it has, whether it can still be withdrawn, and the any-source receive that it is offered to."""

    def __init__(
        self,
        name: str,
        messages: Messages,
        key: int,
        signature: Signature,
        payload: Payload,
        keep: Any,
        end: End = None,
    ) -> None:
        super().__init__(messages.registry, name, keep)
        self.messages = messages
        self.key = key
        self.mode, self.dtype, self.nbytes = signature
        self.payload = payload
        self.end = end
        self.borrowed = keep is not None  # the payload is the caller's memory
        self.matched = False
        self.copying = False  # the caller's memory is copied on the device, since its caller waits no more
        self.offered = -1

    on_sent = Operation.complete

    def withdraw(self) -> None:
        """Nothing was sent if it was not matched; else it goes on in the background, with a copy of what is left."""
        self.withdrawn = True
        if not self.done and not self.matched and self.offered < 0:
            self.messages.sends[self.key].remove(self)
            self.registry.operations.discard(self)
            return
        self.give_back()

    def give_back(self) -> None:
        if self.end is not None:
            # An offered message goes on, from a copy; a matched one keeps the memory until its end.
            self.copying = self.borrowed and self.withdrawn and not self.done and not self.matched
        elif self.borrowed and not self.done:
            self.borrowed = False
            if self.matched:
                self.messages.lane.disown(self)
            else:  # an offered message goes on; a failed one is not sent
                self.payload = tuple(bytes(part) for part in self.payload) if self.withdrawn else ()
            self.keep = None

    def detach(self) -> None:
        super().detach()
        end = self.end
        if not self.copying or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            end.data, end.moment = data, moment
            self.copying = self.borrowed = False
            self.keep = None
            if self.launch is not None:
                self.launch.set_ready()

    def needs(self, peer: int) -> bool:
        """See ``Operation.needs``; what is under way on the device ends without the peer's lane."""
        return self.launch is None and peer == self.messages.lane.peer

    def awaits(self) -> tuple[int, ...]:
        return (self.messages.lane.peer,)

    def waiting_for(self) -> str:
        state = "to take the payload" if self.matched else "to post the receive"
        return f"rank {self.messages.lane.peer} {state}"


class ReceiveOperation(Received):
    """A receive: what it expects, and where the payload goes."""

    def __init__(
        self, name: str, messages: Messages, key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> None:
        self.mode, dtype, self.nbytes = signature
        super().__init__(messages.registry, name, keep, dtype, end)
        self.messages = messages
        self.key = key
        self.view = view
        self.borrowed = view is not None or (end is not None and end.data is not None)  # it is the caller's memory
        self.kept_end: DeviceEnd | None = None
        self.seq = -1
        self.offer = -1  # number of the any-source receive whose offer it answers
        self.arriving = False
        self.arrival = -1  # place of its message among all that came from this peer

    @property
    def taken(self) -> DeviceEnd | None:
        return self.kept_end

    @property
    def signature(self) -> Signature:
        """The mode, dtype code and length that were posted."""
        return self.mode, self.dtype, self.nbytes

    def admits(self, nbytes: int) -> bool:
        """Return whether a payload of that length on the lane is what was posted."""
        if self.mode in EXACT:
            return nbytes == self.nbytes and self.mode == Mode.FIXED
        return nbytes <= self.nbytes

    def withdraw(self) -> None:
        """The post is cancelled; a message that is under way already is kept for the next receive."""
        self.withdrawn = True
        self.messages.orphan(self)
        self.give_back()

    def give_back(self) -> None:
        if self.end is not None and self.withdrawn and self.arrival >= 0:
            return  # it is under way to the caller's memory, or there: see ``detach``
        if self.borrowed:
            self.borrowed = False
            self.messages.divert(self)

    def detach(self) -> None:
        """See ``Operation.detach``: a message without a waiter is kept for the next receive."""
        end = self.end
        if not (self.withdrawn and self.borrowed and self.succeeded) or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            self.end = DeviceEnd(end.device, moment, data)
            self.borrowed = False
            self.keep = None
            self.messages.keep_landed(self)

    def needs(self, peer: int) -> bool:
        """See ``Operation.needs``; what is under way on the device ends without the peer's lane."""
        return self.launch is None and peer == self.messages.lane.peer

    def awaits(self) -> tuple[int, ...]:
        return (self.messages.lane.peer,)

    def waiting_for(self) -> str:
        return f"rank {self.messages.lane.peer} to send"
