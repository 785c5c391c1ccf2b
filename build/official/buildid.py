"""The GNU build id of a shared library that goes by as a stream, so that a remote one need not be stored."""

from __future__ import annotations

import struct
from typing import IO

from build.errors import WheelError

_BLOCK = 1 << 20


def _notes(header: bytes) -> list[tuple[int, int]]:
    """Return offset and size of the note segments from the start of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    found = []
    for index in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", header, table + index * size)
        if kind == 4:  # PT_NOTE
            found.append((offset, length))
    return found


def _build_id(note: bytes) -> str:
    """Return the build id of a note segment, empty when it holds another note (ELF gABI, "Note Section")."""
    while len(note) >= 16:
        name_size, size, kind = struct.unpack_from("<III", note)
        start = 12 + (name_size + 3) // 4 * 4
        if kind == 3 and note[12:16] == b"GNU\0":  # NT_GNU_BUILD_ID
            return note[start : start + size].hex()
        note = note[start + (size + 3) // 4 * 4 :]
    return ""


def read_build_id(stream: IO[bytes]) -> str:
    """Return the GNU build id of a shared library that is read once, from front to back.

    patchelf has moved the note of the official libraries behind their code: most of the file goes by.

    Args:
        stream: a binary stream at its start.

    Raises:
        WheelError: there is none.
    """
    head = stream.read(_BLOCK)
    position = len(head)
    for offset, length in sorted(_notes(head)):
        if offset + length <= len(head):
            note = head[offset : offset + length]
        else:
            while position < offset:
                position += len(stream.read(min(_BLOCK, offset - position))) or offset
            note = stream.read(length)
            position += len(note)
        if found := _build_id(note):
            return found
    raise WheelError("the library has no GNU build id")
