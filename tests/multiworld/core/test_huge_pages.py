"""A process that has put its memory into huge pages: it has what it had, and so have its children."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from procs import cluster

from multiworld.lab.context import Context
from multiworld.lab.huge_pages import _whole, collapse

MAPS = """\
5581a0000000-5581a0001000 rw-p 00000000 00:00 0                          [heap]
5581a0100000-5581a0900000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 r--p 00000000 00:00 0
7f0002000000-7f0002400000 rw-s 00000000 00:01 42                         /dev/zero (deleted)
7f0003000000-7f0003400000 rw-p 00000000 fe:00 77                         /usr/lib/libtorch_cpu.so
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0                          [stack]
"""


def test_what_can_be_huge() -> None:
    assert list(_whole(MAPS)) == [(0x5581A0200000, 6 << 20), (0x7F0000000000, 4 << 20)]


def _huge(context: Context) -> tuple[int, bytes, bytes]:
    """By how many kB more is huge than before of 16 MB, and what is in them before and after they are written to."""
    memory = ctypes.create_string_buffer(b"told", 16 << 20)
    small = _kilobytes("AnonHugePages")
    collapse()
    before, more = memory.raw[:4], _kilobytes("AnonHugePages") - small
    memory[1] = b"A"
    return more, before, memory.raw[:4]


def _kilobytes(what: str) -> int:
    found = re.search(rf"^{what}: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_memory_is_huge_and_the_same() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has no transparent huge pages")
    if not _can_collapse():
        pytest.skip("this kernel does not put memory into huge pages when it is asked (Linux 6.1 does)")
    with cluster() as c:
        huge, before, after = c.start(_huge).result()
    assert huge >= 2 << 10  # a kernel whose memory is in pieces need not find room for all
    assert (before, after) == (b"told", b"tAld")


def _can_collapse() -> bool:
    from multiworld.lab.huge_pages import _MADV_COLLAPSE

    libc = ctypes.CDLL(None, use_errno=True)
    memory = ctypes.create_string_buffer(6 << 20)
    start = -(-ctypes.addressof(memory) // (2 << 20)) * (2 << 20)
    return bool(libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(2 << 20), _MADV_COLLAPSE) == 0)
