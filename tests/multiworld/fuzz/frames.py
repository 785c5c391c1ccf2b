"""Frames that are nearly right, from a generator that knows what the other side waits for."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from multiworld.net.frames import HEADER, HEADER_BYTES, WITH_PAYLOAD, Kind, Mode

#: lengths that programs get wrong
_LENGTHS = (0, 1, 7, 23, 24, 25, 255, 4_096, 16_384, 16_385, 65_536)
_HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_KEYS = (0, 1, 2, 1 << 32, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Posted:
    """A frame of the target that an answer may refer to."""

    kind: int
    dtype: int
    flags: int
    seq: int
    key: int
    nbytes: int


@dataclass
class Generator:
    """Frames to write to the target, and what is known of it.

    Args:
        draw: source of randomness.
        wildness: how often a field is not what it should be, 0 to 1.
    """

    draw: random.Random
    wildness: float
    known: deque[Posted] = field(default_factory=lambda: deque(maxlen=32))
    _rest: bytes = b""
    _skip: int = 0

    def hear(self, data: bytes) -> None:
        """Learn from what the target wrote."""
        data = self._rest + data
        at = min(self._skip, len(data))
        self._skip -= at
        while len(data) - at >= HEADER_BYTES:
            frame = Posted(*HEADER.unpack_from(data, at))
            at += HEADER_BYTES
            if frame.kind in WITH_PAYLOAD:
                step = min(frame.nbytes, len(data) - at)
                at, self._skip = at + step, frame.nbytes - step
            self.known.append(frame)
        self._rest = data[at:]

    def frame(self) -> bytes:
        """The next frame, with its payload or a part of it."""
        draw = self.draw
        posted = draw.choice(self.known) if self.known and draw.random() < 0.7 else None
        kind = self._answer(posted) if posted else draw.choice(tuple(Kind))
        nbytes = posted.nbytes if posted and kind == Kind.DATA else draw.choice(_LENGTHS)
        fields = [
            int(kind),
            posted.dtype if posted else draw.randrange(24),
            draw.choice(tuple(Mode)) if draw.random() < 0.5 else draw.choice((0, 1, 16, 24)),
            posted.seq if posted else draw.randrange(4),
            posted.key if posted else draw.choice(_KEYS),
            min(nbytes, 1 << 20),
        ]
        if draw.random() < self.wildness:
            self._spoil(fields)
        return HEADER.pack(*fields) + self._payload(fields[0], fields[5])

    def rubbish(self) -> bytes:
        """Bytes that are no frames."""
        return self.draw.randbytes(self.draw.randrange(1, 200))

    def _answer(self, posted: Posted) -> Kind:
        answers = {
            Kind.POST: (Kind.DATA, Kind.DATA, Kind.REJECT, Kind.CANCELLED),
            Kind.ANY: (Kind.OFFER,),
            Kind.OFFER: (Kind.TAKE, Kind.POST, Kind.ANY_DONE),
            Kind.CANCEL: (Kind.CANCELLED, Kind.DATA),
            Kind.SIGNATURE: (Kind.SIGNATURE,),
            Kind.VALUE: (Kind.VALUE,),
        }
        return self.draw.choice(answers.get(Kind(posted.kind), tuple(Kind)))

    def _spoil(self, fields: list[int]) -> None:
        draw = self.draw
        place = draw.randrange(len(fields))
        widths = (8, 8, 16, 32, 64, 64)
        wild = draw.choice((0, 1, 2 ** widths[place] - 1, draw.getrandbits(widths[place])))
        fields[place] = draw.choice(_HUGE) if place == len(fields) - 1 and draw.random() < 0.5 else wild

    def _payload(self, kind: int, nbytes: int) -> bytes:
        if kind not in WITH_PAYLOAD or nbytes > 1 << 20:
            return b""
        return (
            bytes(nbytes)
            if self.draw.random() < 0.5
            else self.draw.randbytes(min(nbytes, 256)) + bytes(max(0, nbytes - 256))
        )
