"""Keys that members agree with: one writer wins, on every kind of store, and a dead writer holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from multiworld.store import agreed_keys
from multiworld.store.agreed_keys import NUMBER, READ, AgreedKeys, CasKeys, CounterKeys

Opened = Callable[[], Any]
THREADS, TURNS = 6, 30

#: making its result without the GIL, it may only be used by a process with one thread (see ``keys_of``)
safe = pytest.mark.skipif(not hasattr(dist.Store, "check"), reason="compare_set of this torch is not thread-safe")
KINDS = [pytest.param(CasKeys, marks=safe, id="swapped"), pytest.param(CounterKeys, id="counted")]


@pytest.fixture(params=["file", "tcp"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Makes clients of one store."""
    if request.param == "file":
        return lambda: dist.FileStore(str(tmp_path / "store"), -1)
    host, port = request.getfixturevalue("tcp_store")[6:].split(":")
    return lambda: dist.TCPStore(host, int(port), None, False, timedelta(seconds=10))


def _at_once(work: Callable[[int], Any]) -> list[Any]:
    """Call ``work`` in each of several threads that begin together; return the results."""
    start, results = threading.Barrier(THREADS), [None] * THREADS

    def run(number: int) -> None:
        start.wait(10)
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_to_write_wins(kind: type[Any], opened: Opened) -> None:
    clients: list[AgreedKeys] = [kind(opened(), "test") for _ in range(THREADS)]
    for turn in range(TURNS):
        name = f"name-{turn}"
        assert clients[0].read(name) is None
        held = set(_at_once(lambda n, name=name: clients[n].put_first(name, f"value of {n}")))  # type: ignore[misc]
        assert len(held) == 1
        assert held == {clients[-1].read(name)}
        clients[turn % THREADS].delete(name)
        assert clients[0].read(name) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exchanged_at_once(kind: type[Any], opened: Opened) -> None:
    ours, theirs = kind(opened(), "test"), kind(opened(), "test")
    theirs.put_first("theirs", "1")
    assert ours.exchange({"number": NUMBER, "none": READ}) in (["0", None], [None, None])
    assert ours.exchange({"number": (0, 3), "none": READ}) == ["3", None]
    assert theirs.exchange({"number": (0, 4)}) == ["3"], "who comes late raises nothing"
    wanted = {"theirs": "2", "ours": "3", "number": NUMBER, "none": READ}
    assert ours.exchange(wanted) == ["1", "3", "3", None]
    assert theirs.exchange({"ours": READ, "theirs": READ}) == ["3", "1"]
    ours.delete("ours", "theirs", "none")
    assert theirs.exchange({"ours": READ, "theirs": READ}) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_is_raised_once(kind: type[Any], opened: Opened) -> None:
    clients: list[AgreedKeys] = [kind(opened(), "test") for _ in range(THREADS)]
    for now in range(TURNS):
        raised = _at_once(lambda n, now=now: clients[n].raise_from("generation", now, now + 1))  # type: ignore[misc]
        assert raised == [now + 1] * THREADS
        clients[0].forget_raise("generation", now)
    assert clients[0].raise_from("generation", 3, 4) == TURNS, "who comes late raises nothing"
    assert clients[0].raise_from("generation", TURNS, 100) == clients[1].number("generation") == 100


def test_a_writer_that_died_in_between_is_followed_by_the_next(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_keys, "WRITER_SECONDS", 0.2)
    store = opened()
    counted = CounterKeys(store, "test")
    store.add("test/name/turn/0", 1)
    store.add("test/generation/from/0/0", 1)
    started = time.monotonic()
    assert counted.put_first("name", "second") == "second"
    assert counted.put_first("name", "third") == "second"
    assert counted.raise_from("generation", 0, 1) == 1
    assert time.monotonic() - started > 0.4


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left(kind: type[Any], opened: Opened) -> None:
    store = opened()
    made: AgreedKeys = kind(store, "test")
    before = store.num_keys()
    for now in range(10):
        made.put_first("name", "value")
        made.raise_from("generation", now, now + 1)
        made.delete("name")
        made.forget_raise("generation", now)
    assert store.num_keys() <= before + 1
