"""Messages with one peer: receives are posted to the sender, who sends only what fits exactly.

The receiver says what it waits for (POST). The sender compares that with what it has, and either sends the payload
(DATA) or says what it has instead (REJECT). So both know a wrong length or dtype before a payload moves, and nothing
arrives that has no place. If the receive is posted first, as is common, this takes no time. All methods are called with
the registry's lock held, unless they say otherwise.

What stays on the device is matched in the same way. Its DATA has no payload: with it the sender's driver begins to
send, and when it comes the receiver's to receive, so nothing is launched that has no counterpart. Such a transfer
cannot be withdrawn: a caller that gives up waits for its end, and then copies on the device what is to be kept.

A transfer uses the caller's memory only while its caller waits. A caller that gives up has the memory back at once. The
rest of a send is copied then. The rest of a message goes to memory of our own, as long as the message itself.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Protocol

import torch

from multiworld.matching.device import DeviceEnd
from multiworld.matching.memory import bytes_of
from multiworld.matching.operation import Launch, Registry
from multiworld.matching.protocol import Mode, channel
from multiworld.matching.send_receive import EXACT, LENGTH, refused_receive, refused_send

from .frames import Kind, Placement
from .memory import new_buffer
from .send_receive import Queues, ReceiveOperation, SendOperation
from .sink import Host, Sink

#: how many receives a peer may have waiting at us; each costs us memory
MAX_WAITING = 1 << 16


class AnySource(Protocol):
    """A receive from any source, as the messages of one peer see it."""

    seq: int
    key: int
    peers: tuple[int, ...]

    def choose(self, messages: PeerMessages, *, offered: bool = False) -> None: ...
    def take_kept(self, messages: PeerMessages) -> bool: ...


class PeerMessages:
    """All messages with one peer, by key."""

    def __init__(self, registry: Registry, lane: Sink, any_receives: list[AnySource], host: Host) -> None:
        self.registry = registry
        self.lane = lane
        self._transfers = Transfers(registry, lane, host, self._landed)
        self._any_receives = any_receives
        self.sends: Queues[SendOperation] = Queues()
        self.posts: Queues[tuple[int, int, int, int]] = Queues()  # seq, mode, dtype, nbytes
        self.wanted: dict[int, ReceiveOperation] = {}  # ours, by seq
        self.any_posts: Queues[int] = Queues()  # the peer's, by key
        self.taken: dict[int, int] = {}  # which offer of ours the next post of that key answers
        self.kept: Queues[ReceiveOperation] = Queues()  # arrived for a withdrawn receive
        self.orphans: Queues[ReceiveOperation] = Queues()  # withdrawn, not settled yet
        self.blocked: Queues[ReceiveOperation] = Queues()  # wait until the withdrawn ones are settled
        self._seq = 0
        self._arrivals = 0
        self._waiting = 0  # receives of the peer that wait here

    # ours

    def send(self, operation: SendOperation) -> None:
        """Queue a send and match it if its receive is posted."""
        self.sends[operation.key].append(operation)
        self._match(operation.key)

    def receive(self, operation: ReceiveOperation) -> None:
        """Take a message that was kept, or post the receive once all withdrawn ones are settled, to keep the order."""
        key = operation.key
        if self.kept.get(key) and self.ready(key):
            self._take_kept(operation, self.kept[key].popleft())
        elif self.orphans.get(key):
            self.blocked[key].append(operation)
        else:
            self._post(operation)

    def ready(self, key: int) -> bool:
        """Return whether a message lies ready, and none that came before it is still on its way to us."""
        kept = self.kept.get(key)
        if not kept:
            return False
        return not any(0 <= one.arrival < kept[0].arrival for one in self.orphans.get(key, ()))

    def orphan(self, operation: ReceiveOperation) -> None:
        """Note that this receive has no waiter any more."""
        self.registry.operations.discard(operation)
        blocked = self.blocked.get(operation.key)
        if blocked and operation in blocked:
            blocked.remove(operation)
            self._decline(operation)
        elif operation.succeeded and operation.end is not None:
            self._orphan_on_device(operation)
        elif operation.succeeded:  # between its end and the waiter's waking: the message is put back in its place
            self._keep_message(operation)
        elif operation.arriving:
            self.orphans[operation.key].append(operation)
        elif operation.seq in self.wanted:
            self.orphans[operation.key].append(operation)
            self.lane.put(Kind.CANCEL, seq=operation.seq, key=operation.key)

    def divert(self, operation: ReceiveOperation) -> None:
        """Let what comes, or has come, for ``operation`` lie in memory of our own."""
        if operation.end is not None:
            operation.end = DeviceEnd(operation.end.device, operation.end.moment)
        view, operation.view = operation.view, None
        arriving = operation.arriving and self.lane.receiving
        if view is not None and (arriving or operation.succeeded):  # else memory is found for it when it comes
            operation.buffer = new_buffer(len(view))
            operation.view = bytes_of(operation.buffer)
            if arriving:
                self.lane.redirect(view, operation.view)
            else:
                operation.view[:] = view
        operation.keep = None

    # the peer's

    def on_post(self, dtype: int, flags: int, seq: int, key: int, nbytes: int) -> None:
        """The peer waits for a message."""
        taken, sends = self.taken.pop(key, -1), self.sends.get(key)
        if taken >= 0 and sends and sends[0].offered == taken:
            self._answer(sends.popleft(), seq, flags, dtype, nbytes)
            self._match(key)
            return
        self.posts[key].append((seq, flags, dtype, nbytes))
        self._one_more()
        if sends:
            self._match(key)

    def on_data(self, dtype: int, flags: int, seq: int, nbytes: int) -> Placement:
        """A payload begins."""
        operation = self.wanted.pop(seq, None)
        if flags in ON_DEVICE:
            if operation is not None:
                self._arrivals = operation.arrival = self._arrivals + 1
            return self._transfers.on_data(operation, dtype, flags, nbytes)
        if operation is None or not operation.admits(nbytes):
            self.registry.protocol_error(self.lane.peer, f"payload of {nbytes} bytes that was not asked for")
            return None, None
        operation.arriving = True
        operation.dtype = dtype
        if operation.view is None:
            operation.buffer = new_buffer(nbytes)
            operation.view = bytes_of(operation.buffer)
        return operation.view, lambda: self._arrived(operation)

    def on_reject(self, dtype: int, flags: int, seq: int, nbytes: int) -> None:
        """The peer has something else than what we wait for."""
        operation = self.wanted.pop(seq, None)
        if operation is None:
            return
        self._forget_orphan(operation)
        operation.fail(refused_receive(operation, self.lane.peer, operation.signature, (flags, dtype, nbytes)))

    def on_cancel(self, seq: int, key: int) -> None:
        """The peer withdraws a post; too late if the payload is on its way."""
        posts = self.posts.get(key, ())
        for post in posts:
            if post[0] == seq:
                self.posts[key].remove(post)
                self._waiting -= 1
                self.lane.put(Kind.CANCELLED, seq=seq, key=key)
                return

    def on_cancelled(self, seq: int) -> None:
        """A post of ours is withdrawn, as we asked for."""
        operation = self.wanted.pop(seq, None)
        if operation is not None and not operation.withdrawn:
            self.registry.protocol_error(self.lane.peer, "a receive was withdrawn that we wait for")
        elif operation is not None:
            self._forget_orphan(operation)

    def on_any(self, seq: int, key: int) -> None:
        """The peer waits for a message from anybody."""
        self.any_posts[key].append(seq)
        self._one_more()
        self._match(key)

    def on_any_done(self, seq: int, key: int) -> None:
        """The peer's receive from any source needs no message of ours: what was offered to it is free again."""
        self._forget_any(seq, key)
        sends = self.sends.get(key)
        if sends and sends[0].offered == seq:
            sends[0].offered = -1
            if sends[0].withdrawn:
                self.registry.operations.discard(sends.popleft())
        self._match(key)

    def on_offer(self, seq: int) -> None:
        """The peer has a message for our any-source receive of that number, or had until we told it otherwise."""
        waiting = next((operation for operation in self._any_receives if operation.seq == seq), None)
        if waiting is not None and self.lane.peer in waiting.peers:
            waiting.choose(self, offered=True)

    def on_take(self, seq: int, key: int) -> None:
        """The peer takes what we offered: its next post is the answer."""
        self._forget_any(seq, key)
        sends = self.sends.get(key)
        if sends and sends[0].offered == seq:
            self.taken[key] = seq

    # inside

    def _match(self, key: int) -> None:
        sends, posts = self.sends.get(key), self.posts.get(key)
        # An offered message and all behind it wait for the answer: messages of one key keep their order.
        while sends and posts and sends[0].offered < 0:
            self._waiting -= 1
            self._answer(sends.popleft(), *posts.popleft())
        any_posts = self.any_posts.get(key)
        if sends and any_posts and sends[0].offered < 0:
            sends[0].offered = any_posts[0]
            self.lane.put(Kind.OFFER, seq=any_posts[0], key=key)

    def _forget_any(self, seq: int, key: int) -> None:
        any_posts = self.any_posts.get(key)
        if any_posts and seq in any_posts:
            any_posts.remove(seq)
            self._waiting -= 1

    def _one_more(self) -> None:
        self._waiting += 1
        if self._waiting > MAX_WAITING:
            self.registry.protocol_error(self.lane.peer, f"more than {MAX_WAITING} receives at once")

    def _decline(self, operation: ReceiveOperation) -> None:
        """Leave the offer that ``operation`` was to answer, if any: it needs no message of the peer's any more."""
        if operation.offer >= 0:
            self.lane.put(Kind.ANY_DONE, seq=operation.offer, key=operation.key)
            operation.offer = -1

    def _answer(self, operation: SendOperation, seq: int, mode: int, dtype: int, nbytes: int) -> None:
        if operation.mode == mode and (
            (operation.dtype == dtype and operation.nbytes == nbytes) if mode in EXACT else operation.nbytes <= nbytes
        ):
            operation.matched = True
            if operation.end is not None:
                self._transfers.send(operation, operation.end, seq)
                return
            self.lane.put(
                Kind.DATA, operation.dtype, mode, seq, operation.key, operation.payload, operation.nbytes, operation
            )
            return
        self.lane.put(Kind.REJECT, operation.dtype, operation.mode, seq, operation.key, nbytes=operation.nbytes)
        ours = operation.mode, operation.dtype, operation.nbytes
        operation.fail(refused_send(operation, self.lane.peer, ours, (mode, dtype, nbytes)))

    # what stays on the device

    def _landed(self, operation: ReceiveOperation) -> None:
        """The payload is there. In the memory of a caller who has left it is kept as soon as it is copied there."""
        operation.arriving = False
        if operation.withdrawn and not operation.borrowed:
            self.keep_landed(operation)
        else:
            operation.complete(self.lane.peer)

    def keep_landed(self, operation: ReceiveOperation) -> None:
        """Keep a message that lies in memory of our own for the next receive."""
        self._forget_orphan(operation, settle=False)
        self._keep_message(operation)

    def _orphan_on_device(self, operation: ReceiveOperation) -> None:
        """Its end and the withdrawal crossed."""
        if operation.kept_end is not None:  # back to where it was kept: nothing of it was copied yet
            operation.end, operation.kept_end = operation.kept_end, None
            operation.borrowed = False
            operation.keep = None
        if operation.borrowed or operation.arriving:
            self.orphans[operation.key].append(operation)
        else:
            self._keep_message(operation)
        if operation.arriving:  # its caller went on with the stream, but was not woken yet: it waits for the end now
            operation.done = False
            operation.running = operation.borrowed
            self.registry.operations.add(operation)

    def _post(self, operation: ReceiveOperation) -> None:
        self._seq = operation.seq = (self._seq + 1) & 0xFFFFFFFF
        self.wanted[operation.seq] = operation
        if operation.offer >= 0:
            self.lane.put(Kind.TAKE, seq=operation.offer, key=operation.key)
            operation.offer = -1
        self.lane.put(Kind.POST, operation.dtype, operation.mode, operation.seq, operation.key, nbytes=operation.nbytes)

    def _arrived(self, operation: ReceiveOperation) -> None:
        operation.arriving = False
        self._arrivals = operation.arrival = self._arrivals + 1
        if not operation.withdrawn:
            operation.complete(self.lane.peer)
            return
        self._forget_orphan(operation, settle=False)
        self._keep_message(operation)

    def _keep_message(self, operation: ReceiveOperation) -> None:
        operation.give_back()
        # By arrival, not by the order of the withdrawals: several receives may be withdrawn at once, in any order.
        insort(self.kept[operation.key], operation, key=attrgetter("arrival"))
        self._serve_posted(operation.key)
        self._unblock(operation.key)
        for waiting in tuple(self._any_receives):  # one of them may take what lies ready
            if waiting.key == operation.key and self.lane.peer in waiting.peers and waiting.take_kept(self):
                return

    def _serve_posted(self, key: int) -> None:
        """Give what is kept to receives that are posted already: the peer may have nothing more to send for them.

        Their posts are withdrawn; what the peer has sent for them meanwhile is kept in its turn.
        """
        for operation in [one for one in self.wanted.values() if one.key == key and not one.withdrawn]:
            if not self.ready(key):
                return
            end = None if operation.end is None else DeviceEnd(operation.end.device, operation.end.moment)
            post = ReceiveOperation(operation.name, self, key, operation.signature, None, None, end)
            post.seq, operation.seq = operation.seq, -1
            self.wanted[post.seq] = post
            self._take_kept(operation, self.kept[key].popleft())
            post.withdraw()

    def _take_kept(self, operation: ReceiveOperation, message: ReceiveOperation) -> None:
        self._decline(operation)
        same_mode = operation.mode == message.mode
        fits = operation.signature == message.signature or (same_mode and operation.mode not in EXACT)
        if not fits:
            operation.fail(refused_receive(operation, self.lane.peer, operation.signature, message.signature))
            return
        if operation.mode == Mode.DEVICE:
            operation.kept_end = message.end
        elif message.shape is not None:
            operation.end, operation.shape = message.end, message.shape
        if operation.view is not None and message.view is not None:
            operation.view[:] = message.view
        operation.buffer, operation.dtype, operation.arrival = message.buffer, message.dtype, message.arrival
        operation.complete(self.lane.peer)

    def _forget_orphan(self, operation: ReceiveOperation, settle: bool = True) -> None:
        orphans = self.orphans.get(operation.key)
        if orphans and operation in orphans:
            orphans.remove(operation)
            if settle:
                self._unblock(operation.key)

    def _unblock(self, key: int) -> None:
        blocked = self.blocked.get(key)
        while blocked and (self.ready(key) or not self.orphans.get(key)):
            self.receive(blocked.popleft())


#: modes of DATA whose payload does not follow it
ON_DEVICE: Final = frozenset(map(int, (Mode.DEVICE, Mode.DEVICE_TENSOR)))
_MAX_SAID_BYTES: Final = LENGTH.size + 8 * 255 + 1


class Transfers:
    """The messages of one peer that stay on the device. All methods are called with the registry's lock held."""

    def __init__(self, registry: Registry, lane: Sink, host: Host, landed: Callable[[ReceiveOperation], None]) -> None:
        self._registry, self._lane, self._host, self._landed = registry, lane, host, landed

    def send(self, operation: SendOperation, end: DeviceEnd, seq: int) -> None:
        """A send is matched with the post of that number."""
        mode = Mode.DEVICE if operation.mode == Mode.DEVICE else Mode.DEVICE_TENSOR
        said = operation.payload
        self._lane.put(Kind.DATA, operation.dtype, mode, seq, operation.key, said, sum(map(len, said)))
        if not operation.nbytes:
            operation.complete()
            return
        us, peer = self._registry.membership.rank, self._lane.peer
        operation.running = not operation.copying
        begin = lambda driver: driver.send(_data(end), 1, after=end.moment.event)  # noqa: E731
        launch = operation.launch = Launch(operation, (us, peer), begin, operation.complete, streamed=end.streamed)
        launch.borrows = launch.ready = not operation.copying
        self._host.launch(channel(us, peer), launch)

    def on_data(self, operation: ReceiveOperation | None, dtype: int, mode: int, said: int) -> Placement:
        """The peer begins to send on the device; of a tensor with its shape it says the length here, and the shape."""
        exact = mode == Mode.DEVICE
        fits = said == 0 if exact else LENGTH.size < said <= _MAX_SAID_BYTES
        asked = Mode.DEVICE if exact else Mode.TENSOR
        if not fits or operation is None or operation.end is None or operation.mode != asked:
            self._registry.protocol_error(self._lane.peer, "a payload on the device that was not asked for")
            return None, None
        operation.arriving = True
        operation.dtype = dtype
        if exact:
            self._receive(operation, operation.end, operation.nbytes)
            return None, None
        text = memoryview(bytearray(said))
        return text, lambda: self._on_shape(operation, bytes(text))

    def _on_shape(self, operation: ReceiveOperation, said: bytes) -> None:
        (nbytes,) = LENGTH.unpack_from(said)
        if operation.end is None or nbytes > operation.nbytes:
            self._registry.protocol_error(self._lane.peer, f"a tensor of {nbytes} bytes that was not asked for")
            return
        operation.shape = said[LENGTH.size :]
        self._receive(operation, operation.end, nbytes)

    def _receive(self, operation: ReceiveOperation, end: DeviceEnd, nbytes: int) -> None:
        if not nbytes:
            self._landed(operation)
            return
        us, peer = self._registry.membership.rank, self._lane.peer
        operation.running = operation.borrowed
        begin = lambda driver: driver.recv(_data(end), 0, after=end.moment.event)  # noqa: E731
        launch = Launch(
            operation, (peer, us), begin, lambda: self._landed(operation), value=peer, streamed=end.streamed
        )
        launch.borrows, launch.ready = operation.borrowed, end.data is not None
        operation.launch = launch
        self._host.launch(channel(peer, us), launch)
        if end.data is None:
            self._host.aside(lambda: self._find_room(end, launch, nbytes))

    def _find_room(self, end: DeviceEnd, launch: Launch, nbytes: int) -> None:
        """Find memory for a message whose length the sender has said, or that has no waiter. Without the lock."""
        try:
            data, moment = end.device.room(nbytes, end.moment)
        except RuntimeError as error:  # what torch raises when there is no memory
            with self._registry.lock:
                what = f"a message of {nbytes} bytes for which the device has no memory: {error}"
                self._registry.protocol_error(self._lane.peer, what)
            return
        with self._registry.lock:
            end.data, end.moment = data, moment
            launch.set_ready()


def _data(end: DeviceEnd) -> torch.Tensor:
    """The memory of an end that is ready."""
    if end.data is None:
        raise LookupError("a transfer began without memory")
    return end.data
