"""What crosses on its way: offers and posts, messages and withdrawals, ends and cancellations."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from procs import wait_until
from table import SOON, Table, Traffic, members

from multiworld import P2P, PeerLost, WorldState
from multiworld.ops import p2p


@pytest.fixture
def table(store: str) -> Iterator[Table]:
    with members(store, 3) as (worlds, _):
        yield Table(worlds)
        assert all(world.state is WorldState.ACTIVE for world in worlds)


def offered(table: Table) -> tuple[Any, torch.Tensor]:
    """Rank 0 waits for anybody; rank 1 has offered it a 1.0, and the offer is not read yet."""
    receive, got = table.recv(0, None)
    table.move_until(lambda: table.asked(1) and table.asked(2), (1, 0), (2, 0))
    table.send(1, 1.0)
    return receive, got


def test_a_specific_receive_does_not_take_what_is_offered_to_any(table: Table) -> None:
    waiting, first = offered(table)
    specific, second = table.recv(0, 1)
    table.move_until(lambda: waiting.chosen is not None, (0, 1))
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


def test_what_is_behind_an_offered_message_keeps_its_place(table: Table) -> None:
    waiting, first = offered(table)
    table.send(1, 2.0)
    specific, second = table.recv(0, 1)
    table.move_until(lambda: waiting.done and specific.done)
    assert (first.item(), second.item()) == (1.0, 2.0)


def test_an_offer_is_made_to_one_of_several_receives_only(table: Table) -> None:
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


def test_a_withdrawn_receive_frees_what_was_offered_to_it(table: Table) -> None:
    waiting, _ = offered(table)
    specific, got = table.recv(0, 1)
    table.move_until(lambda: bool(table.worlds[1]._current.engine.boxes[0].posts), (1, 0))
    table.withdraw(waiting)
    table.move_until(lambda: specific.done)
    assert got.item() == 1.0


def test_a_specific_receive_can_be_withdrawn_behind_an_offer(table: Table) -> None:
    waiting, got = offered(table)
    specific, _ = table.recv(0, 1)
    table.withdraw(specific)
    table.move_until(lambda: waiting.done)
    assert (waiting.result(), got.item()) == (1, 1.0)
    again, second = table.recv(0, 1)
    table.send(1, 2.0)
    table.move_until(lambda: again.done)
    assert second.item() == 2.0


def next_message(table: Table) -> float:
    """What rank 0 receives from rank 1 next."""
    receive, got = table.recv(0, 1)
    table.move_until(lambda: receive.done)
    return got.item()


def blocked(table: Table) -> tuple[Any, torch.Tensor]:
    """As ``offered``, and the offer is read, but the answer waits for a withdrawn receive to be settled."""
    waiting, got = offered(table)
    specific, _ = table.recv(0, 1)
    table.withdraw(specific)
    table.move_until(lambda: waiting.chosen is not None, (0, 1))
    assert waiting.chosen.seq < 0, "it is posted already"
    return waiting, got


def test_an_answer_that_is_withdrawn_before_it_is_sent_frees_the_offer(table: Table) -> None:
    waiting, _ = blocked(table)
    table.withdraw(waiting)
    assert next_message(table) == 1.0


def test_an_answer_that_is_served_from_a_kept_message_frees_the_offer(table: Table) -> None:
    earlier, _ = table.recv(0, 1)
    table.send(1, 0.5)
    table.move_until(lambda: earlier.done)
    waiting, got = blocked(table)
    table.withdraw(earlier)
    assert waiting.done
    assert got.item() == 0.5
    assert next_message(table) == 1.0


def test_an_answered_offer_can_be_withdrawn_and_the_message_is_kept(table: Table) -> None:
    waiting, _ = offered(table)
    table.move_until(lambda: waiting.chosen is not None, (0, 1))
    table.withdraw(waiting)
    assert next_message(table) == 1.0


def test_a_send_that_is_withdrawn_while_it_is_offered_is_not_sent_later(table: Table) -> None:
    receive, _ = table.recv(0, None)
    table.move_until(lambda: table.asked(1), (1, 0))
    sent = table.send(1, 1.0)
    table.withdraw(sent)
    table.withdraw(receive)
    session = table.worlds[1]._current
    table.move_until(lambda: not table.asked(1), (1, 0))
    assert sent not in session.engine.operations
    table.send(1, 2.0)
    specific, got = table.recv(0, 1)
    table.move_until(lambda: specific.done)
    assert got.item() == 2.0


def test_an_offered_message_that_does_not_fit_is_an_error_on_both_sides(table: Table) -> None:
    receive, _ = table.recv(0, None)
    table.move_until(lambda: table.asked(1), (1, 0))
    world = table.worlds[1]
    sent = p2p.send(world._current.engine, world, torch.ones(5), 0, 0)
    specific, got = table.recv(0, 1)
    table.send(1, 2.0)
    table.move_until(lambda: receive.done and sent.done and specific.done)
    assert not receive.succeeded
    assert not sent.succeeded
    assert got.item() == 2.0


@pytest.mark.parametrize("withdrawals", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_starves_or_overtakes_whatever_crosses(table: Table, seed: int, withdrawals: bool) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        traffic = Traffic(table, draw, withdrawals)
        for _ in range(draw.randint(5, 40)):
            traffic.act()
        traffic.finish()
        traffic.check()


def test_messages_of_withdrawn_receives_are_put_back_in_their_order(store: str) -> None:
    with members(store, 2) as (worlds, _):

        async def main() -> list[float]:
            table, got = Table(worlds), [torch.zeros(1) for _ in range(3)]
            task = asyncio.create_task(worlds[0].batch_p2p([P2P("recv", one, 1) for one in got]))
            await asyncio.sleep(0)  # it runs up to its wait
            sent = [table.send(1, 1.0), table.send(1, 2.0)]
            table.move_until(lambda: all(one.done for one in sent), (1, 0))
            while got[1].item() != 2.0:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            values = torch.zeros(2, 1)
            for one in values:
                await worlds[0].recv(one, 1)
            return values.flatten().tolist()

        assert asyncio.run(asyncio.wait_for(main(), 20)) == [1.0, 2.0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_the_withdrawals_does_not_matter(table: Table, order: tuple[int, ...]) -> None:
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


def test_a_message_that_is_put_back_goes_to_a_receive_that_waits(table: Table) -> None:
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


def test_a_message_under_way_to_a_withdrawn_receive_goes_to_the_next(table: Table) -> None:
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


def test_a_receive_from_anybody_fails_at_once_when_nobody_is_left(store: str) -> None:
    with members(store, 3) as (worlds, _):
        for other in worlds[1:]:
            other.sync.leave()
        wait_until(lambda: worlds[0].departed == {1, 2}, 5, "it did not hear that the others left")
        started = time.monotonic()
        with pytest.raises(PeerLost, match="left the world"):
            worlds[0].sync.recv(torch.zeros(1))
        assert time.monotonic() - started < SOON


def test_a_receive_from_anybody_takes_what_was_sent_before_all_left(store: str) -> None:
    with members(store, 2) as (worlds, _):
        table, got = Table(worlds), torch.zeros(1)
        withdrawn, _ = table.recv(0, 1)
        table.send(1, 4.0)
        table.move_until(lambda: withdrawn.done)
        table.withdraw(withdrawn)
        worlds[1].sync.leave()
        wait_until(lambda: worlds[0].departed == {1}, 5, "it did not hear that the other left")
        assert worlds[0].sync.recv(got) == 1
        assert got.item() == 4.0
        with pytest.raises(PeerLost):
            worlds[0].sync.recv(got)
