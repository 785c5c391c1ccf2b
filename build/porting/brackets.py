"""Count the brackets of C and C++, for files that a grammar cannot read."""

from __future__ import annotations

from build.porting.preprocessor import variants

_PAIRS = (b"{}", b"()", b"[]")


def surplus(data: bytes) -> tuple[tuple[int, ...], ...]:
    """Return how many brackets of each kind are open at the end, for each of the preprocessor's variants."""
    return tuple(
        tuple(variant.count(pair[:1]) - variant.count(pair[1:]) for pair in _PAIRS) for variant in variants(data)
    )


def changed(before: bytes, after: bytes) -> str:
    """Return which brackets a change leaves open or closes without having opened them, in words; empty if none.

    A file in which all match is well. A variant that only one of the two files has is compared with the other's first.
    """
    new = surplus(after)
    if not any(map(any, new)):
        return ""
    old = surplus(before)
    for number in range(max(len(old), len(new))):
        one, other = (side[number] if number < len(side) else side[0] for side in (old, new))
        for pair, was, now in zip(_PAIRS, one, other, strict=True):
            if now > was:
                return f"{now - was} more '{pair[:1].decode()}' than '{pair[1:].decode()}'"
            if now < was:
                return f"{was - now} more '{pair[1:].decode()}' than '{pair[:1].decode()}'"
    return ""
