"""NCCL's data types as bytes, independently of the imitation's own arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

#: By NCCL's number: the `struct` format of plain types, (exponent bits, mantissa bits, bias, infinity) of others.
_PLAIN = {0: "b", 1: "B", 2: "i", 3: "I", 4: "q", 5: "Q", 6: "e", 7: "f", 8: "d"}
_SMALL = {10: (4, 3, 7, False), 11: (5, 2, 15, True)}
_BFLOAT16 = 9
DTYPES = (*_PLAIN, _BFLOAT16, *_SMALL)
INTEGERS = frozenset(range(6))


def size(dtype: int) -> int:
    """Return the bytes of one number."""
    return len(to_bytes(dtype, [1]))


def to_bytes(dtype: int, values: Sequence[float]) -> bytes:
    """Return the bytes of numbers that the type can hold exactly."""
    if dtype in _PLAIN:
        whole = dtype in INTEGERS
        return struct.pack(f"={len(values)}{_PLAIN[dtype]}", *(int(v) if whole else v for v in values))
    if dtype == _BFLOAT16:
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    bits = {small(n, *_SMALL[dtype]): n for n in reversed(range(256))}
    return bytes(bits[v] for v in values)


def from_bytes(dtype: int, data: bytes) -> list[float]:
    """Return the numbers."""
    if dtype in _PLAIN:
        return list(struct.unpack(f"={len(data) // struct.calcsize(_PLAIN[dtype])}{_PLAIN[dtype]}", data))
    if dtype == _BFLOAT16:
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    return [small(n, *_SMALL[dtype]) for n in data]


def small(bits: int, exponent: int, mantissa: int, bias: int, infinity: bool) -> float:
    """Return the value of an 8-bit float."""
    sign = -1.0 if bits >> 7 else 1.0
    power, part = bits >> mantissa & (2**exponent - 1), bits & (2**mantissa - 1)
    if power == 2**exponent - 1 and (infinity or part == 2**mantissa - 1):
        return sign * math.inf if infinity and part == 0 else math.nan
    if power == 0:
        return math.ldexp(sign * part, 1 - bias - mantissa)
    return math.ldexp(sign * (2**mantissa + part), power - bias - mantissa)
