"""Slurm's hostlists: `node[01-20],login1` names 21 hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from build.errors import UsageError

#: A host name, with or without `user@`, whose brackets hold numbers; IPv6 addresses have colons.
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,:-]+\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
#: `01-20`, or with a colon as in Ansible's inventories, or one number.
_RANGE = re.compile(r"(\d+)(?:[-:](\d+))?")
#: A typing error such as `[1-200000]` is said, not carried out.
MOST = 100_000


def expand(text: str) -> list[str]:
    """Return the hosts of a list in its order, each once; a range keeps the leading zeros of its first number.

    Raises:
        UsageError: the list is malformed or names more than `MOST` hosts.
    """
    found: dict[str, None] = {}
    for item in split(text):
        for name in _expand(item, text):
            found[name] = None
            if len(found) > MOST:
                raise UsageError(f"{text!r} names more than {MOST} hosts", remedy="correct the range")
    return list(found)


def split(text: str) -> list[str]:
    """Split at the commas and blanks that are outside of brackets."""
    items = _ITEM.findall(text)
    if re.sub(r"[,\s]", "", text) != "".join(items).replace(",", "") or _unclosed(text):
        raise _malformed(text)
    return items


def _unclosed(text: str) -> bool:
    return "[" in _BRACKETS.sub("", text) or "]" in _BRACKETS.sub("", text)


def _expand(item: str, text: str) -> Iterator[str]:
    parts = _BRACKETS.split(item)  # plain, brackets, plain, brackets, …, plain
    choices = [list(_numbers(part, text)) if place % 2 else [part] for place, part in enumerate(parts)]
    yield from map("".join, product(*choices))


def _numbers(inside: str, text: str) -> Iterator[str]:
    for part in inside.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _malformed(text)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MOST:
            raise UsageError(f"{text!r} has a range that is empty or too long: {part}", remedy="correct the range")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _malformed(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a list of hosts", remedy="write it as Slurm does, e.g. node[01-20],login1")
