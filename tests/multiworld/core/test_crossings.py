"""Messages that cross on their way: offers and posts, messages and withdrawals, ends and cancellations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engines import Network, Traffic
from hypothesis import given, settings
from hypothesis import strategies as st
from table import members

from multiworld import P2P, PeerLost
from multiworld.operations import p2p
from tests.multiworld.engine.reference.frames import Kind


@pytest.fixture
def table() -> Iterator[Network]:
    net = Network(3)
    yield net
    assert not net.failures()


def offered(table: Network) -> tuple[Any, torch.Tensor]:
    """Rank 0 waits for anybody; rank 1 has offered it a 1.0, and the offer is not read yet."""
    receive, got = table.recv(0, None)
    for peer in (1, 2):
        table.move(peer, 0)
    table.send(1, 1.0)
    return receive, got


def test_a_specific_receive_does_not_take_what_is_offered_to_any(table: Network) -> None:
    waiting, first = offered(table)
    specific, second = table.recv(0, 1)
    table.move(0, 1)
    late = table.send(2, 2.0)
    table.move_until(lambda: waiting.done)
    assert (waiting.result(), first.item()) == (1, 1.0)
    assert not specific.done
    table.send(1, 3.0)
    table.move_until(lambda: specific.done)
    assert second.item() == 3.0
    again, third = table.recv(0, None)
    table.move_until(lambda: again.done and late.done)
    assert (again.result(), third.item()) == (2, 2.0)


def test_what_is_behind_an_offered_message_keeps_its_place(table: Network) -> None:
    waiting, first = offered(table)
    table.send(1, 2.0)
    specific, second = table.recv(0, 1)
    table.move_until(lambda: waiting.done and specific.done)
    assert (first.item(), second.item()) == (1.0, 2.0)


def test_an_offer_is_made_to_one_of_several_receives_only(table: Network) -> None:
    """The message that the first of them takes was offered to the second too, which then waited for that peer only."""
    first, _ = offered(table)
    second, got = table.recv(0, None)
    table.move_until(lambda: first.done)
    specific, _ = table.recv(2, 1)  # a message behind all that rank 1 has to say
    table.send(1, 9.0, 2)
    table.move_until(lambda: specific.done)
    for _ in range(3):
        table.move(0, 1)
    table.send(2, 2.0)
    table.move_until(lambda: second.done)
    assert (second.result(), got.item()) == (2, 2.0)


def test_a_withdrawn_receive_frees_what_was_offered_to_it(table: Network) -> None:
    waiting, _ = offered(table)
    specific, got = table.recv(0, 1)
    table.move(1, 0)
    table.withdraw(waiting)
    table.move_until(lambda: specific.done)
    assert got.item() == 1.0


def test_a_specific_receive_can_be_withdrawn_behind_an_offer(table: Network) -> None:
    waiting, got = offered(table)
    specific, _ = table.recv(0, 1)
    table.withdraw(specific)
    table.move_until(lambda: waiting.done)
    assert (waiting.result(), got.item()) == (1, 1.0)
    again, second = table.recv(0, 1)
    table.send(1, 2.0)
    table.move_until(lambda: again.done)
    assert second.item() == 2.0


def next_message(table: Network) -> float:
    """Receive the next message of rank 1 at rank 0."""
    receive, got = table.recv(0, 1)
    table.move_until(lambda: receive.done)
    return got.item()


def blocked(table: Network) -> tuple[Any, torch.Tensor]:
    """As ``offered``, and the offer is read, but the answer waits for a withdrawn receive to be settled."""
    waiting, got = offered(table)
    specific, _ = table.recv(0, 1)
    table.withdraw(specific)
    before = table.members[0].wires[1].sent
    table.move(0, 1)
    assert table.members[0].wires[1].sent == before, "it is posted already"
    return waiting, got


def test_an_answer_that_is_withdrawn_before_it_is_sent_frees_the_offer(table: Network) -> None:
    waiting, _ = blocked(table)
    table.withdraw(waiting)
    assert next_message(table) == 1.0


def test_an_answer_that_is_served_from_a_kept_message_frees_the_offer(table: Network) -> None:
    earlier, _ = table.recv(0, 1)
    table.send(1, 0.5)
    table.move_until(lambda: earlier.done)
    waiting, got = blocked(table)
    table.withdraw(earlier)
    assert waiting.done
    assert got.item() == 0.5
    assert next_message(table) == 1.0


def test_an_answered_offer_can_be_withdrawn_and_the_message_is_kept(table: Network) -> None:
    waiting, _ = offered(table)
    table.move(0, 1)
    table.withdraw(waiting)
    assert next_message(table) == 1.0


def test_a_send_that_is_withdrawn_while_it_is_offered_is_not_sent_later(table: Network) -> None:
    receive, _ = table.recv(0, None)
    table.move(1, 0)
    sent = table.send(1, 1.0)
    table.withdraw(sent)
    table.withdraw(receive)
    table.move(1, 0)
    assert not table.members[1].native.needs(0)
    table.send(1, 2.0)
    specific, got = table.recv(0, 1)
    table.move_until(lambda: specific.done)
    assert got.item() == 2.0


def test_an_offered_message_that_does_not_fit_is_an_error_on_both_sides(table: Network) -> None:
    receive, _ = table.recv(0, None)
    table.move(1, 0)
    sent = table.start(1, p2p.send, torch.ones(5), 0, 0)
    specific, got = table.recv(0, 1)
    table.send(1, 2.0)
    table.move_until(lambda: receive.done and sent.done and specific.done)
    assert not receive.succeeded
    assert not sent.succeeded
    assert got.item() == 2.0


@settings(max_examples=100, deadline=None)
@given(draw=st.randoms(use_true_random=False), withdrawals=st.booleans(), acts=st.integers(5, 120))
def test_nothing_starves_or_overtakes_whatever_crosses(draw: random.Random, withdrawals: bool, acts: int) -> None:
    net = Network(3)
    traffic = Traffic(net, draw, withdrawals)
    for _ in range(acts):
        traffic.act()
    traffic.finish()
    traffic.check()
    assert not net.failures()


def test_messages_of_withdrawn_receives_are_put_back_in_their_order(table: Network) -> None:
    batch = table.start(0, p2p.batch_p2p, [P2P("recv", torch.zeros(1), 1) for _ in range(3)])
    sent = [table.send(1, 1.0), table.send(1, 2.0)]
    table.move_until(lambda: all(one.done for one in sent))
    table.settle()
    assert not batch.done
    table.withdraw(batch)
    assert [next_message(table), next_message(table)] == [1.0, 2.0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_the_withdrawals_does_not_matter(table: Network, order: tuple[int, ...]) -> None:
    waiting = [table.recv(0, 1)[0] for _ in range(3)]
    for value in (1.0, 2.0, 3.0):
        table.send(1, value)
    table.move_until(lambda: all(one.done for one in waiting))
    for _ in range(2):  # taken from what is kept and put back once more
        for place in order:
            table.withdraw(waiting[place])
        again = [table.recv(0, 1) for _ in range(3)]
        assert [got.item() for _, got in again] == [1.0, 2.0, 3.0]
        waiting = [one for one, _ in again]


def test_a_message_that_is_put_back_goes_to_a_receive_that_waits(table: Network) -> None:
    """Its sender may have nothing more to send; and what it has sent meanwhile goes to the next receive."""
    (cancelled, _), (second, got) = table.recv(0, 1), table.recv(0, 1)
    table.send(1, 1.0)
    table.move_until(lambda: cancelled.done)
    later = table.send(1, 2.0)
    table.move_until(lambda: later.done, (1, 0))
    table.withdraw(cancelled)
    assert second.done
    assert got.item() == 1.0
    assert next_message(table) == 2.0


def test_a_message_under_way_to_a_withdrawn_receive_goes_to_the_next(table: Network) -> None:
    (cancelled, _), (second, got) = table.recv(0, 1), table.recv(0, 1)
    table.send(1, 1.0)
    table.withdraw(cancelled)
    table.move_until(lambda: second.done)
    assert got.item() == 1.0


def test_a_wait_that_is_cancelled_when_its_world_ends_is_cancelled(store: str) -> None:
    with members(store, 2) as (worlds, _):

        async def main() -> list[Any]:
            tasks = [asyncio.create_task(worlds[0].recv(torch.zeros(1), src, tag=5)) for src in (None, 1)]
            await asyncio.sleep(0)
            worlds[0].abort("done")
            for task in tasks:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(one) for one in asyncio.run(asyncio.wait_for(main(), 20))] == [asyncio.CancelledError] * 2


def test_a_receive_from_anybody_fails_at_once_when_nobody_is_left() -> None:
    net = Network(3)
    for other in (1, 2):
        net.members[other].wires[0].put(Kind.BYE)
    net.settle()
    assert net.members[0].departures == [1, 2]
    receive, _ = net.recv(0, None)
    with pytest.raises(PeerLost, match="left the world"):
        receive.result()


def test_a_receive_from_anybody_takes_what_was_sent_before_all_left() -> None:
    net = Network(2)
    withdrawn, _ = net.recv(0, 1)
    net.send(1, 4.0)
    net.move_until(lambda: withdrawn.done)
    net.withdraw(withdrawn)
    net.members[1].wires[0].put(Kind.BYE)
    net.settle()
    taken, got = net.recv(0, None)
    assert (taken.result(), got.item()) == (1, 4.0)
    with pytest.raises(PeerLost):
        net.recv(0, None)[0].result()
