"""Two hosts and a router between them, as network namespaces; the router can drop what goes either way.

Addresses are the same in every instance: namespaces do not see each other.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from multiworld.lab.context import Context
from multiworld.lab.injector import Injector, NotFiredError
from multiworld.lab.workers import Worker, WorkerPool

LEFT: Final = "10.213.1.2"
RIGHT: Final = "10.213.2.2"
_CLONE_NEWNET: Final = 0x40000000
_PROBE_PORT: Final = 9
_PROBE_SECONDS: Final = 0.25
_numbers = itertools.count(1)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def missing() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if shutil.which("ip") is None:
        return "network namespaces: the command ip (iproute2) is not installed"
    name = f"mwprobe{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except OSError as error:
        return f"network namespaces: not allowed here ({error})"
    return None


def enter_network(context: Context, name: str) -> None:
    """Move a worker, which has one thread as yet, into the network namespace ``name``, as made by ``ip netns add``."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", name).open("rb") as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)


def open_probe(context: Context, address: str) -> None:
    """Listen for datagrams in the worker's namespace."""
    context.kept["probe"] = sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, _PROBE_PORT))
    sock.settimeout(_PROBE_SECONDS)


def say(context: Context, address: str, token: bytes) -> None:
    """Send one datagram."""
    context.kept["probe"].sendto(token, (address, _PROBE_PORT))


def hear(context: Context, token: bytes) -> bool:
    """Return whether that datagram arrives."""
    try:
        while context.kept["probe"].recv(64) != token:
            pass
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Host:
    """One side: its namespace, its address, and a worker that probes."""

    namespace: str
    address: str
    probe: Worker


class Network:
    """Made by ``Namespaces.populated``."""

    def __init__(self, router: str, left: Host, right: Host, injector: Injector) -> None:
        self.left, self.right = left, right
        self._router = router
        self._injector = injector

    def reaches(self, source: Host, target: Host) -> bool:
        """Return whether a packet from ``source`` arrives at ``target``."""
        token = f"{next(_numbers)}".encode()
        hearing = target.probe.start(hear, token)
        source.probe.run(say, target.address, token)
        return bool(hearing.result())

    def cut(self, *, to_left: bool, to_right: bool) -> None:
        """Drop what goes that way, silently; proven with packets of our own."""
        at = time.monotonic()
        for host, wanted in ((self.left, to_left), (self.right, to_right)):
            if wanted:
                _ip("-n", self._router, "route", "replace", "blackhole", f"{host.address}/32")
        arrives = {"left": self.reaches(self.right, self.left), "right": self.reaches(self.left, self.right)}
        if arrives != {"left": not to_left, "right": not to_right}:
            raise NotFiredError(f"the cut to_left={to_left} to_right={to_right} is not seen: {arrives}")
        self._injector.record("cut", f"{to_left=} {to_right=}", at, f"packets arrive: {arrives}")

    def part(self) -> None:
        """Drop what the two hosts send each other, silently; those on the router reach both. Proven as ``cut``."""
        at = time.monotonic()
        for source, target in ((self.left, self.right), (self.right, self.left)):
            _ip("-n", self._router, "rule", "add", "from", source.address, "to", target.address, "blackhole")
        arrives = [self.reaches(self.left, self.right), self.reaches(self.right, self.left)]
        if any(arrives):
            raise NotFiredError(f"the hosts still reach each other: {arrives}")
        self._injector.record("part", "left, right", at, f"packets arrive: {arrives}")

    def heal(self) -> None:
        """Let everything through again; proven."""
        at = time.monotonic()
        for source, target in ((self.left, self.right), (self.right, self.left)):
            subprocess.run(
                ["ip", "-n", self._router, "rule", "delete", "from", source.address, "to", target.address],
                capture_output=True,
                timeout=20,
            )
        for host in (self.left, self.right):
            subprocess.run(
                ["ip", "-n", self._router, "route", "delete", "blackhole", f"{host.address}/32"],
                capture_output=True,
                timeout=20,
            )
        if not (self.reaches(self.left, self.right) and self.reaches(self.right, self.left)):
            raise NotFiredError("the network is not healed")
        self._injector.record("heal", "", at, "packets arrive both ways")


def established(pid: int, remote: str) -> int:
    """Count the TCP connections to ``remote`` that the kernel thinks are alive, in the namespace of that process."""
    packed = socket.inet_aton(remote)[::-1].hex().upper()
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(1 for field in fields if field[2].startswith(packed) and field[3] == "01")


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The router and the two sides; costly to make, so they serve one test after the other."""

    router: str
    left: str
    right: str

    def populated(self, pool: WorkerPool, injector: Injector) -> Network:
        """With a prober on each side, and nothing cut."""
        hosts = []
        for name, address in ((self.left, LEFT), (self.right, RIGHT)):
            probe = pool.worker(f"probe-{address}")
            probe.run(enter_network, name)
            probe.run(open_probe, address)
            hosts.append(Host(name, address, probe))
        made = Network(self.router, hosts[0], hosts[1], injector)
        made.heal()
        injector.fired.clear()  # a test has to make a fault of its own
        return made


@contextmanager
def namespaces() -> Iterator[Namespaces]:
    """Make the two hosts and the router, and take them away afterwards."""
    names = [f"mw{os.getpid()}{side}" for side in ("m", "l", "r")]
    router, left, right = names
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _refuse_name_service(name)
        _link(router, left, "10.213.1.1", LEFT, "vl")
        _link(router, right, "10.213.2.1", RIGHT, "vr")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _ip("netns", "exec", router, "sh", "-c", forward)
        yield Namespaces(router, left, right)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20)


def _refuse_name_service(name: str) -> None:
    """Let questions to the machine's name servers be refused at once: torch's store asks for the names of its peers."""
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        word, _, server = line.partition(" ")
        if word == "nameserver" and "." in server:
            _ip("-n", name, "addr", "add", f"{server.strip()}/32", "dev", "lo")


def _link(router: str, host: str, gateway: str, address: str, name: str) -> None:
    _ip("-n", router, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host)
    _ip("-n", router, "addr", "add", f"{gateway}/24", "dev", name)
    _ip("-n", router, "link", "set", name, "up")
    _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", host, "link", "set", "eth0", "up")
    _ip("-n", host, "route", "add", "default", "via", gateway)
