"""The engine: all messages and collectives of one generation, matched as their frames come.

It does no I/O and knows no clock, socket or thread: frames go out through sinks, come in through ``on_frame``, and what
ends the generation is the host's to do. So tests drive it with a transport and a clock of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from multiworld.errors import BrokenWorldException
from multiworld.matching.agreement import CollectiveOperation
from multiworld.matching.collective_plan import Plan
from multiworld.matching.device import Device
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.operation import Operation, Registry
from multiworld.matching.protocol import MAX_GROUPS
from multiworld.matching.send_receive import End, Payload, Signature

from .agreement import GroupCollectives
from .any_source import AnyReceive
from .frames import Kind, Placement
from .memory import room_for
from .peer_messages import AnySource, PeerMessages
from .send_receive import ReceiveOperation, SendOperation, View
from .sink import Host, Sink

#: the kinds that come with every message, as plain numbers: each is compared for every frame
_DATA, _POST, _FINGERPRINT, _VALUE = map(int, (Kind.DATA, Kind.POST, Kind.FINGERPRINT, Kind.VALUE))


class Engine(Registry):
    """Matches sends, receives and collectives in Python: the model of the compiled engine.

    Args:
        sinks: the ways to the peers, by world rank.

    Attributes:
        messages: the messages with each peer, by world rank.
        any_receives: receives from any source that wait for a message.
    """

    def __init__(
        self,
        membership: Membership,
        host: Host,
        sinks: Mapping[int, Sink],
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
        device: Device | None = None,
    ) -> None:
        super().__init__(membership, host, lock, clock, device)
        self.host: Host = host
        self.any_receives: list[AnySource] = []
        self.messages = {peer: PeerMessages(self, sink, self.any_receives, host) for peer, sink in sinks.items()}
        self._sinks = sinks
        self._groups: dict[int, GroupCollectives] = {}
        self._any_numbers = (number & 0xFFFFFFFF for number in itertools.count(1))

    # starts; the caller does not hold the lock

    def send(
        self, name: str, peer: int, key: int, signature: Signature, payload: Payload, keep: Any, end: End = None
    ) -> SendOperation:
        messages = self.messages[peer]
        operation = SendOperation(name, messages, key, signature, payload, keep, end)
        with self.lock:
            if self.register(operation, (peer,)):
                messages.send(operation)
        return operation

    def receive(
        self, name: str, peer: int, key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> ReceiveOperation:
        messages = self.messages[peer]
        operation = ReceiveOperation(name, messages, key, signature, view, keep, end)
        with self.lock:
            # A message from before the peer left can still be received.
            kept = self.departed and messages.kept.get(key)
            if self.register(operation, () if kept else (peer,)):
                messages.receive(operation)
        return operation

    def receive_any(
        self, peers: tuple[int, ...], key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> AnyReceive:
        candidates = tuple(self.messages[peer] for peer in peers)
        operation = AnyReceive(key, signature, view, keep, candidates, self.any_receives, self._any_numbers, end)
        with self.lock:
            if self.register(operation, operation.unreachable()):
                operation.start()
        return operation

    def collective(self, group: GroupMembers, plan: Plan) -> Operation:
        operation = CollectiveOperation(self, group.gid, group.digest, group.ranks, plan)
        with self.lock:
            if self.register(operation, tuple(self.departed.intersection(group.ranks))):
                self._group(group.gid).start(operation)
        return operation

    @contextmanager
    def together(self, peers: Iterable[int]) -> Iterator[None]:
        with ExitStack() as stack:
            for sink in {self._sinks[peer] for peer in peers}:
                stack.callback(sink.release)
                sink.hold()
            yield

    # frames; the caller holds the lock

    def on_frame(self, sink: Sink, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int, /) -> Placement:
        """Handle the header of a frame that came from the peer of ``sink``."""
        messages = self.messages[sink.peer]
        if kind == _DATA:
            return messages.on_data(dtype, flags, seq, nbytes)
        if kind == _POST:
            messages.on_post(dtype, flags, seq, key, nbytes)
        elif kind == _FINGERPRINT:
            if key not in self._groups and len(self._groups) >= MAX_GROUPS:
                self.protocol_error(sink.peer, f"a collective of one group more than {MAX_GROUPS}")
                return None, None
            return self._group(key).expect(sink.peer, seq, flags, nbytes)
        elif kind == _VALUE:
            return self._expect_value(sink.peer, key, flags, nbytes)
        else:
            self._on_rare_frame(messages, kind, dtype, flags, seq, key, nbytes)
        return None, None

    def _expect_value(self, peer: int, gid: int, split: int, nbytes: int) -> Placement:
        slot = self.host.value_slot(peer, gid, split, nbytes)
        if slot is None:
            return None, None
        memory = room_for(nbytes)
        return memory, lambda: slot.receive(bytes(memory[:split]), bytes(memory[split:]))

    def _on_rare_frame(
        self, peer: PeerMessages, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int
    ) -> None:
        if kind == Kind.REJECT:
            peer.on_reject(dtype, flags, seq, nbytes)
        elif kind == Kind.CANCEL:
            peer.on_cancel(seq, key)
        elif kind == Kind.CANCELLED:
            peer.on_cancelled(seq)
        elif kind == Kind.ANY:
            peer.on_any(seq, key)
        elif kind == Kind.ANY_DONE:
            peer.on_any_done(seq, key)
        elif kind == Kind.OFFER:
            peer.on_offer(seq)
        elif kind == Kind.TAKE:
            peer.on_take(seq, key)
        elif kind == Kind.BYE:
            self.host.on_bye(peer.lane.peer, gives_up=bool(flags))
        else:
            self.protocol_error(peer.lane.peer, f"frame of unknown kind {kind}")

    # peers that leave, and our own end; the caller holds the lock

    def depart(self, peer: int, *, gives_up: bool) -> bool:
        """``peer`` left in good order: whether every operation can still end."""
        if not self.goes_on_without(peer, gives_up=gives_up):
            return False
        for operation in tuple(self.operations):
            if operation.withdrawn and isinstance(operation, SendOperation) and operation.needs(peer):
                self.operations.discard(operation)  # it went on for the peer's sake only
        operations = tuple(self.operations)
        unfinished = (
            one for one in operations if gives_up and isinstance(one, CollectiveOperation) and peer in one.ranks
        )
        return not any(unfinished) and not any(one.needs(peer) for one in operations)

    def needed(self, peer: int) -> bool:
        """Return whether an operation cannot be done without ``peer``."""
        return any(operation.needs(peer) for operation in tuple(self.operations))

    def gives_up(self) -> bool:
        collective = any(isinstance(operation, CollectiveOperation) for operation in self.operations)
        return collective or self.awaited_work()

    def end(self, error: BrokenWorldException) -> None:
        self.fail_all(error, running=False)
        self.any_receives.clear()

    def _group(self, gid: int) -> GroupCollectives:
        """The collectives of a group, which a peer may have begun before us."""
        found = self._groups.get(gid)
        if found is None:
            found = self._groups[gid] = GroupCollectives(self, self._sinks, gid, self.host.launch)
        return found
