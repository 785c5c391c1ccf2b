"""The Python engine and the compiled core as one node: each is given the same, and must do the same."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from multiworld.errors import LossReason, PeerLost, TensorMismatch
from multiworld.matching.agreement import CollectiveOperation
from multiworld.matching.collective_plan import Collective, Fingerprint, Plan
from multiworld.matching.device import DeviceEnd, Moment
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.memory import bytes_of
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import Mode
from multiworld.matching.send_receive import EXACT

from .reference.any_source import AnyReceive
from .reference.engine import Engine
from .reference.frames import HEADER, WITH_PAYLOAD, Kind
from .reference.send_receive import ReceiveOperation, SendOperation

LONGEST = 256
ROOM = 4096
GROUPS = ((0, 1, 2), (0, 1), (0, 2), (1, 2))
Frame = tuple[int, int, int, int, int, int]  # a header
_SEND, _RECEIVE, _COLLECTIVE = 0, 1, 3  # types of the core's operations


@dataclass
class Sent:
    """A frame on its way, and whose memory its payload is."""

    header: Frame
    parts: tuple[Any, ...]
    operation: Any = None

    def payload(self) -> bytes:
        return b"".join(bytes(part) for part in self.parts)


class ListSink:
    """Implements ``Sink`` with a list, as ``node.h`` does its wire."""

    def __init__(self, peer: int, log: list[tuple[int, Frame]]) -> None:
        self.peer = peer
        self.log = log
        self.unwritten: deque[Sent] = deque()
        self.body: list[Any] | None = None  # target, what to do then, bytes that have come
        self.cut = False

    @property
    def receiving(self) -> bool:
        return self.body is not None

    def put(
        self,
        kind: int,
        dtype: int = 0,
        flags: int = 0,
        seq: int = 0,
        key: int = 0,
        payload: tuple[Any, ...] = (),
        nbytes: int = 0,
        operation: Any = None,
    ) -> None:
        if self.cut:
            return
        header = (int(kind), dtype, int(flags), seq, key, nbytes)
        self.log.append((self.peer, header))
        parts = payload if operation is not None else tuple(bytes(part) for part in payload)
        self.unwritten.append(Sent(header, parts, operation))

    def hold(self) -> None:
        """Nothing is held: frames wait until they are written."""

    release = hold

    def disown(self, operation: Any) -> None:
        for sent in self.unwritten:
            if sent.operation is operation:
                sent.parts = (sent.payload(),)

    def redirect(self, whole: memoryview, own: memoryview) -> None:
        assert self.body is not None
        own[: self.body[2]] = whole[: self.body[2]]
        self.body[0] = own


class Host:
    """Ends the engine for whatever would break the world."""

    def __init__(self, rank: int, size: int) -> None:
        self.device = Device()
        self.launches: list[Launch | None] = []  # None once it is over
        self.described: list[tuple[int, int, int, bool]] = []
        peers = [peer for peer in range(size) if peer != rank]
        us = Membership("w", rank, size, 1, "nccl", 60.0, LONGEST)
        self.log: list[tuple[int, Frame]] = []
        self.sinks = {peer: ListSink(peer, self.log) for peer in peers}
        self.engine = Engine(us, self, self.sinks, contextlib.nullcontext(), lambda: 0.0, self.device)

    def end(self) -> None:
        if self.engine.failure is None:
            self.engine.failure = PeerLost("w", "ended", ranks=(0,), how=LossReason.EOF)
            for sink in self.sinks.values():
                sink.cut, sink.body = True, None
                sink.unwritten.clear()
            self.engine.end(self.engine.failure)
            for place in range(len(self.launches)):
                self.over(place)

    def over(self, place: int) -> None:
        """The backend is done with a launch, or will not begin it, as ``DriverSlot`` tells it."""
        launch, self.launches[place] = self.launches[place], None
        if launch is None or launch.operation is None:
            return
        launch.operation.running = False
        if self.engine.failure is None:
            launch.over()
        else:
            launch.operation.fail(self.engine.failure)
        self.engine.is_over(launch)

    def lost(self, *_: object) -> None:
        self.end()

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        if not self.engine.depart(peer, gives_up=gives_up):
            self.end()

    def value_slot(self, *_: object) -> None:
        return None

    def set_alarm(self) -> None:
        raise AssertionError("no deadline was set")

    def aside(self, function: Callable[[], None]) -> None:
        function()  # nothing is locked; it finds room for the message that was launched last
        kind, peer, _, borrows = self.described[-1]
        self.described[-1] = kind, peer, self.device.found, borrows

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def interrupted(self, what: str) -> None:
        raise AssertionError(what)

    def launch(self, _: int, launch: Launch) -> None:
        self.engine.under_way.add(launch)
        operation = launch.operation
        if isinstance(operation, ReceiveOperation):
            self.described.append((_RECEIVE, launch.ranks[0], operation.nbytes, launch.borrows))
        elif isinstance(operation, SendOperation):
            self.described.append((_SEND, launch.ranks[1], operation.nbytes, False))
        else:
            self.described.append((_COLLECTIVE, 0, 0, False))
        self.launches.append(launch)


class Device:
    """Memory is all there is to a device here."""

    found = 0

    def now(self) -> Moment:
        return Moment(None, None)

    def room(self, nbytes: int, moment: Moment) -> tuple[torch.Tensor, Moment]:
        self.found = nbytes
        return torch.zeros(nbytes, dtype=torch.uint8), moment

    def copies_of(self, tensors: Sequence[torch.Tensor], moment: Moment) -> tuple[list[torch.Tensor], Moment]:
        return [tensor.clone() for tensor in tensors], moment

    def end(self, nbytes: int | None, streamed: bool) -> DeviceEnd:
        data = None if nbytes is None else torch.zeros(nbytes, dtype=torch.uint8)
        return DeviceEnd(self, self.now(), data, streamed)  # type: ignore[arg-type]


class Header(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("flags", ctypes.c_uint16),
        ("seq", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
    )

    def fields(self) -> Frame:
        return self.kind, self.dtype, self.flags, self.seq, self.key, self.nbytes


@dataclass
class Pair:
    """One operation, in both."""

    python: Operation
    native: int
    memory: tuple[bytearray, Any] | None = None  # of a receive: the engine's, the core's
    sent: list[Any] = field(default_factory=list)
    withdrawn: bool = False
    left: bool = False  # nothing is left to do after the withdrawal

    @property
    def message(self) -> Any:
        """The message itself."""
        return self.python.chosen if isinstance(self.python, AnyReceive) and self.python.chosen else self.python


def _address(memory: Any) -> Any:
    return None if memory is None else ctypes.addressof(memory)


class Parts:
    """Parts of a collective in the engine in Python, which goes on once all are there."""

    def __init__(self, host: Host, launch: Launch, count: int) -> None:
        self._host, self._launch, self._missing = host, launch, count

    def follow(self, part: Operation) -> None:
        if not part.attach(lambda: self._over(part)):
            self._over(part)

    def _over(self, part: Operation) -> None:
        if isinstance(part._error, TensorMismatch):
            self._host.end()
        self._missing -= part.succeeded
        whole = self._launch.operation
        if part.succeeded and not self._missing and whole is not None and not whole.done:
            self._host.launch(0, self._launch)


class Node:
    """A member whose two engines are compared after every step."""

    def __init__(self, library: ctypes.CDLL, rank: int, size: int) -> None:
        self.library, self.rank, self.size = library, rank, size
        self.host = Host(rank, size)
        self.engine = self.host.engine
        peers = [peer for peer in range(size) if peer != rank]
        library.node_new.restype = ctypes.c_void_p
        made = library.node_new(rank, (ctypes.c_int * len(peers))(*peers), len(peers), ctypes.c_uint64(LONGEST))
        self.native = ctypes.c_void_p(made)
        self.pairs: list[Pair] = []
        self.launched = 0
        self.collectives: Counter[tuple[int, ...]] = Counter()  # by ranks
        self.room = ctypes.create_string_buffer(ROOM)
        self.moved: set[int] = set()  # launches of collectives that go on in parts
        self.parts: list[tuple[bytearray, Any]] = []  # what is received: the engine's, the core's

    def close(self) -> None:
        self.library.node_free(self.native)

    # calls

    def send(self, peer: int, key: int, mode: Mode, dtype: int, data: bytes, tail: bytes) -> None:
        ours, theirs = bytearray(data), ctypes.create_string_buffer(data, max(1, len(data)))
        borrowed = mode is not Mode.OBJECT
        parts = (memoryview(ours), tail) if mode is Mode.TENSOR else (memoryview(ours),)
        signature = (mode, dtype, sum(map(len, parts)))
        python = self.engine.send("send", peer, key, signature, parts, ours if borrowed else None)
        native = self._call(
            "send",
            peer,
            _u64(key),
            int(mode),
            dtype,
            theirs,
            _u64(len(data)),
            tail,
            _u64(len(parts[1:] and tail)),
            int(borrowed),
        )
        self.pairs.append(Pair(python, native, sent=[ours, theirs] if borrowed else []))

    def send_on_device(self, peer: int, key: int, mode: Mode, dtype: int, nbytes: int, streamed: bool) -> None:
        said = () if mode is Mode.DEVICE else (struct.pack("<Q", nbytes), b"shape")
        end = self.host.device.end(nbytes, streamed)
        python = self.engine.send("send", peer, key, (mode, dtype, nbytes), said, end.data, end)
        text = b"".join(said)
        args = peer, _u64(key), int(mode), dtype, _u64(nbytes), text, _u64(len(text))
        self.pairs.append(Pair(python, self._call("send_on_device", *args)))

    def receive(
        self, peer: int | None, key: int, mode: Mode, dtype: int, nbytes: int, on_device: bool, streamed: bool = False
    ) -> None:
        """Receive; ``on_device`` is where a tensor with its shape may go, too."""
        fixed, device = mode is Mode.FIXED, mode is Mode.DEVICE
        own, memory = bytearray(nbytes), ctypes.create_string_buffer(max(1, nbytes))
        view = memoryview(own) if fixed else None
        end = self.host.device.end(nbytes if device else None, streamed) if on_device and not fixed else None
        keep = own if fixed else end.data if end is not None else None
        signature, to = (mode, dtype, nbytes), memory if fixed else None
        peers = [one for one in range(self.size) if one != self.rank]
        if peer is None:
            python: Operation = self.engine.receive_any(tuple(peers), key, signature, view, keep, end)
            all_peers = (ctypes.c_int * len(peers))(*peers)
            native = self._call("receive_any", all_peers, len(peers), _u64(key), int(mode), dtype, _u64(nbytes), to)
        else:
            python = self.engine.receive("recv", peer, key, signature, view, keep, end)
            native = self._call("receive", peer, _u64(key), int(mode), dtype, _u64(nbytes), to, int(end is not None))
        self.pairs.append(Pair(python, native, (own, memory) if fixed or end is None else None))

    def collective(self, gid: int, ranks: tuple[int, ...], nbytes: int, data: bytes, launches: bool = False) -> None:
        self.collectives[ranks] += 1
        group = GroupMembers()
        group.member = SimpleNamespace(world_rank=self.rank)  # type: ignore[assignment]
        group.ranks, group.gid, group.digest = ranks, gid, 0
        fingerprint = Fingerprint(Collective.ALL_GATHER, nbytes)
        heard: list[Any] = []
        plan = Plan("all_gather", fingerprint, lambda _: data, heard.append, launch=_none if launches else None)
        python = self.engine.collective(group, plan)
        packed = fingerprint.packed(0)
        native = self._call(
            "collective",
            _u64(gid),
            (ctypes.c_int * len(ranks))(*ranks),
            len(ranks),
            packed,
            _u64(len(packed)),
            data * len(ranks),
            _u64(len(data)),
            int(launches),
        )
        self.pairs.append(Pair(python, native, sent=heard))

    def withdraw(self, pair: Pair) -> None:
        pair.withdrawn = True
        pair.python.withdraw()
        self._call("withdraw", pair.native)
        for memory in pair.sent if isinstance(pair.python, SendOperation) else pair.memory or ():
            count = len(memory)  # it is the caller's again, who writes to it
            memory[:count] = b"\xff" * count

    def detach(self, pair: Pair) -> None:
        """Let the caller of a withdrawn operation copy what is to be kept, and go."""
        pair.left, message = True, pair.message
        copies = isinstance(message, ReceiveOperation) and message.borrowed and message.succeeded
        copied = copies and message.withdrawn and message.end is not None and message.end.data is not None
        pair.python.detach()
        if copied:
            self._call("keep", pair.native)

    # the backend

    def enqueued(self, place: int) -> None:
        launch = self.host.launches[place]
        if launch is not None and launch.streamed and launch.operation is not None and not launch.operation.withdrawn:
            self._call("enqueued", place)
            launch.enqueued()

    def over(self, place: int) -> None:
        self.host.over(place)
        self._call("over", place)

    def exchange(self, place: int, data: bytes) -> None:
        """Move parts of an agreed collective from and to each other member; then it is launched again."""
        self.moved.add(place)
        launch = self.host.launches[place]
        assert launch is not None
        peers = [rank for rank in launch.ranks if rank != self.rank]
        parts = Parts(self.host, launch, 2 * len(peers))
        own = [(bytearray(len(data)), ctypes.create_string_buffer(len(data))) for _ in peers]
        sent = [(bytearray(data), ctypes.create_string_buffer(data, len(data))) for _ in peers]
        self.parts += own + sent
        collective = launch.operation
        key = collective.gid << 32 | 1 << 31 | collective.seq  # type: ignore[union-attr]
        signature = (Mode.FIXED, 0, len(data))
        for peer, (memory, _) in zip(peers, own, strict=True):
            parts.follow(self.engine.receive("part", peer, key, signature, memoryview(memory), memory))
        for peer, (memory, _) in zip(peers, sent, strict=True):
            parts.follow(self.engine.send("part", peer, key, signature, (memoryview(memory),), memory))
        of = [(ctypes.c_void_p * len(peers))(*(_address(native) for _, native in each)) for each in (own, sent)]
        self._call("exchange", place, (ctypes.c_int * len(peers))(*peers), len(peers), *of, _u64(len(data)))

    # frames

    def write(self, peer: int) -> tuple[Frame, bytes] | None:
        """Write the oldest frame to ``peer``."""
        sink = self.host.sinks[peer]
        if not sink.unwritten:
            return None
        sent = sink.unwritten.popleft()
        payload = sent.payload()
        length = self._call("write", peer, self.room, _u64(ROOM), restype=ctypes.c_int64)
        assert self.room.raw[: max(0, length)] == payload, (sent.header, length)
        if sent.operation is not None:
            sent.operation.on_sent()
        return sent.header, payload

    def begins(self, peer: int, header: Frame) -> bool:
        """A header comes from ``peer``: whether its payload is wanted."""
        sink = self.host.sinks[peer]
        target, done = self.engine.on_frame(sink, *header)
        wanted = bool(self._call("begins", peer, ctypes.byref(Header(*header))))
        assert wanted == (target is not None), header
        if target is not None and header[5] == 0 and done is not None:
            done()
        elif target is not None:
            sink.body = [target, done, 0]
        return target is not None and header[5] > 0

    def comes(self, peer: int, piece: bytes) -> None:
        """A piece of that payload comes."""
        self._call("comes", peer, piece, _u64(len(piece)))
        sink = self.host.sinks[peer]
        if sink.body is None:
            return
        target, done, at = sink.body
        target[at : at + len(piece)] = piece
        sink.body[2] += len(piece)
        if sink.body[2] == len(target):
            sink.body = None
            done()

    def end(self) -> None:
        self.host.end()
        self._call("end")

    # the comparison

    def compare(self) -> None:
        """Compare all that can be seen of the two."""
        peer, header = ctypes.c_int(), Header()
        said = []
        while self._call("next", ctypes.byref(peer), ctypes.byref(header)):
            said.append((peer.value, header.fields()))
        assert said == self.host.log
        self.host.log.clear()
        assert bool(self._call("failed")) == (self.engine.failure is not None)
        assert self._call("under_way", restype=ctypes.c_uint64) == len(self.engine.operations)
        for other in self.host.sinks:
            assert bool(self._call("needs", other)) == self.engine.needed(other)
        self._compare_launches()
        assert all(memory == native.raw for memory, native in self.parts)
        for pair in self.pairs:
            if not pair.withdrawn:
                self._compare(pair)

    def _compare_launches(self) -> None:
        found = (ctypes.c_uint64 * 4)()
        while self._call("launch", self.launched, found):
            kind, peer, nbytes, borrows = self.host.described[self.launched]
            own = kind == _COLLECTIVE
            assert (found[0], found[3]) == (kind, borrows)
            assert own or (found[1], found[2]) == (peer, nbytes)
            self.launched += 1
        assert self.launched == len(self.host.described)

    def _compare(self, pair: Pair) -> None:
        python, error = pair.python, pair.python._error
        if pair.message.launch is not None and self.engine.failure is not None:
            return  # its owner knows its end
        expected = 0 if not python.done else 1 if error is None else 2 if isinstance(error, TensorMismatch) else 3
        assert self._call("outcome", pair.native) == expected, (python, error)
        if expected != 1:
            return
        if isinstance(python, AnyReceive | ReceiveOperation):
            assert self._call("peer", pair.native) == python._value
            self._compare_message(pair)
        if isinstance(python, AnyReceive | ReceiveOperation) and pair.memory is not None:
            count = len(pair.memory[0])
            assert pair.memory[1].raw[:count] == bytes(pair.memory[0])
        if isinstance(python, ReceiveOperation) and python.buffer is not None and python.mode != Mode.FIXED:
            length = self._call("own", pair.native, self.room, _u64(ROOM), restype=ctypes.c_int64)
            assert self.room.raw[:length] == bytes(bytes_of(python.buffer))

    def _compare_message(self, pair: Pair) -> None:
        message, taken, shape = pair.message, ctypes.c_int(), ctypes.create_string_buffer(64)
        arrival = self._call("message", pair.native, ctypes.byref(taken), shape, _u64(63), restype=ctypes.c_int64)
        assert arrival == message.arrival
        assert shape.value == (message.shape or b"")
        if message.mode == Mode.DEVICE:
            assert bool(taken.value) == (message.kept_end is not None)

    def _call(self, name: str, *args: Any, restype: Any = ctypes.c_int) -> Any:
        function = getattr(self.library, f"node_{name}")
        function.restype = restype
        return function(self.native, *args)


def _none(_: object) -> None:
    """Stand for a call of the backend."""


def _u64(number: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(number)


@dataclass
class OnTheWay:
    """What a lane carries in one direction: frames that were written, and the payload that is being read."""

    frames: deque[tuple[Frame, bytes]] = field(default_factory=deque)
    rest: bytes = b""


class Schedule:
    """Random calls, withdrawals, frames and deaths in a world of three."""

    def __init__(self, library: ctypes.CDLL, seed: int, size: int = 3) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.nodes = [Node(library, rank, size) for rank in range(size)]
        self.ways = {(to, of): OnTheWay() for to, of in itertools.permutations(range(size), 2)}
        self.left: set[int] = set()
        #: the rare ends, so that most schedules go on for long
        self.deadly = self.draw.random() < 0.5
        #: share of messages of all kinds, whose ends mostly do not fit together
        self.variety = self.draw.choice((0.1, 0.3, 1.0))
        #: whether there is a device, and the kind of most messages
        self.device = self.draw.random() < 0.6
        self.usual = self.draw.choice((Mode.FIXED, Mode.DEVICE, Mode.TENSOR)) if self.device else Mode.FIXED

    def run(self, steps: int) -> None:
        """Play ``steps`` steps, then the end of the world.

        Raises:
            AssertionError: the core did something else than the Python engine.
        """
        try:
            for _ in range(steps):
                self.step()
            self.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}") from error
        for node in self.nodes:
            node.close()

    def step(self) -> None:
        acts = (self.call,) * 4 + (self.withdraw,) * 2 + (self.move,) * 10 + (self.die,) * self.deadly
        acts += (self.work,) * 4 * self.device
        self.draw.choice(acts)()
        if self.usual is Mode.DEVICE and self.draw.random() < 0.02:
            self.volley(self.draw.choice(self.nodes))
        self.compare()

    def compare(self) -> None:
        for node in self.nodes:
            node.compare()

    def finish(self) -> None:
        """Give all messages up, let members leave one after the other, and ask for what they have sent."""
        if self.draw.random() < 0.8:
            self.complete_collectives()
        for node in self.nodes:
            self.volley(node)
        for node in self.nodes:
            self.withdraw_all(node)
            self.compare()
        if self.draw.random() < 0.6:
            self.settle()
            self.reclaim(self.draw.choice(self.nodes))
        for _ in self.nodes[1:]:
            staying = [node for node in self.nodes if node.rank not in self.left and node.engine.failure is None]
            if staying:
                self.leave(self.draw.choice(staying))
            self.settle()
            for node in self.nodes:
                if self.draw.random() < 0.5:
                    self.reclaim(node)
        for _ in range(12):
            self.call()
            self.compare()
        self.settle()

    def volley(self, node: Node) -> None:
        """Let a peer send some messages to receives of ``node``, and let a part of that come."""
        peer = self.draw.choice([one for one in self.nodes if one is not node])
        nbytes = self.draw.choice((8, 40, 300))
        there = self.usual is Mode.DEVICE
        for _ in range(self.draw.randrange(2, 6)):
            if self.left.isdisjoint((peer.rank, node.rank)):
                if there:
                    peer.send_on_device(node.rank, 1, Mode.DEVICE, 7, nbytes, False)
                else:
                    peer.send(node.rank, 1, Mode.FIXED, 7, self.draw.randbytes(nbytes), b"")
                mode = Mode.DEVICE if there else Mode.FIXED
                node.receive(peer.rank, 1, mode, 7, nbytes, self.device, self.draw.random() < 0.5)
        ways = [(node.rank, peer.rank), (peer.rank, node.rank)]
        for _ in range(self.draw.randrange(80)):
            self.move(ways)
            if there and self.draw.random() < 0.2:
                self.draw.choice((self.work, self.withdraw))(node)
                self.compare()
        self.compare()

    def reclaim(self, node: Node) -> None:
        """Receive what lies ready of messages that were given up."""
        for peer, messages in node.engine.messages.items():
            for key, kept in messages.kept.items():
                for message in list(kept):
                    anybody = message.mode in EXACT and self.draw.random() < 0.3
                    kind = None if anybody else peer, key, Mode(message.mode), message.dtype, message.nbytes
                    node.receive(*kind, self.device)
                    self.compare()
                    if self.draw.random() < 0.3:
                        self.give_up(node, node.pairs[-1])
                        self.compare()

    def settle(self) -> None:
        """Let all that is on its way arrive."""
        ways = self.draw.sample(list(self.ways), len(self.ways))
        moves = lambda: any(self.deliver(to, of) | self.write(of, to) for to, of in ways)  # noqa: E731
        while moves() or any(map(self.finish_work, self.nodes)):
            pass
        self.compare()

    def complete_collectives(self) -> None:
        """Let every member call what another one of its group has called."""
        for ranks in GROUPS:
            called = {rank: self.nodes[rank].collectives[ranks] for rank in ranks}
            for rank, count in called.items():
                for _ in range(max(called.values()) - count):
                    self.nodes[rank].collective(sum(ranks), ranks, 8, b"catch up")

    def call(self) -> None:
        node = self.draw.choice(self.nodes)
        if node.rank in self.left:
            return
        peer = self.draw.choice([one for one in range(len(self.nodes)) if one != node.rank])
        key = self.draw.choice((1, 1, 1, 2))
        dtype, mode, nbytes = 7, self.usual, 8
        if self.draw.random() < self.variety:
            dtype = self.draw.choice((7, 7, 7, 7, 3))
            mode = self.draw.choice((self.usual,) * 5 + (Mode.FIXED, Mode.TENSOR, Mode.OBJECT))
            nbytes = self.draw.choice((0, 8, 8, 8, 8, 40, 300))
        act = self.draw.randrange(9)
        streamed = self.draw.random() < 0.4
        there = mode is Mode.DEVICE or (self.device and mode is Mode.TENSOR and self.draw.random() < 0.8)
        if act < 4 and there:
            node.send_on_device(peer, key, mode, dtype, nbytes, streamed)
        elif act < 4:
            node.send(peer, key, mode, dtype, self.draw.randbytes(nbytes), b"\x01\x02")
        elif act < 7:
            node.receive(peer, key, mode, dtype, nbytes if mode in EXACT else LONGEST, self.device, streamed)
        elif act == 7:
            mode = mode if mode in EXACT else Mode.FIXED
            node.receive(None, key, mode, dtype, nbytes, self.device, streamed)
        elif self.device and self.draw.random() < 0.5:
            self.call_all()
        else:
            ranks = self.draw.choice((GROUPS[0], GROUPS[0], tuple(sorted((node.rank, peer)))))
            node.collective(sum(ranks), ranks, self.draw.choice((8, 8, 8, 16)), self.draw.randbytes(nbytes))

    def call_all(self) -> None:
        """Let every member call a collective that is launched; each moves its parts twice."""
        for node in self.nodes:
            if node.rank not in self.left:
                node.collective(7, GROUPS[0], 8, b"", launches=True)

    def work(self, node: Node | None = None) -> None:
        """Let a backend do something, or a caller who has given up go."""
        node = node or self.draw.choice(self.nodes)
        ready = self.ready(node)
        leaving = self.leaving(node)
        if leaving and self.draw.random() < 0.3:
            node.detach(self.draw.choice(leaving))
        elif ready:
            place = self.draw.choice(ready)
            if not self.go_on(node, place):
                self.draw.choice((node.enqueued, node.over))(place)

    def ready(self, node: Node) -> list[int]:
        """Return the launches that are the backend's to begin."""
        launches = enumerate(node.host.launches)
        return [place for place, one in launches if one is not None and one.ready and place not in node.moved]

    def go_on(self, node: Node, place: int) -> bool:
        """Let a collective that was launched move its parts; whether there are any left."""
        launch = node.host.launches[place]
        operation = None if launch is None else launch.operation
        if not isinstance(operation, CollectiveOperation) or operation.done or node.engine.failure is not None:
            return False
        if node.host.launches.count(launch) > 2:
            return False
        node.exchange(place, self.draw.randbytes(8 if self.draw.random() < 0.99 else 9))
        return True

    def leaving(self, node: Node) -> list[Pair]:
        """Return what was given up, and is not used by the backend any more."""
        if node.engine.failure is not None:
            return []
        gone = [pair for pair in node.pairs if pair.withdrawn and not pair.left]
        return [pair for pair in gone if not pair.python.held_by_backend()]

    def finish_work(self, node: Node) -> bool:
        """Let a backend do all it can, and callers who have given up go; whether there was anything."""
        leaving = self.leaving(node)
        for pair in leaving:
            node.detach(pair)
        ready = self.ready(node)
        for place in ready:
            if not self.go_on(node, place):
                node.over(place)
        return bool(leaving or ready)

    def withdraw(self, node: Node | None = None) -> None:
        node = node or self.draw.choice(self.nodes)
        if self.draw.random() < 0.05:
            self.withdraw_all(node)
            return
        open_ones = [one for one in node.pairs[-12:] if not one.withdrawn]
        if not open_ones:
            return
        crossing = [one for one in open_ones if one.python.succeeded or getattr(one.python, "arriving", False)]
        self.give_up(node, self.draw.choice(crossing if crossing and self.draw.random() < 0.5 else open_ones))

    def withdraw_all(self, node: Node) -> None:
        """Withdraw what is open at a member, and its last operations, in any order."""
        pairs = [one for one in node.pairs if not one.withdrawn and (not one.python.done or one in node.pairs[-12:])]
        for pair in self.draw.sample(pairs, len(pairs)):
            self.give_up(node, pair)

    def give_up(self, node: Node, pair: Pair) -> None:
        messages = isinstance(pair.python, SendOperation | ReceiveOperation | AnyReceive)
        # Its end and the withdrawal may cross, but what has failed has nothing that could be given up.
        if messages and (not pair.python.done or pair.python.succeeded) and node.engine.failure is None:
            node.withdraw(pair)

    def move(self, ways: Sequence[tuple[int, int]] = ()) -> None:
        to, of = self.draw.choice(ways or list(self.ways))
        if self.draw.random() < 0.5:
            self.write(of, to)
        else:
            self.deliver(to, of)

    def write(self, of: int, to: int) -> bool:
        written = self.nodes[of].write(to)
        if written is None:
            return False
        self.ways[to, of].frames.append(written)
        return True

    def deliver(self, to: int, of: int) -> bool:
        """Let a header, or a piece of a payload, come."""
        way, node = self.ways[to, of], self.nodes[to]
        if node.engine.failure is not None or not (way.rest or way.frames):
            return False
        if way.rest:
            count = self.draw.randint(1, len(way.rest))
            piece, way.rest = way.rest[:count], way.rest[count:]
            node.comes(of, piece)
            return True
        header, payload = way.frames.popleft()
        if self.deadly and self.draw.random() < 0.01:
            header = self.damaged(header)
            payload = payload[: header[5]].ljust(header[5] % ROOM, b"\0")
        wanted = node.begins(of, header)
        way.rest = payload if wanted and header[0] in WITH_PAYLOAD else b""
        return True

    def damaged(self, header: Frame) -> Frame:
        """Make a header that no member of ours sends there."""
        fields = list(HEADER.unpack(HEADER.pack(*header)))
        place = self.draw.randrange(6)
        fields[place] = self.draw.choice((0, 1, 3, 9, 17, 255, fields[place] + 1))
        if fields[0] in (Kind.VALUE, Kind.FINGERPRINT):
            return header
        return HEADER.unpack(HEADER.pack(*fields))  # type: ignore[return-value]

    def die(self) -> None:
        if self.draw.random() > 0.05:
            return
        node = self.draw.choice(self.nodes)
        if self.draw.random() < 0.2:
            node.end()
        elif node.rank not in self.left and node.engine.failure is None:
            self.leave(node)

    def leave(self, node: Node) -> None:
        """Let a member say good-bye and end."""
        self.left.add(node.rank)
        gives_up = node.engine.gives_up()
        assert bool(node._call("gives_up")) | node.engine.awaited_work() == gives_up
        for sink in node.host.sinks.values():
            sink.put(Kind.BYE, flags=int(gives_up))
        for peer in node.host.sinks:  # the core's frames are put by its own owner
            self.ways[peer, node.rank].frames.extend(self._all_of(node, peer))
        node.host.log.clear()
        node.end()

    def _all_of(self, node: Node, peer: int) -> list[tuple[Frame, bytes]]:
        sink, said = node.host.sinks[peer], []
        while len(sink.unwritten) > 1:
            written = node.write(peer)
            assert written is not None
            said.append(written)
        said.append((sink.unwritten[0].header, b""))
        return said


def play(library: ctypes.CDLL, schedules: int) -> None:
    """Play schedules of 100 steps on a core that is compiled with ``driver.cc``."""
    for seed in range(schedules):
        Schedule(library, seed).run(100)
