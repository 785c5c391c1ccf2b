"""Decide whether the overlay belongs to this torch, and load it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from ._others import exports, in_process, listed

HERE = Path(__file__).resolve().parent
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3


def note_build_id(data: bytes) -> str:
    """Return the build id in a note segment (ELF gABI, "Note Section") in hexadecimal, empty when it holds none."""
    place = 0
    while place + 12 <= len(data):
        name, size, kind = struct.unpack_from("<III", data, place)
        start = place + 12 + (name + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and data[place + 12 : place + 15] == b"GNU":
            return data[start : start + size].hex()
        place = start + (size + 3 & ~3)
    return ""


def note_segments(stream: BinaryIO) -> list[tuple[int, int]]:
    """Return offset and size of the note segments of a 64-bit little-endian library, none for another file."""
    header = stream.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        return []
    entry, count = struct.unpack_from("<HH", header, 54)
    stream.seek(struct.unpack_from("<Q", header, 32)[0])
    table = stream.read(entry * count)
    found = (struct.unpack_from("<IIQQQQ", table, index * entry) for index in range(count))
    return [(start, size) for kind, _, start, _, _, size in found if kind == _PT_NOTE]


def build_id(path: Path) -> str:
    """Return the GNU build id of a library, empty when it has none; only a few hundred bytes of it are read."""
    with path.open("rb") as stream:
        for start, size in note_segments(stream):
            stream.seek(start)
            if found := note_build_id(stream.read(min(size, 4096))):
                return found
    return ""


def _mapped(name: str) -> bool:
    """Return whether a library of that file name is already loaded in this process."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return f"/{name}\n" in maps


def _warn(reason: str) -> None:
    """Warn without a line of source, which would not help a user; it never makes the import of torch fail."""
    text = f"multiworld's overlay is not active, torch works without it: {reason}"
    try:
        warnings.warn_explicit(text, RuntimeWarning, "multiworld_torch_overlay", 0)
    except RuntimeWarning:  # warnings are errors (`-W error`): then it is only printed
        print(f"warning: {text}", file=sys.stderr)  # noqa: T201


def _inside(torch_dir: Path, facts: dict[str, Any]) -> tuple[str, str]:
    """Return why an overlay inside of this torch, a patched wheel, keeps this one out, and what to warn of; or `""`.

    It keeps out any other: torch's libraries would be bound to the one that is loaded first, and to no second one.
    """
    ours = HERE / "lib" / facts["soname"]
    for theirs in sorted((torch_dir / "lib").glob("libtorch_mw*.so")):
        found = re.search(r"^__version__ = '(.*)'", (torch_dir / "version.py").read_text(encoding="utf-8"), re.M)
        version = found[1] if found else "of no version"
        if version == facts["version"] or theirs.read_bytes() == ours.read_bytes():
            return "this torch is a patched wheel and has its overlay inside", ""
        reason = (
            f"torch {version} is a patched wheel with an overlay, {theirs.name}, and this is {ours.name} of "
            f"{facts['version']}; {listed(exports(ours) & exports(theirs))}: build the patches of both together"
        )
        return reason, reason
    return "", ""


def _in_process(facts: dict[str, Any]) -> str:
    """Return why this overlay would not be in force, or only in part: other libraries have its symbols already."""
    name = facts["soname"]
    found = in_process(exports(HERE / "lib" / name))
    said = [f"{library} is in the process before {name}; {listed(found[library])}" for library in sorted(found)]
    return "; ".join([*said, "load one of them only"]) if said else ""


def _refusal(torch_dir: Path, facts: dict[str, Any]) -> tuple[str, str]:
    """Return why the overlay must not be loaded, empty if it may be, and what to warn of, in short, if anything."""
    library = torch_dir / "lib" / "libtorch_cuda.so"
    made_for = f"it was made for torch {facts['made_for']}"
    if os.environ.get("MULTIWORLD_TORCH_OVERLAY", "1") == "0":
        return "switched off by MULTIWORLD_TORCH_OVERLAY=0", ""
    if (other := _inside(torch_dir, facts))[0]:
        return other
    if not library.exists():
        return (reason := f"{made_for}, but the torch in {torch_dir} has no CUDA"), reason
    if (have := build_id(library)) not in facts["build_ids"]:
        wanted = f"{made_for}, whose libtorch_cuda.so has build id {' or '.join(facts['build_ids'])}"
        return f"{wanted}; {library} has build id {have or '(none)'}", f"{made_for}, and this is another build of torch"
    if torch_dir.resolve() != HERE.parent / "torch":
        reason = f"torch is in {torch_dir}, the overlay in {HERE}: install both into the same environment"
        return reason, reason
    if _mapped("libtorch_cuda.so"):
        reason = "libtorch_cuda.so was loaded before torch was imported, so its code can no longer be replaced"
        return reason, reason
    reason = _in_process(facts)
    return reason, reason


def _try(torch_dir: Path) -> tuple[str, str]:
    """Load the overlay if it may be; return what `_refusal` returns."""
    facts: dict[str, Any] = json.loads((HERE / "overlay.json").read_text(encoding="utf-8"))
    reason, warning = _refusal(torch_dir, facts)
    if not reason:
        try:
            ctypes.CDLL(str(HERE / "lib" / facts["soname"]), mode=os.RTLD_LOCAL)
        except OSError as error:
            return (reason := f"the dynamic loader refused it: {error}"), reason
    return reason, warning


def load(torch_dir: str) -> str:
    """Load the overlay for the torch package in `torch_dir`, or warn and leave torch as it is; return the state."""
    try:
        reason, warning = _try(Path(torch_dir))
    except Exception as error:  # noqa: BLE001  # damaged files raise any of these, and torch must be imported all the same
        reason = warning = f"its own files or torch's cannot be read: {error!r}"
    if warning:
        _warn(warning)
    return f"not loaded: {reason}" if reason else "loaded"
