"""A process without free file descriptors: never an abort, always success or a typed error that names the cause."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import cluster, open_numbers, wait_until
from table import members

from multiworld import BrokenWorldException, DescriptorsExhausted, MultiWorld, MultiWorldError
from multiworld.lab.context import Context
from multiworld.lab.injector import listening_ports
from multiworld.transport import descriptors
from multiworld.transport.descriptors import Reserve, descriptor_shortage

SECONDS = 10.0
#: how many descriptors are left free; what a join takes is among them
LEFT = (0, 2, 6, 12, 24)
#: of a collective that goes in parts
LARGE = 300_000


@contextlib.contextmanager
def only(left: int) -> Iterator[None]:
    """Leave ``left`` descriptors free in this process, by a low limit and files that are open up to it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(open_numbers()) + 1 + left + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, before[1]))
    hog: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                hog.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(left):
            os.close(hog.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in hog:
            os.close(number)


def _stranger(context: Context) -> None:
    """Connects to every port it is told, and stays."""
    kept = []
    while True:
        ports = context.recv()
        for port in ports:
            with contextlib.suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=0.3))
        context.send(len(kept))


Outcome = str | MultiWorldError


def _outcome(step: Any) -> Outcome:
    try:
        step()
    except MultiWorldError as error:
        return error
    return "fine"


class Life:
    """The life of one world, member ``rank`` of two; one moment of it without descriptors, for rank 0."""

    def __init__(self, mw: MultiWorld, store: str, rank: int, name: str, patience: float = 20.0) -> None:
        self.mw, self.store, self.rank, self.name, self.patience = mw, store, rank, name, patience
        self.w: Any = None

    def join(self) -> None:
        self.w = self.mw.sync.join(self.name, self.rank, 2, store=self.store, join_timeout=self.patience)

    def collective(self) -> None:
        t = torch.ones(LARGE)
        self.w.sync.all_reduce(t)
        assert t[0].item() == 2

    def subgroup(self) -> None:
        t = torch.ones(LARGE)
        self.w.group((0, 1)).sync.all_reduce(t)
        assert t[0].item() == 2

    def abort(self) -> None:
        if self.rank == 0:
            self.w.abort("on purpose")
        wait_until(lambda: self.w.failure is not None, SECONDS, "not broken")
        assert self.w.member.session.freed.wait(SECONDS), "not freed"

    def rejoin(self) -> None:
        self.w.sync.rejoin(timeout=self.patience)

    def message(self) -> None:
        t = torch.ones(3)
        threads = [threading.Thread(target=self.w.sync.send, args=(t, 1 - self.rank)) for _ in range(2)]
        for thread in threads:  # new threads: each needs something that wakes it
            thread.start()
        for _ in threads:
            self.w.sync.recv(t, 1 - self.rank)
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def leave(self) -> None:
        self.w.sync.leave()


STEPS = ("join", "message", "collective", "subgroup", "abort", "rejoin", "leave")


def _lives(context: Context, store: str, rank: int, squeezed: int) -> list[list[Outcome]]:
    """Lives once for each number of free descriptors; step number ``squeezed`` has only those."""
    outcomes = []
    with MultiWorld() as mw:
        for left in LEFT:
            # A member that cannot join is waited for, except where there is enough for it.
            fails = STEPS[squeezed] in ("join", "rejoin") and left < LEFT[-1]
            life, of_steps = Life(mw, store, rank, f"w{left}", 3.0 if fails else 20.0), []
            for number, step in enumerate(STEPS):
                context.send("next")
                context.recv()
                ours = rank == 0 and number == squeezed
                ports = list(listening_ports(os.getpid())) if ours else []
                with only(left) if ours else contextlib.nullcontext():
                    if ours:
                        context.send(ports)
                        context.recv()
                    of_steps.append(_outcome(getattr(life, step)))
                if life.w is None or (life.w.failure is not None and step not in ("abort", "leave")):
                    break
            outcomes.append(of_steps)
            context.send("over")
            context.recv()
            if life.w is not None:
                life.w.sync.leave()
        again = Life(mw, store, rank, "again")
        again.join()
        again.collective()
    return outcomes


def _drive(c: Any, store: str, squeezed: int) -> list[list[list[Outcome]]]:
    members = [c.start(_lives, store, rank, squeezed) for rank in (0, 1)]
    stranger = c.start(_stranger)
    for _ in LEFT:
        said = [member.recv() for member in members]
        number = 0
        while "next" in said:
            for member, word in zip(members, said, strict=True):
                if word == "next":
                    member.send("go")
            if number == squeezed and said[0] == "next":
                stranger.send(members[0].recv())
                stranger.recv()
                members[0].send("go")
            number += 1
            said = [m.recv() if word == "next" else word for m, word in zip(members, said, strict=True)]
        for member in members:
            member.send("go")
    return [member.result() for member in members]


@pytest.mark.parametrize("squeezed", range(len(STEPS)), ids=[f"{n}-{step}" for n, step in enumerate(STEPS)])
def test_without_descriptors_a_world_lives_or_fails_with_the_cause(store: str, squeezed: int) -> None:
    with cluster() as c:
        ours, _theirs = _drive(c, store, squeezed)
    assert [set(map(str, outcomes)) for outcomes in ours][-1] == {"fine"}, "with enough of them all goes well"
    if STEPS[squeezed] not in ("join", "rejoin"):
        assert all(set(map(str, outcomes)) == {"fine"} for outcomes in ours), "this needs none"


def test_a_shortage_is_told_by_its_cause() -> None:
    assert "no free file descriptors (limit " in (descriptor_shortage(OSError(errno.EMFILE, "x")) or "")
    assert "system" in (descriptor_shortage(OSError(errno.ENFILE, "x")) or "")
    assert descriptor_shortage(RuntimeError("open(/x): Too many open files")) is not None
    assert descriptor_shortage(OSError(errno.ECONNREFUSED, "x")) is None


def _makes_one_without(context: Context) -> Any:
    with only(0), pytest.raises(DescriptorsExhausted, match="no free file descriptors") as caught:
        MultiWorld()
    with MultiWorld():
        return str(caught.value), isinstance(caught.value, BrokenWorldException)


def test_a_multiworld_cannot_be_made_without_descriptors() -> None:
    with cluster() as c:
        text, _ = c.start(_makes_one_without).result()
    assert "ulimit -n" in text


def test_the_reserve_gives_one_and_takes_it_back() -> None:
    kept = Reserve(2)
    kept.fill()
    with only(0):
        made = kept.make(os.eventfd, 0)
        other = kept.make(os.eventfd, 0)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            kept.make(os.eventfd, 0)
        os.close(made)
        os.close(other)
        kept.fill()
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.eventfd(0)
    kept.empty()


def test_a_reserve_refuses_a_connection_for_which_there_is_no_descriptor() -> None:
    kept = Reserve(2)
    kept.fill()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as visitor:
        listener.setblocking(False)
        visitor.settimeout(SECONDS)
        visitor.connect(listener.getsockname())
        with only(0):
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                listener.accept()
            assert kept.refuse(listener)
            assert not kept.refuse(listener)  # nobody else is there
        assert visitor.recv(1) == b""
    kept.empty()


def test_nothing_is_kept_back_once_the_last_multiworld_is_closed() -> None:
    gc.collect()
    before = len(descriptors.reserve._held)
    with MultiWorld(), MultiWorld():
        assert len(descriptors.reserve._held) == descriptors.RESERVED
    assert len(descriptors.reserve._held) == before == 0


def _drops_a_file_store(context: Context, path: str) -> str:
    from multiworld.store.torch_store import FileStore

    client = FileStore(path, -1)
    client.set("key", "value")
    with only(0):
        del client  # torch's own ends the process here
    return str(FileStore(path, -1).get("key"))


def test_a_file_store_is_dropped_without_descriptors(tmp_path: Path) -> None:
    with cluster() as c:
        assert "value" in c.start(_drops_a_file_store, str(tmp_path / "store")).result()


def test_a_rendezvous_without_descriptors_is_an_error_of_the_package(store: str) -> None:
    with MultiWorld() as mw:
        with only(0), pytest.raises(MultiWorldError, match=r"oo many open files|no free file descriptors"):
            mw.sync.join("w", 0, 1, store=store, join_timeout=0.5)
        mw.sync.join("w", 0, 1, store=store)


def test_an_event_loop_begins_to_await_without_a_free_descriptor(store: str) -> None:
    loop, got = asyncio.new_event_loop(), torch.zeros(1)
    with members(store, 2) as ((first, second), pool):
        sent = pool.submit(second.sync.send, torch.ones(1), 0)
        with only(0):
            loop.run_until_complete(first.recv(got, 1))
        sent.result(SECONDS)
    loop.close()
    assert got.item() == 1.0
