"""The ring in shared memory between two engines, and a peer that plays tricks with it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from engine.pairs import (
    BYE,
    DONE,
    LANE_ENDED,
    LOST,
    MARK,
    SECONDS,
    Two,
    events_of,
    frame,
    recv,
    send,
    start_recv,
    start_send,
)
from procs import open_numbers

from multiworld.matching.protocol import CODES, Mode
from tests.multiworld.engine.reference.frames import HEADER, Kind

RING, RING_IS, CHUNK, READ = 64, 65, 66, 67
THROUGH_RING = 0x80
RING_BYTES = 1 << 20
LARGE = 64_000  # float32: far above what stays on the socket
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALS = 0x1 | 0x2 | 0x4 | 0x10  # SEAL, SHRINK, GROW, FUTURE_WRITE


class Peer:
    """A bare socket in the place of an engine's peer, which knows rings."""

    def __init__(self, two: Two) -> None:
        assert two.peer is not None
        self.engine, self.sock = two.a, two.peer
        self.sock.settimeout(SECONDS)

    def says(self, *frames: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send frames, let the engine read them, and close the descriptors that went with them."""
        if descriptors:
            socket.send_fds(self.sock, [b"".join(frames)], list(descriptors))
        else:
            self.sock.sendall(b"".join(frames))
        for descriptor in descriptors:
            os.close(descriptor)
        self.engine.drain(1)

    def hears(self) -> tuple[int, ...]:
        """The next frame: kind, dtype, flags, number, key, bytes."""
        return HEADER.unpack(self._exactly(HEADER.size))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self.sock.recv(size - len(found))
        return found

    def payload(self, size: int) -> bytes:
        return self._exactly(size)

    def is_offered(self) -> mmap.mmap:
        """Take the ring that the engine offers."""
        data, descriptors, _, _ = socket.recv_fds(self.sock, HEADER.size, 4)
        assert HEADER.unpack(data)[::5] == (RING, RING_BYTES)
        (descriptor,) = descriptors
        assert fcntl.fcntl(descriptor, F_GET_SEALS) & SEALS == SEALS
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        ring = mmap.mmap(descriptor, RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(descriptor)
        return ring

    def posts(self, seq: int, nbytes: int) -> None:
        """Post a receive of a message of at most ``nbytes``."""
        self.says(frame(Kind.POST, 0, int(Mode.OBJECT), seq, 7, nbytes))

    def offers(self) -> mmap.mmap:
        """Offer a good ring, which the engine takes."""
        ring, descriptor = made_ring()
        self.says(frame(RING, nbytes=RING_BYTES), descriptors=(descriptor,))
        assert self.hears()[::2][:2] == (RING_IS, 1)
        return ring

    def is_lost(self) -> bool:
        """Whether the engine says that we broke the protocol."""
        return [event[0] for event in events_of(self.engine)] == [LOST]


def made_ring(size: int = RING_BYTES, seals: int = SEALS) -> tuple[mmap.mmap, int]:
    """A ring, and its descriptor."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.posix_fallocate(descriptor, 0, size)
    ring = mmap.mmap(descriptor, size)
    fcntl.fcntl(descriptor, F_ADD_SEALS, seals)
    return ring, descriptor


@pytest.fixture
def peer(bare: Two) -> Peer:
    return Peer(bare)


def exchange(two: Two, count: int) -> None:
    sent, got = torch.arange(count, dtype=torch.float32), torch.full((count,), -1.0)
    ends = two.run(lambda: send(two.a, 1, 7, sent, SECONDS), lambda: recv(two.b, 0, 7, got, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    assert torch.equal(sent, got)


def test_the_answer_to_an_offer_comes_after_the_mark(peer: Peer) -> None:
    """It may be the first that an engine says on a connection that goes on; what comes before the mark is dropped."""
    peer.engine.begin_at((1,), MARK)
    _, descriptor = made_ring()
    peer.says(MARK, frame(RING, nbytes=RING_BYTES), descriptors=(descriptor,))
    assert peer.payload(len(MARK)) == MARK
    assert peer.hears()[::2][:2] == (RING_IS, 1)


def test_large_messages_go_through_the_ring_once_it_is_accepted(two: Two) -> None:
    exchange(two, 10)
    assert (two.a.ways(), two.b.ways()) == ({1: "unix"}, {0: "unix"})
    for count in (LARGE, LARGE, RING_BYTES, 3 * RING_BYTES + 7):
        exchange(two, count)
    assert (two.a.ways(), two.b.ways()) == ({1: "ring"}, {0: "unix"})  # a way of each direction
    two.a.drain(1)
    assert two.a.traffic()[1][0] == two.b.traffic()[0][1]  # sent as received
    assert two.a.traffic()[1][1] == two.b.traffic()[0][0]


def test_full_rings_of_both_directions_do_not_wait_for_each_other(two: Two) -> None:
    sent, got = torch.arange(8 * RING_BYTES, dtype=torch.float32), torch.zeros(2, 8 * RING_BYTES)
    for _ in range(2):
        got.zero_()
        ends = two.run(
            lambda: send(two.a, 1, 7, sent, SECONDS),
            lambda: send(two.b, 0, 7, sent, SECONDS),
            lambda: recv(two.a, 1, 7, got[0], SECONDS),
            lambda: recv(two.b, 0, 7, got[1], SECONDS),
        )
        assert [end[0] for end in ends] == [DONE] * 4
        assert torch.equal(got[0], sent)
        assert torch.equal(got[1], sent)


def test_messages_keep_their_order_whichever_way_they_go(two: Two) -> None:
    exchange(two, LARGE)
    sizes = [1, LARGE, 2, 3, 400_000, 5, LARGE, 6]
    sent = [torch.full((size,), float(place)) for place, size in enumerate(sizes)]
    got = [torch.zeros(size) for size in sizes]
    sends = [start_send(two.a, 1, 7, one) for one in sent]
    receives = [start_recv(two.b, 0, 7, one) for one in got]
    ends = two.run(
        lambda: [two.a.wait(number, SECONDS)[0] for number in sends],
        lambda: [two.b.wait(number, SECONDS)[0] for number in receives],
    )
    assert ends == [[DONE] * len(sizes)] * 2
    assert all(torch.equal(a, b) for a, b in zip(sent, got, strict=True))


def test_memory_is_the_callers_in_the_middle_of_a_payload_in_the_ring(two: Two) -> None:
    exchange(two, LARGE)
    count = 4 * RING_BYTES
    ours, theirs, kept = torch.ones(count), torch.zeros(count), torch.zeros(count)
    receive = start_recv(two.b, 0, 7, theirs)
    two.a.drain(1)
    number = start_send(two.a, 1, 7, ours)  # the ring is full of it
    two.b.drain(0)
    two.b.withdraw(receive)
    two.a.withdraw(number)
    theirs.fill_(7.0)
    ours.fill_(8.0)
    assert recv(two.b, 0, 7, kept, SECONDS)[0] == DONE  # the guard writes it
    assert kept.sum() == count
    assert theirs.sum() == 7 * count


def test_what_was_sent_through_the_ring_arrives_after_an_orderly_end(two: Two) -> None:
    exchange(two, LARGE)
    count = 5 * RING_BYTES
    got, ours = torch.zeros(count), torch.ones(count)
    number = start_recv(two.b, 0, 7, got)
    two.a.drain(1)
    start_send(two.a, 1, 7, ours)
    two.a.bye(False)
    two.a.end(True)

    def lingers() -> None:
        until = time.monotonic() + SECONDS
        while not two.a.linger():
            assert time.monotonic() < until

    ends = two.run(lingers, lambda: two.b.wait(number, SECONDS))
    assert ends[1][0] == DONE
    assert got.sum() == count
    two.a.shut(())
    while two.b.drain(0):
        pass
    assert [event[0] for event in events_of(two.b)] == [BYE, LANE_ENDED]


def test_a_peer_that_declines_gets_all_on_the_socket(peer: Peer) -> None:
    for seq in range(3):
        peer.posts(seq, 1 << 20)
        peer.engine.start((False, False, 1, 7, int(Mode.OBJECT), 0, 20_000, b"x" * 20_000, None))
        if seq == 0:
            peer.is_offered()
            peer.says(frame(RING_IS, flags=0))
        assert peer.hears()[0] == Kind.DATA
        assert peer.payload(20_000) == b"x" * 20_000
    assert peer.engine.ways() == {1: "unix"}


def test_a_ring_is_filled_as_far_as_there_is_room(peer: Peer) -> None:
    peer.posts(1, 20_000)
    peer.engine.start((False, False, 1, 7, int(Mode.OBJECT), 0, 20_000, b"x" * 20_000, None))
    ring = peer.is_offered()
    assert (peer.hears()[0], peer.payload(20_000)) == (Kind.DATA, b"x" * 20_000)
    peer.says(frame(RING_IS, flags=1))
    payload = os.urandom(3 * RING_BYTES)
    peer.posts(2, len(payload))
    peer.engine.start((False, False, 1, 7, int(Mode.OBJECT), 0, len(payload), payload, None))
    assert peer.hears()[0] == Kind.DATA | THROUGH_RING
    came = b""
    while len(came) < len(payload):
        kind, *_, nbytes = peer.hears()
        assert kind == CHUNK
        at = len(came) % RING_BYTES
        came += (ring[at : at + nbytes] + ring[: max(0, at + nbytes - RING_BYTES)])[:nbytes]
        peer.says(frame(READ, nbytes=nbytes))
    assert came == payload
    assert peer.engine.ways() == {1: "ring"}


def _offered_and(accepted: bool) -> Callable[[Peer], None]:
    def play(peer: Peer) -> None:
        peer.posts(1, 20_000)
        peer.engine.start((False, False, 1, 7, int(Mode.OBJECT), 0, 20_000, b"x" * 20_000, None))
        peer.is_offered()
        if accepted:
            peer.says(frame(RING_IS, flags=1))

    return play


def _ring_taken(peer: Peer) -> None:
    peer.offers()


def _payload_begun(peer: Peer) -> None:
    """Begin with a payload through our ring."""
    peer.offers()
    got = torch.zeros(LARGE)
    peer.got = got  # type: ignore[attr-defined]
    start_recv(peer.engine, 1, 7, got)
    seq = peer.hears()[3]
    peer.says(frame(Kind.DATA | THROUGH_RING, CODES[got.dtype], 0, seq, 7, got.nbytes))


def _nothing(_: Peer) -> None:
    pass


LIES = {
    "an answer to no offer": (_nothing, frame(RING_IS, flags=1)),
    "a second answer": (_offered_and(True), frame(RING_IS, flags=1)),
    "room in no ring": (_nothing, frame(READ, nbytes=1)),
    "room in a ring that is not accepted": (_offered_and(False), frame(READ, nbytes=1)),
    "more room than the ring has": (_offered_and(True), frame(READ, nbytes=1)),
    "all room there is": (_offered_and(True), frame(READ, nbytes=(1 << 64) - 1)),
    "no room": (_offered_and(True), frame(READ)),
    "a chunk of no payload": (_ring_taken, frame(CHUNK, nbytes=1)),
    "a chunk without a ring": (_nothing, frame(CHUNK, nbytes=1)),
    "an empty chunk": (_payload_begun, frame(CHUNK)),
    "a chunk beyond the payload": (_payload_begun, frame(CHUNK, nbytes=4 * LARGE + 1)),
    "a chunk beyond all": (_payload_begun, frame(CHUNK, nbytes=(1 << 64) - 1)),
    "a frame within a payload": (_payload_begun, frame(Kind.CANCEL, seq=1, key=7)),
    "a payload through no ring": (_nothing, frame(Kind.VALUE | THROUGH_RING, flags=1, nbytes=8)),
    "a frame without a payload through the ring": (_ring_taken, frame(Kind.POST | THROUGH_RING, nbytes=8)),
    "an empty payload through the ring": (_ring_taken, frame(Kind.VALUE | THROUGH_RING)),
    "a second ring": (_ring_taken, frame(RING, nbytes=RING_BYTES)),
    "a kind of lanes that is none": (_nothing, frame(READ + 1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_shared_memory_is_a_protocol_error(peer: Peer, lie: str) -> None:
    play, lies = LIES[lie]
    play(peer)
    peer.says(lies)
    assert peer.is_lost()


def test_more_than_the_ring_holds_is_a_protocol_error(peer: Peer) -> None:
    peer.offers()
    got = torch.zeros(RING_BYTES)  # four rings
    start_recv(peer.engine, 1, 7, got)
    seq = peer.hears()[3]
    peer.says(frame(Kind.DATA | THROUGH_RING, CODES[got.dtype], 0, seq, 7, got.nbytes))
    peer.says(frame(CHUNK, nbytes=RING_BYTES))
    assert peer.hears()[::5] == (READ, RING_BYTES)
    peer.says(frame(CHUNK, nbytes=100), frame(CHUNK, nbytes=RING_BYTES - 99))
    assert peer.is_lost()


def _not_sealed() -> int:
    return made_ring(seals=0)[1]


def _writable_for_all() -> int:
    return made_ring(seals=0x1 | 0x2 | 0x4)[1]


def _shorter() -> int:
    return made_ring(RING_BYTES // 2)[1]


def _with_holes() -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, RING_BYTES)
    fcntl.fcntl(descriptor, F_ADD_SEALS, SEALS)
    return descriptor


def _a_file() -> int:
    return os.open(__file__, os.O_RDONLY)


@pytest.mark.parametrize("trick", [_not_sealed, _writable_for_all, _shorter, _with_holes, _a_file])
def test_memory_that_may_go_away_is_a_protocol_error(peer: Peer, trick: Callable[[], int]) -> None:
    before = open_numbers()
    peer.says(frame(RING, nbytes=RING_BYTES), descriptors=(trick(),))
    assert peer.is_lost()
    assert open_numbers() == before


def test_a_ring_of_another_version_is_declined(peer: Peer) -> None:
    peer.says(frame(RING, nbytes=2 * RING_BYTES), descriptors=(made_ring(2 * RING_BYTES)[1],))
    assert peer.hears()[::2][:2] == (RING_IS, 0)


def test_descriptors_that_nobody_asked_for_are_closed(peer: Peer) -> None:
    before = open_numbers()
    for _ in range(20):
        peer.says(frame(Kind.ANY_DONE), descriptors=tuple(os.dup(0) for _ in range(10)))
    assert len(open_numbers()) <= len(before) + 1  # one may wait for its frame
    peer.engine.end(False)
    assert open_numbers() == before


def test_a_payload_that_changes_while_it_is_read_arrives_as_it_is(peer: Peer) -> None:
    ring = peer.offers()
    over = threading.Event()

    def scribble() -> None:
        while not over.is_set():
            ring[:] = os.urandom(1) * RING_BYTES

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        for _ in range(50):
            got = torch.zeros(RING_BYTES // 4)
            number = start_recv(peer.engine, 1, 7, got)
            kind = READ
            while kind != Kind.POST:
                kind, _, _, seq, *_ = peer.hears()
            peer.says(frame(Kind.DATA | THROUGH_RING, CODES[got.dtype], 0, seq, 7, got.nbytes))
            peer.says(*[frame(CHUNK, nbytes=RING_BYTES // 4)] * 4)
            assert peer.engine.outcome(number)[0] == DONE
            peer.engine.take(number)
    finally:
        over.set()
        scribbler.join()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Within the block none is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_numbers()) + 4, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_all_goes_on_the_socket(native: ModuleType, two: Two) -> None:
    with no_descriptors():
        exchange(two, LARGE)
        exchange(two, LARGE)
    assert two.a.ways() == {1: "unix"}
    assert native.shared_memory_error() == errno.EMFILE


def test_a_ring_that_cannot_be_taken_is_declined(peer: Peer) -> None:
    _, descriptor = made_ring()
    socket.send_fds(peer.sock, [frame(RING, nbytes=RING_BYTES)], [descriptor])
    os.close(descriptor)
    with no_descriptors():
        peer.engine.drain(1)
    assert peer.hears()[::2][:2] == (RING_IS, 0)


def test_what_a_peer_said_is_read_though_nothing_can_be_written_to_it(peer: Peer) -> None:
    peer.sock.sendall(frame(Kind.BYE))
    peer.sock.close()
    start_send(peer.engine, 1, 7, torch.zeros(1))
    start_recv(peer.engine, 1, 8, torch.zeros(1))  # EPIPE
    while peer.engine.drain(1):
        pass
    assert [event[0] for event in events_of(peer.engine)] == [BYE, LANE_ENDED]


PAIR = """
import os, socket, sys, torch
from multiworld.engine import library
ours, theirs = socket.socketpair()
child = os.fork()
rank = 1 if child else 0
(theirs if child else ours).close()
sock = ours if child else theirs
engine = library.module().Engine(rank, {1 - rank: sock.detach()}, 1 << 20)
data = torch.ones(1_000_000)
for turn in range(4):
    number = engine.start((turn % 2 == rank, False, 1 - rank, 7, 0, 7, data.nbytes, data.data_ptr(), None))
    engine.wait(number, 60.0)
    engine.take(number)
number = engine.start((True, False, 1 - rank, 7, 0, 7, data.nbytes, data.data_ptr(), None))
if child:
    forked = os.fork()
    if not forked:
        maps = open("/proc/self/maps").read()
        print(child, "in a fork" if "memfd:multiworld" in maps else "", flush=True)
        os._exit(0)
    os.waitpid(forked, 0)
engine.wait(number, 600.0)
"""


def _users_of_rings() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if "memfd:multiworld" in (process / "maps").read_text():
                found.add(int(process.name))
    return found


def test_nothing_is_left_of_a_ring_whose_processes_were_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PAIR], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, *kept = parent.stdout.readline().split(maxsplit=1)
    assert not "".join(kept).strip()  # a fork has none of it
    pair = {parent.pid, int(child)}
    assert pair <= _users_of_rings()
    for process in pair:
        os.kill(process, signal.SIGKILL)
    parent.wait(SECONDS)
    until = time.monotonic() + SECONDS
    while pair & _users_of_rings():
        assert time.monotonic() < until
        time.sleep(0.01)
