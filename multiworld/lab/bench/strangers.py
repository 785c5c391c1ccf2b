"""Part ``strangers``: what connections of strangers cost a member, and the worlds that it is in."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from dataclasses import asdict
from pathlib import Path

from multiworld.lab.bench import acts
from multiworld.lab.bench.report import Figure, judged
from multiworld.lab.bench.setup import Setup
from multiworld.lab.bench.stats import paired_ratio, percentile
from multiworld.lab.context import Context
from multiworld.lab.workers import Worker

_STRANGERS = 1000
_KEPT = 100
_WORLD = "strangers"
_WINDOW_SECONDS = 2.0


def _endpoint_port(context: Context) -> int:
    (endpoint,) = context.mw._table.resources.hub._endpoints.values()
    return endpoint.port


def _resident(context: Context) -> int:  # noqa: ARG001
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


async def _connect(context: Context, port: int, count: int, seconds: float, keep: int) -> None:
    """Connect ``count`` times, evenly over ``seconds``, and say nothing; the last ``keep`` stay open on this side."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: list[socket.socket] = context.kept.setdefault("strangers", [])
    for number in range(count):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
        if len(held) > keep:
            held.pop(0).close()
        if seconds and number % 10 == 9:
            await asyncio.sleep(10 * seconds / count)


def _let_go(context: Context) -> None:
    for sock in context.kept.pop("strangers", []):
        sock.close()


def strangers(setup: Setup) -> list[Figure]:
    """Memory after a thousand connections at once, and round trips while they come, in turns with none."""
    windows: dict[bool, list[list[float]]] = {True: [], False: []}
    with setup.workers("strangers-0", "strangers-1", "stranger") as (*members, stranger):
        setup.join(_WORLD, members)
        port = members[0].run(_endpoint_port)
        setup.progress(f"{_STRANGERS} connections of strangers")
        for turn in range(6 if setup.quick else 20):
            for strike in (False, True) if turn % 2 else (True, False):
                windows[strike].append(_window(members, stranger, port, strike))
        found = [_memory(members[0], stranger, port)]
    struck, calm = windows[True], windows[False]
    for share in (0.5, 0.99):
        ratio = paired_ratio([percentile(w, share) for w in struck], [percentile(w, share) for w in calm])
        per_window = percentile([percentile(w, share) for w in calm], 0.5)
        name = f"{_STRANGERS} strangers in {_WINDOW_SECONDS:.0f} s: p{share * 100:.0f} of a round trip of 4 bytes"
        text = f"{ratio.text} x {per_window * 1e6:,.0f} us"
        found.append(judged(name, "unchanged", text, ratio.low <= 1.05, ratio=asdict(ratio)))
    return found


def _window(members: list[Worker], stranger: Worker, port: int, strike: bool) -> list[float]:
    echoing = members[1].start(acts.echo, [_WORLD], 1)
    calling = members[0].start(acts.call, [_WORLD], _WINDOW_SECONDS, 1)
    members[0].wait_for("calling")
    # The same work on the same machine either way: in calm windows they connect to another listener.
    with socket.create_server(("127.0.0.1", 0), backlog=2 * _STRANGERS) as elsewhere:
        target = port if strike else elsewhere.getsockname()[1]
        coming = stranger.start(_connect, target, _STRANGERS, 0.8 * _WINDOW_SECONDS, _KEPT)
        trips: list[float] = calling.result(60)
        coming.result(60)
    stranger.run(_let_go)
    echoing.result(30)
    return trips


def _memory(member: Worker, stranger: Worker, port: int) -> Figure:
    before = member.run(_resident)
    stranger.run(_connect, port, _STRANGERS, 0.0, _STRANGERS, timeout=60)
    most = member.run(_resident) - before
    stranger.run(_let_go)
    text = f"{most / 1e6:.2f} MB"
    return judged(f"{_STRANGERS} strangers at once cost", "<= 1 MB", text, most <= 1_000_000, bytes=most)
