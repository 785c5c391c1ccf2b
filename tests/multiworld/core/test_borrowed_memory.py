"""After an operation returned or raised, the caller's memory is the caller's: nothing reads it, nothing writes it.

Transfers are stopped at every step they have: two members live in one process, and each byte moves when the test says.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from engines import Network
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld import WorldClosed
from multiworld.matching.operation import Operation
from multiworld.operations import collectives, p2p
from multiworld.operations.p2p import P2P
from tests.multiworld.engine.reference.frames import Kind

COUNT = 60_000  # float32: many times what the sockets below hold
ORIGINAL, CANARY, NEXT = 1.0, 7.0, 2.0


@dataclass
class Call:
    """An operation under way and the memory that its caller lent."""

    operation: Operation
    memory: torch.Tensor
    withdrawn: bool = False

    def withdraw(self) -> None:
        """Stop waiting, as a cancelled await does, and use the memory for something else at once."""
        if not self.withdrawn and not self.operation.done:
            self.operation.withdraw()
            self.withdrawn = True
            self.memory.fill_(CANARY)

    def check(self) -> None:
        """Check that memory that was returned is as the caller left it."""
        assert not self.withdrawn or bool((self.memory == CANARY).all()), "written to, after its caller had gone"


@dataclass
class Pair:
    """Two members whose streams take little at a time."""

    net: Network = field(default_factory=lambda: Network(2, capacity=16_384))
    calls: list[Call] = field(default_factory=list)

    def start(self, rank: int, starter: Callable[..., Operation], memory: torch.Tensor, *args: Any) -> Call:
        """Start an operation on ``memory``."""
        call = Call(self.net.start(rank, starter, memory, *args), memory)
        self.calls.append(call)
        return call

    def flush(self, rank: int) -> None:
        """Let ``rank`` write what its stream takes."""
        self.net.members[rank].flush()
        self.net.look()

    def pump(self, rank: int) -> None:
        """Let ``rank`` read what has come."""
        self.net.members[rank].pump(1 - rank)
        self.net.look()

    def step(self, number: int) -> None:
        """One of the four things that can happen next."""
        (self.flush, self.pump)[number % 2](number // 2 % 2)

    def finish(self) -> None:
        """Move everything that is on its way."""
        self.net.settle()
        assert not self.net.failures()


@pytest.fixture(autouse=True, scope="module")
def in_one_thread() -> Iterator[None]:
    """Comparing some thousand small tensors with torch's pool takes minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def without_shared_memory() -> Iterator[None]:
    """Through a ring a payload goes in a few steps; here it takes many."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def original() -> torch.Tensor:
    return torch.full((COUNT,), ORIGINAL)


def batch_of(kind: str) -> Callable[..., Operation]:
    """A starter of a batch of one."""

    def start(engine: Any, group: Any, tensor: torch.Tensor, peer: int) -> Operation:
        return p2p.batch_p2p(engine, group, [P2P(kind, tensor, peer)])  # type: ignore[arg-type]

    return start


SENDERS: dict[str, Callable[[Pair, torch.Tensor], Call]] = {
    "send": lambda pair, memory: pair.start(0, p2p.send, memory, 1, 0),
    "batch": lambda pair, memory: pair.start(0, batch_of("send"), memory, 1),
}
RECEIVERS: dict[str, Callable[[Pair, torch.Tensor], Call]] = {
    "recv": lambda pair, memory: pair.start(1, p2p.recv, memory, 0, 0),
    "recv_any": lambda pair, memory: pair.start(1, p2p.recv, memory, None, 0),
    "batch": lambda pair, memory: pair.start(1, batch_of("recv"), memory, 0),
}


def transfer(pair: Pair, sender: str, receiver: str, withdraw: Callable[[int, Call, Call], bool]) -> None:
    """One message, its operations withdrawn when told to; whatever happens, messages stay whole and memory unharmed."""
    sending, receiving = SENDERS[sender](pair, original()), RECEIVERS[receiver](pair, torch.zeros(COUNT))
    for number in range(1_000):
        if withdraw(number, sending, receiving) or (sending.operation.done and receiving.operation.done):
            break
        pair.step(number)
    pair.finish()
    with contextlib.suppress(StopIteration):
        conclude(pair, sending, receiving)
    for call in pair.calls:
        call.check()
    pair.calls.clear()


def conclude(pair: Pair, sending: Call, receiving: Call) -> None:
    """Give whatever is left alone a counterpart, and look at what arrived."""
    if not receiving.withdrawn and not receiving.operation.done:  # the send was withdrawn in time
        assert sending.withdrawn
        SENDERS["send"](pair, torch.full((COUNT,), NEXT))
        pair.finish()
    elif receiving.withdrawn:
        again = RECEIVERS["recv"](pair, torch.zeros(COUNT))
        pair.finish()
        if not again.operation.done:  # both were withdrawn, and nothing was sent
            assert sending.withdrawn
            SENDERS["send"](pair, torch.full((COUNT,), NEXT))
            pair.finish()
        receiving = again
    assert receiving.operation.done
    expected = {ORIGINAL, NEXT} if sending.withdrawn else {ORIGINAL}
    assert receiving.memory[0].item() in expected
    assert bool((receiving.memory == receiving.memory[0]).all()), "a message of two halves"


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("who", ["sender", "receiver", "both"])
def test_withdrawn_at_every_step(pair: Pair, sender: str, receiver: str, who: str) -> None:
    steps = 0
    while True:
        reached = False

        def withdraw(number: int, sending: Call, receiving: Call) -> bool:
            nonlocal reached
            if number != steps:  # noqa: B023 - called within this turn
                return False
            reached = True
            for call in {"sender": [sending], "receiver": [receiving], "both": [sending, receiving]}[who]:
                call.withdraw()
            return True

        transfer(pair, sender, receiver, withdraw)
        if not reached:
            break
        steps += 1
    assert steps > 10, "the transfer was over before it could be withdrawn in the middle"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SENDERS)), st.sampled_from(sorted(RECEIVERS)), st.integers(0, 60), st.integers(0, 60))
def test_withdrawn_one_after_the_other(sender: str, receiver: str, first: int, second: int) -> None:
    pair = Pair()

    def withdraw(number: int, sending: Call, receiving: Call) -> bool:
        if number == first:
            sending.withdraw()
        if number == second:
            receiving.withdraw()
        return number >= max(first, second)

    transfer(pair, sender, receiver, withdraw)


def all_reduce(pair: Pair, rank: int, value: float) -> Call:
    return pair.start(rank, collectives.all_reduce, torch.full((COUNT,), value), torch.distributed.ReduceOp.SUM)


@pytest.mark.parametrize("who", [0, 1])
def test_a_collective_withdrawn_at_every_step(pair: Pair, who: int) -> None:
    """It goes on without its caller, with copies: the other member gets the right sum."""
    for steps in range(60):
        calls = [all_reduce(pair, rank, ORIGINAL + rank) for rank in (who, 1 - who)]
        for number in range(steps):
            pair.step(number)
        calls[0].withdraw()
        pair.finish()
        assert calls[1].operation.done
        assert bool((calls[1].memory == 2 * ORIGINAL + 1).all())
        for call in pair.calls:
            call.check()
        pair.calls.clear()


def test_a_collective_withdrawn_before_the_other_calls_it(pair: Pair) -> None:
    first = all_reduce(pair, 0, ORIGINAL)
    first.withdraw()
    second = all_reduce(pair, 1, ORIGINAL)
    pair.finish()
    assert bool((second.memory == 2 * ORIGINAL).all())
    first.check()
    pair.calls.clear()


def test_the_receivers_storage_may_go_at_once(pair: Pair) -> None:
    """Later bytes must not follow the address to whatever lies there next."""
    sending, receiving = SENDERS["send"](pair, original()), RECEIVERS["recv"](pair, torch.zeros(COUNT))
    for number in range(12):
        pair.step(number)
    assert not receiving.operation.done
    receiving.withdraw()
    address = receiving.memory.data_ptr()
    receiving.memory.untyped_storage().resize_(0)
    others = [torch.zeros(COUNT) for _ in range(50)]
    pair.finish()
    assert all(not other.any() for other in others), address
    assert sending.operation.done
    pair.calls.clear()
    transfer_rest = RECEIVERS["recv"](pair, torch.zeros(COUNT))
    pair.finish()
    assert bool((transfer_rest.memory == ORIGINAL).all())
    pair.calls.clear()


def test_a_batch_that_fails_gives_its_parts_memory_back_before_its_waiter_is_woken(pair: Pair) -> None:
    received = torch.zeros(COUNT)
    receive = pair.start(1, p2p.recv, received, 0, 0)
    pair.pump(0)
    batch = SENDERS["batch"](pair, original())
    assert not batch.operation.done
    assert pair.net.members[0].native.flush(), "all of it is out"
    pair.net.members[0].bridge.stop(orderly=True)  # as ``leave`` does; then all that waits fails, the batch first
    batch.operation.fail(WorldClosed("w", "left"))
    batch.memory.fill_(CANARY)
    pair.finish()
    assert receive.operation.done
    assert torch.equal(received, original())


def test_a_cancelled_send_is_no_reason_to_break_when_its_peer_leaves() -> None:
    """It went on only because the peer counted on it; the third member has nothing to do with that."""
    net = Network(3, capacity=16_384)
    memory = original()
    sending = net.start(0, p2p.send, memory, 1, 0)
    net.start(1, p2p.recv, torch.zeros(COUNT), 0, 0)
    net.members[0].pump(1)
    assert "take the payload" in sending.waiting_for()
    assert not sending.done
    net.withdraw(sending)
    net.members[1].wires[0].put(Kind.BYE)
    net.members[0].pump(1)
    assert net.members[0].departures == [1]
    assert not net.failures()
