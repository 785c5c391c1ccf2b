"""Faults that are proven: each method returns when the fault can be seen from outside, and says how it was seen."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from multiworld.lab.workers import Worker

_PROOF_SECONDS = 5.0
#: what the stranger says, in turn; the first says nothing
_WORDS = (b"", b"\x00", b"{", b"[" * 4095, b'{"world": 1}\n', b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)))
_CONNECTIONS = 40


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that has happened; ``at`` is the monotonic time just before it was done."""

    fault: str
    target: str
    at: float
    proof: str


class NotFiredError(AssertionError):
    """A fault that was meant to happen did not."""


def thread_states(pid: int) -> dict[int, str]:
    """State letter of each thread of ``pid``, from the kernel: R, S, D, T (stopped), t (traced), Z."""
    states = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states[int(task.name)] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return states


def proven(seen: Callable[[], str | None], what: str) -> str:
    """Wait until ``seen`` returns a proof; ``NotFiredError`` if it does not within five seconds."""
    deadline = time.monotonic() + _PROOF_SECONDS
    while (proof := seen()) is None:
        if time.monotonic() > deadline:
            raise NotFiredError(f"{what} was not seen within {_PROOF_SECONDS} s")
        time.sleep(0.001)  # the kernel offers no event for this
    return proof


class Injector:
    """Makes faults, and keeps the proven ones in ``fired``, in order."""

    def __init__(self) -> None:
        self.fired: list[Fired] = []

    def record(self, fault: str, target: str, at: float, proof: str) -> Fired:
        """Add a fault that was proven elsewhere."""
        fired = Fired(fault, target, at, proof)
        self.fired.append(fired)
        return fired

    def kill(self, worker: Worker, number: int = signal.SIGKILL) -> Fired:
        """Kill ``worker`` with a signal; it is reaped when this returns."""
        at = time.monotonic()
        os.kill(worker.pid, number)
        return self.died(worker, "kill", at, -number)

    def died(self, worker: Worker, fault: str, at: float, code: int) -> Fired:
        """Record that ``worker`` ended with ``code``."""
        got = worker.exit_code()
        if got != code:
            raise NotFiredError(f"{worker.name} ended with {got}, not {code}")
        return self.record(fault, worker.name, at, f"pid {worker.pid} reaped with {got}")

    def freeze(self, worker: Worker) -> Fired:
        at = time.monotonic()
        os.kill(worker.pid, signal.SIGSTOP)
        proof = proven(lambda: _all_in(worker.pid, "T"), f"the stop of {worker.name}")
        return self.record("freeze", worker.name, at, proof)

    def thaw(self, worker: Worker) -> Fired:
        at = time.monotonic()
        os.kill(worker.pid, signal.SIGCONT)
        proof = proven(lambda: None if "T" in thread_states(worker.pid).values() else "no thread stopped", "the thaw")
        return self.record("thaw", worker.name, at, proof)

    def visit(self, worker: Worker, seconds: float) -> Fired:
        """Connect to all ports of ``worker`` as a stranger, say little or nonsense, and stay for ``seconds``."""
        at, made = time.monotonic(), 0
        ports = listening_ports(worker.pid)
        with contextlib.ExitStack() as stack:
            for number in range(_CONNECTIONS):
                for port, host in ports.items():
                    with contextlib.suppress(OSError):  # refused, or dropped by a filter
                        sock = stack.enter_context(socket.create_connection((host, port), timeout=0.2))
                        made += 1
                        sock.sendall(_WORDS[number % len(_WORDS)])
                if time.monotonic() - at > seconds:
                    break
            time.sleep(max(0.0, at + seconds - time.monotonic()))
        if not made:
            raise NotFiredError(f"{worker.name} took a connection on none of its ports {sorted(ports)}")
        return self.record("stranger", worker.name, at, f"{made} connections to {tuple(ports)}")


def listening_ports(pid: int) -> dict[int, str]:
    """TCP ports on which a process listens, and the local IPv4 address of each; see proc_pid_net(5)."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = {}
    with Path(f"/proc/{pid}/net/tcp").open() as table:
        rows = (line.split() for line in itertools.islice(table, 1, None))
        # They come first; thousands of connections that have ended may follow.
        for row in itertools.takewhile(lambda row: row[3] == "0A", rows):
            if row[9] in inodes:
                host, port = row[1].split(":")
                found[int(port, 16)] = socket.inet_ntoa(bytes.fromhex(host)[::-1])
    return found


def _all_in(pid: int, letter: str) -> str | None:
    states = set(thread_states(pid).values())
    return f"all threads of {pid} in state {letter}" if states == {letter} else None
