"""Hosts as Slurm lists them, each with or without `USER@`: `-i 'node[01-20],login1,'`."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from pathlib import Path

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

DOCUMENTATION = "name: slurm\nshort_description: Hosts as Slurm lists them\n"
_NUMBERS = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
#: What begins with a dash would be an option of ssh.
_ITEM = re.compile(rf"(?!-)(?:[\w.:@-]|{_NUMBERS})+")
MOST = 100_000


def expand(text: str) -> list[str]:
    """Return the hosts of a list in its order, each once; a range keeps the leading zeros of its first number."""
    found: dict[str, None] = {}
    for item in re.split(r"[,\s]+(?![^\[]*\])", text.strip(", ")):
        parts = [_numbers(part) if part[:1] == "[" else [part] for part in re.split(r"(\[.*?\])", item)]
        if not _ITEM.fullmatch(item) or not 0 < prod(map(len, parts)) <= MOST:
            wanted = f"a list of at most {MOST} hosts as Slurm writes them, e.g. node[01-20],login1"
            raise AnsibleParserError(f"{item!r} is not {wanted}")
        found.update(dict.fromkeys(map("".join, product(*parts))))
    return list(found)


def _numbers(brackets: str) -> list[str]:
    """Return the numbers of ranges: none if one of these is empty, one too many if one is too long."""
    ends = [(first, int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", brackets)]
    if any(last < first for _, first, last in ends):
        return []
    return [str(number).zfill(len(text)) for text, *of in ends for number in range(of[0], of[1] + 1)[: MOST + 1]]


class InventoryModule(BaseInventoryPlugin):
    """The plugin."""

    NAME = "slurm"

    def verify_file(self, path: str) -> bool:
        return "," in path and not Path(path).exists()

    def parse(self, inventory, loader, path: str, cache: bool = True) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        super().parse(inventory, loader, path, cache)
        for name in expand(path):
            user, _, address = name.rpartition("@")
            inventory.add_host(name)
            inventory.set_variable(name, "ansible_host", address)
            if user:
                inventory.set_variable(name, "ansible_user", user)
