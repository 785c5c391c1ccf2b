"""Hosts as Slurm lists them, each with or without `USER@`: `node[01-20],login1`."""

from __future__ import annotations

import re
from itertools import product
from math import prod

from build.errors import UsageError

_NUMBERS = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
#: What begins with a dash would be an option of ssh.
_ITEM = re.compile(rf"(?!-)(?:[\w.:@-]|{_NUMBERS})+")
MOST = 100_000


def expand(text: str) -> list[str]:
    """Return the hosts of a list in its order, each once; a range keeps the leading zeros of its first number.

    Raises:
        UsageError: a part of it is no such list, or has too many hosts.
    """
    found: dict[str, None] = {}
    for item in re.split(r"[,\s]+(?![^\[]*\])", text.strip(", ")):
        parts = [_numbers(part) if part[:1] == "[" else [part] for part in re.split(r"(\[.*?\])", item)]
        if not _ITEM.fullmatch(item) or not 0 < prod(map(len, parts)) <= MOST:
            remedy = f"give a list of at most {MOST} hosts as Slurm writes them, e.g. node[01-20],login1"
            raise UsageError(f"--hosts: {item!r} is not a list of hosts", remedy=remedy)
        found.update(dict.fromkeys(map("".join, product(*parts))))
    return list(found)


def _numbers(brackets: str) -> list[str]:
    """Return the numbers of ranges: none if one of these is empty, one too many if one is too long."""
    ends = [(first, int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", brackets)]
    if any(last < first for _, first, last in ends):
        return []
    return [str(number).zfill(len(text)) for text, *of in ends for number in range(of[0], of[1] + 1)[: MOST + 1]]


def inventory(text: str) -> dict[str, object]:
    """Return Ansible's inventory of a list."""
    hosts: dict[str, dict[str, str]] = {}
    for name in expand(text):
        user, _, address = name.rpartition("@")
        hosts[name] = {"ansible_host": address} | ({"ansible_user": user} if user else {})
    return {"all": {"hosts": hosts}}
