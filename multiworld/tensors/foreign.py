"""Memory that PyTorch did not allocate: whether it may be written to, as far as that can be known.

A tensor over a file that is mapped read-only, or over a ``bytes`` object, looks like any other. Writing through it ends
the process or changes a constant of the program, so a target on memory of somebody else is looked at first. What stays
unknown is a read-only view of memory that itself may be written, such as a NumPy array with its flag off.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE of Linux 5.14: fails where a write would, and changes nothing
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_BYTES_HEADER: Final = bytes.__basicsize__ - 1  # reference count, type, length, hash; then the bytes themselves


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    vector = ctypes.c_void_p, ctypes.c_ulong
    libc.process_vm_readv.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


def why_read_only(begin: int, address: int, nbytes: int) -> str | None:
    """Why the memory must not be written to; None if nothing speaks against it.

    Args:
        begin: address of the storage.
        address: address of what would be written, in the storage.
        nbytes: how much would be written.
    """
    if nbytes == 0:
        return None
    if _is_bytes(begin, address + nbytes - begin):
        return "it lies in a bytes object, which never changes"
    first = address - address % _PAGE
    if _libc().madvise(first, address + nbytes - first, _POPULATE_WRITE) == 0:
        return None
    number = ctypes.get_errno()
    if number == errno.EFAULT:
        return "it lies in a file that has become shorter"
    if number == errno.EINVAL and _mapped_read_only(
        address, nbytes
    ):  # also the answer of kernels that know no such call
        return "it lies in memory that is mapped read-only"
    return None


def _is_bytes(begin: int, nbytes: int) -> bool:
    """Return whether a ``bytes`` object's content begins there: its header before it tells, read without a risk to
    fault."""
    header = (ctypes.c_ssize_t * (_BYTES_HEADER // _WORD))()
    here = _Vector(ctypes.addressof(header), _BYTES_HEADER)
    there = _Vector(begin - _BYTES_HEADER, _BYTES_HEADER)
    got = _libc().process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return bool(got == _BYTES_HEADER and header[1] == id(bytes) and header[2] >= nbytes)


def _mapped_read_only(address: int, nbytes: int) -> bool:
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            area, rights, *_ = line.split(maxsplit=2)
            begin, _, end = area.partition("-")
            if int(begin, 16) < address + nbytes and address < int(end, 16) and "w" not in rights:
                return True
    return False
