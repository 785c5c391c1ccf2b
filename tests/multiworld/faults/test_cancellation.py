"""Callers that stop waiting: cancelled, timed out, interrupted, forked, gone; at each kind of await."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from multiworld import MultiWorld, PeerLost, WorldState, WrongContext
from multiworld.lab.context import Context
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import ANSWER_SECONDS, AT_ONCE_SECONDS, GONE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.operations import COLLECTIVES, OPERATIONS, POINT_TO_POINT, SMALL, Row, rows
from tests.multiworld.faults.scene import CALM, Scene, lost
from tests.multiworld.procs import process_state

WORLD = "struck"
MIRROR = {
    "send": "recv",
    "recv": "send",
    "send_tensor": "recv_tensor",
    "recv_tensor": "send_tensor",
    "send_object": "recv_object",
    "recv_object": "send_object",
    "batch_p2p": "batch_p2p",
}


def _cancel(scene: Scene, call: Any, target: str) -> None:
    at = time.monotonic()
    call.cancel()
    outcome = call.outcome()
    assert isinstance(outcome.error, asyncio.CancelledError), repr(outcome)
    assert outcome.ended - at < AT_ONCE_SECONDS
    scene.injector.record("cancel", target, at, "CancelledError was raised")


@pytest.mark.parametrize("row", rows(tuple(operation.name for operation in POINT_TO_POINT)), ids=str)
def test_point_to_point(scene: Scene, row: Row) -> None:
    """A cancelled one is withdrawn: the next one is matched, and gets its own data."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    call = a.start(acts.operate, WORLD, row, 1)
    a.wait_for("operating")
    _cancel(scene, call, a.name)
    running = [
        a.start(acts.operate, WORLD, row, 1),
        b.start(acts.operate, WORLD, Row(MIRROR[row.operation], row.count), 0),
    ]
    for each in running:
        each.result()
    scene.works(WORLD, members)


def test_next_receive_may_be_of_another_length(scene: Scene) -> None:
    """A withdrawn receive does not stand in the way of a message that is nothing like it."""
    a, _ = members = scene.workers(2)
    scene.join(WORLD, members)
    call = a.start(acts.operate, WORLD, Row("recv", SMALL), 1)
    a.wait_for("operating")
    _cancel(scene, call, a.name)
    scene.works(WORLD, members)


@pytest.mark.parametrize("row", rows(tuple(operation.name for operation in COLLECTIVES)), ids=str)
def test_collective(scene: Scene, row: Row) -> None:
    """A cancelled one breaks the world, which says why to every member: else the next ones would pair wrongly."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    call = a.start(acts.operate, WORLD, row, 1)
    a.wait_for("operating")
    _cancel(scene, call, a.name)
    told = scene.broken(WORLD, members)  # before that, a part that was sent before the cancellation may still serve
    error = b.start(acts.operate, WORLD, row, 1).outcome().error
    assert isinstance(error, PeerLost), repr(error)
    for failure in (error, *told):
        assert isinstance(failure, PeerLost)
        assert (failure.how, failure.ranks) == ("cancelled", (0,))
        assert "rank 0 cancelled" in failure.what
    scene.everywhere(members, acts.rejoin, WORLD)
    scene.works(WORLD, members)


@pytest.mark.parametrize("row", rows(("all_reduce", "broadcast_object", "barrier")), ids=str)
def test_collective_that_is_to_finish(scene: Scene, row: Row) -> None:
    """It goes on without its caller, who asked for that at join; the next ones pair as ever."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members, on_cancel="finish")
    call = a.start(acts.operate, WORLD, row, 1)
    a.wait_for("operating")
    _cancel(scene, call, a.name)
    b.start(acts.operate, WORLD, row, 1).result()
    scene.works(WORLD, members)
    assert [worker.run(acts.standing, WORLD).state for worker in members] == [WorldState.ACTIVE] * 2


async def cancel_in_the_middle(context: Context, name: str, row: Row, turns: int) -> int:
    """Start the operation and cancel it a little later each time, as its data flows; how often it was too late."""
    world, late = context.mw[name], 0
    for turn in range(turns):
        task = asyncio.ensure_future(OPERATIONS[row.operation].call(world, 0, row.count))
        await asyncio.sleep(turn * 0.0004)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
            late += 1
    context.mark("cancelled")
    return late


async def collective_partner(context: Context, name: str, row: Row, turns: int) -> None:
    """Call the same collective as often."""
    for _ in range(turns):
        await OPERATIONS[row.operation].call(context.mw[name], 0, row.count)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all_single"])
def test_collective_cancelled_while_data_flows(scene: Scene, name: str) -> None:
    a, b = members = scene.workers(2)
    scene.join(WORLD, members, on_cancel="finish")
    row, turns = Row(name, 1 << 18), 25
    running = [a.start(cancel_in_the_middle, WORLD, row, turns), b.start(collective_partner, WORLD, row, turns)]
    at = a.wait_for("cancelled").at
    for each in running:
        each.result()
    scene.injector.record("cancel", a.name, at, f"{turns} cancellations")
    scene.works(WORLD, members)


async def count_up(context: Context, name: str, count: int, length: int) -> None:
    """Send numbered tensors."""
    for number in range(count):
        world = context.mw[name]
        await world.send(acts.filled(world, length, number), 0)


async def receive_with_cancellations(context: Context, name: str, count: int, length: int) -> list[float]:
    """Receive numbered tensors, cancelling again and again; the numbers."""
    world, got = context.mw[name], []
    delay = 0.0
    while len(got) < count:
        tensor = acts.filled(world, length)
        delay = (delay + 0.00017) % 0.004
        try:
            await asyncio.wait_for(world.recv(tensor, 1), delay)
        except asyncio.TimeoutError:
            continue
        tensor = tensor.cpu()
        got.append(float(tensor[0]))
        assert bool((tensor == tensor[0]).all()), "a message of two halves"
    return got


@pytest.mark.parametrize(("count", "length"), [(100, 1 << 10), (100, 1 << 16), (20, 1 << 22)])
def test_no_message_is_lost_by_cancelling(scene: Scene, count: int, length: int) -> None:
    """Nor torn, nor out of order: cancelled before it comes, and in the middle of it."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    receiving = a.start(receive_with_cancellations, WORLD, count, length)
    sending = b.start(count_up, WORLD, count, length)
    assert receiving.result(60) == [float(number) for number in range(count)]
    sending.result()
    scene.injector.record("cancel", a.name, time.monotonic(), "wait_for with short times")
    scene.works(WORLD, members)


def test_cancelled_join(scene: Scene) -> None:
    """The rank is free again: the same process, or another, can take it."""
    a, b = members = scene.workers(2)
    scene.join(CALM, members)
    call = scene.start_join(WORLD, a, 0, 2)
    scene.host.run(acts.await_claims, scene.store, WORLD, (0,))
    _cancel(scene, call, a.name)
    running = [scene.start_join(WORLD, b, 0, 2)]
    deadline = time.monotonic() + 10
    while (outcome := scene.start_join(WORLD, a, 1, 2).outcome()).error is not None:
        assert "joined here already" in str(outcome.error), repr(outcome.error)
        assert time.monotonic() < deadline, "the cancelled join goes on for ever"
    running[0].result()
    scene.works(WORLD, [b, a])
    scene.works(CALM, members)


def test_cancelled_rejoin(scene: Scene) -> None:
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    a.run(acts.abort, WORLD)
    b.run(acts.await_break, WORLD)
    call = a.start(acts.rejoin, WORLD)
    scene.host.run(acts.await_claims, scene.store, WORLD, (0,), 2)
    _cancel(scene, call, a.name)
    running = [worker.start(acts.rejoin, WORLD) for worker in members]
    assert running[0].result(40) == running[1].result(40)
    scene.works(WORLD, members)


async def cancelled_leave(context: Context, name: str) -> None:
    """Leave, and stop waiting for it at once; then leave again."""
    world = context.mw[name]
    task = asyncio.ensure_future(world.leave())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    context.mark("cancelled")
    await world.leave()


def test_cancelled_leave(scene: Scene) -> None:
    """The world is left all the same, in good order."""
    a, b = members = scene.workers(2)
    scene.join(CALM, members)
    scene.join(WORLD, members)
    waiting = b.start(acts.operate, WORLD, Row("recv", SMALL), 0)
    b.wait_for("operating")
    call = a.start(cancelled_leave, WORLD)
    scene.injector.record("cancel", a.name, a.wait_for("cancelled").at, "CancelledError was raised")
    call.result()
    error = waiting.outcome().error
    assert isinstance(error, PeerLost)
    assert error.how == "left"
    scene.works(CALM, members)


async def loop_closed(context: Context, options: dict[str, Any]) -> str:
    """In a thread: an event loop that is closed with a receive pending; then the ``MultiWorld`` is closed."""
    mine = MultiWorld()

    def work() -> None:
        loop = asyncio.new_event_loop()
        world = loop.run_until_complete(mine.join("short-lived", 0, 2, **options))
        task = loop.create_task(world.recv(acts.filled(world, 1), 1))
        loop.call_later(0.05, loop.stop)
        loop.run_forever()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        context.mark("loop closed")

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)
    await mine.close()
    return "closed"


def test_loop_closed_with_operations_pending(scene: Scene) -> None:
    """The process lives, its other worlds too, and what is left can be closed; the peer sees an orderly end."""
    a, b = members = scene.workers(2)
    scene.join(CALM, members)
    call = a.start(loop_closed, scene.options(a))
    scene.start_join("short-lived", b, 1, 2).result()
    mark = a.wait_for("loop closed")
    scene.injector.record("loop closed", a.name, mark.at, "the loop is closed")
    assert call.result() == "closed"
    outcome = b.start(acts.operate, "short-lived", Row("recv", SMALL), 0).outcome()
    assert isinstance(outcome.error, PeerLost), repr(outcome.error)
    scene.works(CALM, members)


def exit_with_pending(context: Context, name: str, kind: str) -> None:
    """End the interpreter with an operation pending in a task or in a thread."""
    world = context.mw[name]
    if kind == "task":
        context.kept["task"] = asyncio.ensure_future(world.recv(acts.filled(world, 1), 1))
        context.kept["other"] = asyncio.ensure_future(world.all_reduce(acts.filled(world, 1 << 20)))
        asyncio.get_running_loop().call_later(0.05, _leave_interpreter)
    else:
        threading.Thread(target=world.sync.recv, args=(acts.filled(world, 1), 1), daemon=True).start()
        asyncio.get_running_loop().call_later(0.2, _leave_interpreter)


def _leave_interpreter() -> None:
    raise SystemExit(5)


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_exit_with_operations_pending(scene: Scene, kind: str) -> None:
    """The process ends by itself, with its own exit code; the peer is told."""
    b, a = scene.workers(2)
    scene.join(WORLD, [a, b])
    waiting = b.start(acts.operate, WORLD, Row("recv", SMALL), 0)
    b.wait_for("operating")
    at = time.monotonic()
    a.start(exit_with_pending, WORLD, kind)
    scene.injector.died(a, "exit", at, 5)
    assert isinstance(waiting.outcome().error, PeerLost)


def interrupted_receive(context: Context, name: str) -> str:
    """A synchronous receive in the main thread, which Ctrl-C interrupts."""
    world = context.mw[name]
    session, tensor = world.member.session, acts.filled(world, SMALL)

    def tell() -> None:
        while not session.engine.operations or process_state(os.getpid()) != "S":
            time.sleep(0.001)
        context.mark("receiving")

    threading.Thread(target=tell, daemon=True).start()
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # Ctrl-C reaches the main thread alone, and the worker's loop runs there
    try:
        world.sync.recv(tensor, 1)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        asyncio._set_running_loop(loop)
    return "received"


def test_keyboard_interrupt_in_synchronous_receive(scene: Scene) -> None:
    """It comes through at once, and the world is as it was."""
    a, _ = members = scene.workers(2)
    scene.join(WORLD, members)
    assert a.run(default_interrupt)
    call = a.start(interrupted_receive, WORLD)
    a.wait_for("receiving")
    at = time.monotonic()
    os.kill(a.pid, signal.SIGINT)
    outcome = call.outcome()
    assert outcome.value == "interrupted"
    assert outcome.ended - at < AT_ONCE_SECONDS
    scene.injector.record("SIGINT", a.name, at, "KeyboardInterrupt was raised")
    scene.works(WORLD, members)


def default_interrupt(context: Context) -> bool:
    """Let Ctrl-C raise ``KeyboardInterrupt`` where the main thread is, instead of cancelling asyncio's main task."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return True


def test_keyboard_interrupt_with_awaits_pending(scene: Scene) -> None:
    """asyncio ends its main task and the process; nothing holds it up, and the peer is told."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    waiting = b.start(acts.operate, WORLD, Row("recv", SMALL), 0)
    b.wait_for("operating")
    a.start(acts.operate, WORLD, Row("all_reduce", SMALL), 1)
    a.wait_for("operating")
    scene.injector.kill(a, signal.SIGINT)
    assert isinstance(waiting.outcome(ANSWER_SECONDS).error, PeerLost)


def fork_child(context: Context, name: str, seconds: float) -> tuple[int, str]:
    """Fork; what the child's attempt to use the world came to."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            context.mw[name].sync.send(torch.zeros(1), 1)
            said = "sent"
        except WrongContext:
            said = "WrongContext"
        except BaseException as error:  # noqa: BLE001 - it is reported
            said = repr(error)
        os.write(writer, said.encode())
        time.sleep(seconds)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        return child, pipe.read(1000).decode()


def test_fork_after_init(scene: Scene) -> None:
    """The child is refused; the parent and its worlds go on; and the child's life does not hide the parent's death."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    child, said = a.run(fork_child, WORLD, 20.0)
    try:
        assert said == "WrongContext"
        scene.works(WORLD, members)
        fired = scene.injector.kill(a)
        outcome = b.start(acts.operate, WORLD, Row("recv", SMALL), 0).outcome()
        lost(outcome, WORLD, 0, max(GONE_SECONDS, SILENT_SECONDS), fired, {"eof", "silence"})
        os.kill(child, 0)  # it lives, and still the death of its parent was noticed
    finally:
        os.kill(child, signal.SIGKILL)
