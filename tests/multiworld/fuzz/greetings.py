"""Greetings in which somebody in the middle changes, cuts, doubles or invents a line."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from multiworld.transport.greeting import GreetingError, Hello, Role
from multiworld.transport.handshake import Acceptor, Dialler

SECRET = b"the fuzzer does not know it"
_NAMES = ("multiworld", "ok", "why", "reason", "role", "world", "from", "to", "challenge", "proof", "nonce")
_VALUES = (0, 1, 2, -1, 2**63, True, False, "", "lane", "0" * 32, "\x00", "é" * 300)


@dataclass
class Report:
    """Result of a run: greetings played, how they ended, and how long it took in seconds."""

    greetings: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.greetings / self.seconds if self.seconds else 0.0
        return f"{self.greetings:,} greetings in {self.seconds:.0f} s ({rate:,.0f}/s): {dict(self.ends)}"


@dataclass
class Middle:
    """Somebody on the wire.

    Args:
        draw: source of randomness.
        often: how often a line is tampered with, 0 to 1.
    """

    draw: random.Random
    often: float
    tampered: bool = False

    def carry(self, line: bytes) -> bytes:
        """Return what arrives of ``line``."""
        if not line or self.draw.random() >= self.often:
            return line
        changed = self.draw.choice((self._bit, self._cut, self._double, self._field, self._rubbish))(line)
        self.tampered |= changed != line
        return changed

    def _bit(self, line: bytes) -> bytes:
        place = self.draw.randrange(len(line))
        return line[:place] + bytes([line[place] ^ 1 << self.draw.randrange(8)]) + line[place + 1 :]

    def _cut(self, line: bytes) -> bytes:
        return line[: self.draw.randrange(len(line))]

    def _double(self, line: bytes) -> bytes:
        return line * self.draw.randrange(2, 40)

    def _field(self, line: bytes) -> bytes:
        fields = json.loads(line)
        fields[self.draw.choice(_NAMES)] = self.draw.choice((*_VALUES, [[]], {}, None, 1.5))
        return json.dumps(fields).encode() + b"\n"

    def _rubbish(self, _: bytes) -> bytes:
        noise = self.draw.randbytes(self.draw.randrange(1, 5000))
        return self.draw.choice((b"[" * 4095, b'{"a":' * 800, noise)) + b"\n"


def _converse(middle: Middle, secret: bytes | None) -> str:
    """One greeting, both sides honest; how it ended."""
    hello = Hello(Role.LANE, "w", 1, 1, 0, "c0ffee")
    dialler, acceptor = Dialler(hello, secret), Acceptor(secret)
    said = dialler.begin()
    for _ in range(4):
        turn = acceptor.take(middle.carry(said))
        if turn.hello is not None:
            assert secret is None or not middle.tampered, "let in although a line was changed"
            assert secret is None or turn.hello == hello
            dialler.take(middle.carry(acceptor.accept()))
            assert dialler.done or middle.tampered
            return "let in" if dialler.done else "waiting"
        if not turn.send:
            return "waiting"
        said = dialler.take(middle.carry(turn.send))
        if not said:
            return "waiting"
    raise AssertionError("the greeting does not end")


def _end_of(middle: Middle, secret: bytes | None) -> str:
    try:
        return _converse(middle, secret)
    except GreetingError as error:
        return error.reason.value


def run(*, seed: int, greetings: int, seconds: float) -> Report:
    """Play up to ``greetings`` greetings in up to ``seconds`` seconds.

    Raises:
        AssertionError: somebody was let in who must not be; or whatever else but ``GreetingError`` was raised.
    """
    draw, report, started = random.Random(seed), Report(), time.monotonic()
    while report.greetings < greetings and time.monotonic() - started < seconds:
        middle = Middle(draw, draw.choice((0.0, 0.2, 0.5)))
        end = _end_of(middle, draw.choice((None, SECRET)))
        assert middle.tampered or end == "let in", f"an honest greeting ended with {end!r}"
        report.ends[end] += 1
        report.greetings += 1
    report.seconds = time.monotonic() - started
    return report
