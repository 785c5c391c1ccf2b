"""The guard: what an engine owes to its peers is written though nobody waits, holds the GIL or handles a signal."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from engine.pairs import DONE, OWED, SECONDS, Two, events_of, frame, recv, send, start_recv, start_send

from multiworld.matching.protocol import Mode
from tests.multiworld.engine.reference.frames import HEADER, Kind

COUNT = 4 << 20  # float32: far more than sockets and rings hold


def guards() -> list[Path]:
    """The threads of this process that are guards."""
    return [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() == "mw-guard"]


def field(task: Path, name: str) -> str:
    (found,) = (line for line in (task / "status").read_text().splitlines() if line.startswith(name + ":"))
    return found.split()[1]


def read_all(sock: socket.socket, size: int) -> None:
    sock.settimeout(SECONDS)
    while size:
        size -= len(sock.recv(min(size, 1 << 20)))


def owe(two: Two) -> int:
    """Let the engine owe a message to a bare socket; how many bytes that is."""
    assert two.peer is not None
    payload = bytes(4 * COUNT)
    two.peer.sendall(frame(Kind.POST, 0, int(Mode.OBJECT), 1, 7, 1 << 30))
    assert two.a.drain(1)
    two.a.start((False, False, 1, 7, int(Mode.OBJECT), 0, len(payload), payload, None))
    return HEADER.size + len(payload)


def test_the_rest_is_written_on_the_socket(native: ModuleType) -> None:
    ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
    theirs.connect(ours.getsockname())
    two = Two(native, bare=True)
    two.peer.close()
    two.peer, two.a = theirs, native.Engine(0, {1: ours.accept()[0].detach()}, 1 << 20)
    with ours, theirs:
        read_all(theirs, owe(two))
    two.a.end(False)


def test_what_the_guard_matches_for_the_backend_is_told_to_the_owner(native: ModuleType) -> None:
    """It cannot begin it itself, and nobody else may look for long."""
    two = Two(native, bare=True)
    owe(two)
    two.a.collective(3, (0, 1), bytes(24), True, [None, b""])
    two.peer.sendall(frame(Kind.FINGERPRINT, flags=24, seq=0, key=3, nbytes=24) + bytes(24))
    events = events_of(two.a)
    assert [event[0] for event in events] == [OWED], events
    assert len(two.a.owed()) == 1
    two.a.end(False)
    two.peer.close()


@pytest.mark.parametrize("with_ring", [False, True])
def test_the_rest_is_written_to_a_neighbour(two: Two, with_ring: bool) -> None:
    ours, got = torch.arange(COUNT, dtype=torch.float32), torch.zeros(COUNT)
    if with_ring:
        two.run(lambda: send(two.a, 1, 7, ours, SECONDS), lambda: recv(two.b, 0, 7, got, SECONDS))
        assert two.a.ways() == {1: "ring"}
        got.zero_()
    receive = start_recv(two.b, 0, 7, got)
    two.a.drain(1)
    number = start_send(two.a, 1, 7, ours)
    assert two.b.wait(receive, SECONDS)[0] == DONE
    assert torch.equal(ours, got)
    until = time.monotonic() + SECONDS
    while two.a.outcome(number)[0] != DONE:
        assert time.monotonic() < until


def test_the_guard_takes_no_signals_and_sleeps_when_nothing_is_owed(native: ModuleType) -> None:
    two = Two(native, bare=True)
    owed = owe(two)
    read_all(two.peer, owed)
    (guard,) = guards()
    assert int(field(guard, "SigBlk"), 16) & 0x7FFFFFFF == 0x7FFFFFFF & ~(1 << 8 | 1 << 18)  # all but KILL and STOP
    last, quiet = "", 0
    until = time.monotonic() + SECONDS
    while quiet < 10:  # looks at a guard that looks each 20 ms
        now = field(guard, "voluntary_ctxt_switches")
        last, quiet = now, quiet + 1 if now == last else 0
        time.sleep(0.05)
        assert time.monotonic() < until
    two.a.end(False)
    two.peer.close()


IN_A_FORK = """
import os, socket, sys
sys.path[:0] = [{tests!r}]
from engine.test_guard import guards, owe, read_all
from engine.pairs import Two
from multiworld.engine import library
native = library.module()
for generation in range(3):
    assert not guards()
    two = Two(native, bare=True)
    owed = owe(two)
    read_all(two.peer, owed)
    assert len(guards()) == 1
    if generation == 1:
        owe(two)  # and fork while something is owed
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_has_a_guard_of_its_own() -> None:
    command = [sys.executable, "-c", IN_A_FORK.format(tests=str(Path(__file__).parents[1]))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")


READER = """
import socket, sys, time
left, sock = int(sys.argv[2]), socket.socket(fileno=int(sys.argv[1]))
while left > 0 and (came := sock.recv(1 << 20)):
    left -= len(came)
print(time.monotonic())
"""

WITHOUT_GIL = """
import ctypes, subprocess, sys, time
sys.path[:0] = [{tests!r}]
from engine.test_guard import READER, owe
from engine.pairs import Two
from multiworld.engine import library
two = Two(library.module(), bare=True)
owed = owe(two)
command = [sys.executable, "-c", READER, str(two.peer.fileno()), str(owed)]
reader = subprocess.Popen(command, pass_fds=[two.peer.fileno()], stdout=subprocess.PIPE, text=True)
ctypes.PyDLL(None).sleep(4)  # with the GIL
print(time.monotonic() - float(reader.communicate()[0]))
"""


def test_the_guard_needs_no_gil_and_ends_with_the_process() -> None:
    command = [sys.executable, "-c", WITHOUT_GIL.format(tests=str(Path(__file__).parents[1]))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) > 0  # all was read before the GIL was free


def test_what_is_owed_to_a_peer_that_has_gone_ends_the_lane(native: ModuleType) -> None:
    two = Two(native, bare=True)
    owe(two)
    two.peer.close()
    until = time.monotonic() + SECONDS
    found: list[Any] = []
    while not found:
        found = two.a.events()
        assert time.monotonic() < until
    assert [event[0] for event in found] == [1]
    assert found[0][2]  # a number of an error
    two.a.end(False)
