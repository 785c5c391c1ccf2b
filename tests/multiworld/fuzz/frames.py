"""Frames that are nearly right, from a generator that knows what the other side waits for."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from multiworld.matching.protocol import Mode
from tests.multiworld.engine.reference.frames import HEADER, HEADER_BYTES, WITH_PAYLOAD, Kind

#: lengths that programs get wrong
_LENGTHS = (0, 1, 7, 23, 24, 25, 255, 4_096, 16_384, 16_385, 65_536)
_HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
#: what a member may say at any time
_UNASKED = tuple(
    map(int, (Kind.POST, Kind.POST, Kind.ANY, Kind.ANY_DONE, Kind.OFFER, Kind.TAKE, Kind.CANCEL, Kind.REJECT))
)
_MODES, _KEYS = tuple(map(int, Mode)), (0, 1, 2, 3, 1 << 32)
#: what answers a frame of the target
_ANSWERS = {
    Kind.POST: (Kind.DATA, Kind.DATA, Kind.DATA, Kind.REJECT),
    Kind.ANY: (Kind.OFFER,),
    Kind.OFFER: (Kind.TAKE, Kind.ANY_DONE),
    Kind.CANCEL: (Kind.CANCELLED, Kind.DATA),
    Kind.FINGERPRINT: (Kind.FINGERPRINT,),
}
_OF_RECEIVES = (Kind.POST, Kind.CANCEL)
_FIELD_BITS = (8, 8, 16, 32, 64, 64)


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame of the target that an answer may refer to."""

    kind: int
    dtype: int
    flags: int
    seq: int
    key: int
    nbytes: int
    payload: bytes = b""


@dataclass
class Generator:
    """Frames to write to the target, and what is known of it.

    Args:
        draw: source of randomness.
        wildness: how often a frame is not what it should be, 0 to 1.
    """

    draw: random.Random
    wildness: float
    known: deque[Heard] = field(default_factory=lambda: deque(maxlen=32))
    _rest: bytes = b""

    def hear(self, data: bytes) -> None:
        """Learn from what the target wrote."""
        data = self._rest + data
        at = 0
        while len(data) - at >= HEADER_BYTES:
            fields = HEADER.unpack_from(data, at)
            length = fields[5] if fields[0] in WITH_PAYLOAD else 0
            end = at + HEADER_BYTES + length
            if end > len(data):
                break
            if fields[0] in _ANSWERS:
                self.known.append(Heard(*fields, data[at + HEADER_BYTES : end] if length < 1 << 16 else b""))
            at = end
        self._rest = data[at:]

    def frame(self) -> bytes:
        """The next frame, with its payload or a part of it."""
        fields, payload = self._answer() if self.known and self.draw.random() < 0.5 else self._unasked()
        if self.draw.random() < self.wildness:
            payload = self._spoil(fields, payload)
        return HEADER.pack(*fields) + payload

    def _answer(self) -> tuple[list[int], bytes]:
        place = self.draw.randrange(len(self.known))
        heard = self.known[place]
        del self.known[place]
        if heard.kind in _OF_RECEIVES:  # a receive is answered once, whether it was withdrawn or not
            rest = [one for one in self.known if one.kind not in _OF_RECEIVES or one.seq != heard.seq]
            self.known = deque(rest, maxlen=self.known.maxlen)
        kind = self.draw.choice(_ANSWERS[Kind(heard.kind)])
        nbytes = heard.nbytes
        if kind == Kind.DATA and nbytes > 1 << 20:  # a length of our own, and a shape that may be right
            nbytes = self.draw.choice(_LENGTHS)
        payload = b""
        if kind == Kind.FINGERPRINT:
            payload = heard.payload
        elif kind == Kind.DATA:
            payload = self._bytes(nbytes)
        return [int(kind), heard.dtype, heard.flags, heard.seq, heard.key, nbytes], payload

    def _unasked(self) -> tuple[list[int], bytes]:
        rand = self.draw.random  # not choice and randrange: most frames are made here, and these take half of the time
        key = _KEYS[int(rand() * len(_KEYS))] if rand() < 0.9 else self.draw.getrandbits(64)
        kind, mode = _UNASKED[int(rand() * len(_UNASKED))], _MODES[int(rand() * len(_MODES))]
        nbytes = _LENGTHS[int(rand() * len(_LENGTHS))]
        return [kind, int(rand() * 24), mode, self.draw.getrandbits(32), key, nbytes], b""

    def _spoil(self, fields: list[int], payload: bytes) -> bytes:
        """Change one thing that another member could not have got wrong."""
        draw = self.draw
        place = draw.randrange(len(fields) + 2)
        if place < len(fields):
            top = 1 << _FIELD_BITS[place]
            wild = draw.choice((0, 1, top - 1, draw.randrange(top), draw.choice(tuple(Kind))))
            fields[place] = draw.choice(_HUGE) if place == len(fields) - 1 and draw.random() < 0.5 else wild
        elif place == len(fields):
            return payload[: draw.randrange(len(payload) + 1)]
        else:
            fields[0] = draw.choice((Kind.DATA, Kind.FINGERPRINT, Kind.VALUE, Kind.BYE, Kind.CANCELLED))
            fields[2] = draw.choice((0, 23, 24, 25, 40, 65_535))
            return self._bytes(min(fields[5], 1 << 16))
        return payload

    def _bytes(self, nbytes: int) -> bytes:
        return self.draw.randbytes(min(nbytes, 64)) + bytes(max(0, nbytes - 64))
