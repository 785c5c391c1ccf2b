"""Two threads that launch and wait in turns: who does what, and how it ends."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from multiworld.backends.device_threads import DeviceThreads, Work

SECONDS = 20.0


class Device:
    """Launches at once; a work ends when the test says so."""

    def __init__(self) -> None:
        self.crew = DeviceThreads(self.launch, self.outcome, self.look, self.end)
        self.done: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.waits: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.launched: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.launchers: dict[int, int] = {}
        self.waiters: dict[int, int] = {}
        self.may_launch = threading.Event()
        self.may_launch.set()
        self.looked, self.ended = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=self.crew.work, daemon=True) for _ in range(2)]
        self._works: list[Work] = []

    def start(self) -> int:
        number = len(self._works)
        self._works.append(Work(lambda _: None, number, None))
        assert self.crew.add(self._works[-1])
        return number

    def launch(self, work: Work) -> bool:
        number = self._works.index(work)
        self.launchers[number] = threading.get_ident()
        self.launched[number].set()
        assert self.may_launch.wait(SECONDS)
        return True

    def outcome(self, work: Work) -> BaseException | None:
        number = self._works.index(work)
        self.waiters[number] = threading.get_ident()
        self.waits[number].set()
        assert self.done[number].wait(SECONDS)
        return None

    def look(self) -> None:
        self.looked.set()

    def end(self) -> None:
        self.ended.set()

    def report_of(self, number: int) -> threading.Event:
        over = threading.Event()
        self._works[number].watch(lambda _: over.set(), None)
        return over


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    for thread in made.threads:
        thread.start()
    yield made
    for number in range(1000):
        made.done[number].set()
    made.crew.stop()
    for thread in made.threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert made.ended.is_set()


def test_who_launches_waits_for_the_end(device: Device) -> None:
    for _ in range(20):
        number = device.start()
        device.done[number].set()
        assert device.report_of(number).wait(SECONDS)
        assert device.launchers[number] == device.waiters[number]


def test_the_other_one_launches_meanwhile_and_the_ends_keep_their_order(device: Device) -> None:
    first = device.start()
    assert device.waits[first].wait(SECONDS)
    second = device.start()
    device.done[second].set()
    over = device.report_of(first), device.report_of(second)
    assert device.launched[second].wait(SECONDS)
    assert device.launchers[second] != device.waiters[first]
    assert not over[1].is_set()
    device.done[first].set()
    assert over[0].wait(SECONDS)
    assert over[1].wait(SECONDS)


def test_failures_are_looked_for_while_something_is_under_way(device: Device) -> None:
    number = device.start()
    assert device.waits[number].wait(SECONDS)
    assert device.looked.wait(SECONDS)


def test_it_is_stopped_while_one_waits(device: Device) -> None:
    number = device.start()
    assert device.waits[number].wait(SECONDS)
    assert device.crew.stop() == []
    assert device.ended.wait(SECONDS), "nobody is left to end it"
    assert [work.tensors for work in device.crew.left] == [number]
    assert not device.crew.is_empty(0.0)
    device.done[number].set()
    assert device.crew.is_empty(SECONDS)
    assert not device.crew.add(Work(lambda _: None, None, None))


def test_it_is_stopped_while_one_launches(device: Device) -> None:
    device.may_launch.clear()
    first, second = device.start(), device.start()
    assert device.launched[first].wait(SECONDS)
    assert [work.tensors for work in device.crew.stop()] == [second]
    assert not device.ended.is_set()
    device.may_launch.set()
    assert device.ended.wait(SECONDS), "who has launched waits, and nobody ends it"
    assert device.waits[first].wait(SECONDS)


def test_it_is_closed_when_all_is_done(device: Device) -> None:
    first, second = device.start(), device.start()
    device.crew.close()
    device.done[first].set()
    assert device.waits[second].wait(SECONDS)
    assert not device.ended.is_set()
    device.done[second].set()
    assert device.ended.wait(SECONDS)
