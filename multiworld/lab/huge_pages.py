"""Huge pages for a process that forks: a fork copies the tables of its pages, and the child's end takes them apart.

With torch loaded these are some 40,000 pages, most of the kernel's work for a worker; as huge pages they are few, and
what a worker writes to is copied in small pages all the same.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

_SIZE = 2 << 20
_MADV_COLLAPSE = 25
# Private memory without a file: the heap, and what allocators have mapped. Not the stack.
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\s*(?:\[heap\]|\[anon:.*\])?")


def _whole(maps: str) -> Iterator[tuple[int, int]]:
    """The parts of anonymous memory that huge pages can fill: address and length."""
    for line in maps.splitlines():
        if found := _ANONYMOUS.fullmatch(line):
            start, end = -(-int(found[1], 16) // _SIZE) * _SIZE, int(found[2], 16) // _SIZE * _SIZE
            if start < end:
                yield start, end - start


def collapse() -> None:
    """Put this process's memory into huge pages where the kernel can; before Linux 6.1 nothing changes."""
    if os.sysconf("SC_PAGE_SIZE") != 4096:  # huge pages have another size there
        return
    libc = ctypes.CDLL(None)
    for start, length in _whole(Path("/proc/self/maps").read_text()):
        # Refused for memory that may not be huge, such as stacks of threads: that is as good as not asked.
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)
