"""Fit added lines to how the new file is indented and where its lines end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from build.porting.lines import indent


class UnevenError(Exception):
    """The lines around are not all shifted by the same amount."""


def fit(added: Sequence[bytes], pairs: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], str]:
    """Return `added` as the new file would have it.

    Args:
        added: the lines a patch adds.
        pairs: lines of the old file near the place, each with the line of the new file it became.

    Returns:
        The lines, and what was done to them, for people; empty when nothing.

    Raises:
        UnevenError: the pairs do not agree on one change of indentation.
    """
    known = [(a, b) for a, b in pairs if a.strip() and not a.lstrip().startswith(b"#")]
    shifts = {_shift(indent(a), indent(b)) for a, b in known}
    if len(shifts) > 1 or None in shifts:
        raise UnevenError
    removed, extra = next((shift for shift in shifts if shift is not None), (b"", b""))
    dos = bool(known) and all(b.endswith(b"\r\n") and not a.endswith(b"\r\n") for a, b in known)
    lines = [_shifted(line, removed, extra) for line in added]
    notes = []
    if removed or extra:
        notes.append(f"re-indented by {len(extra) - len(removed):+d}")
    if dos:
        lines = [line[:-1] + b"\r\n" if line.endswith(b"\n") else line for line in lines]
        notes.append("line ends as in the new file")
    return lines, ", ".join(notes)


def _shift(old: bytes, new: bytes) -> tuple[bytes, bytes] | None:
    """Return what was taken from and what was put before an indentation; None if it is neither."""
    if new.endswith(old):
        return b"", new[: len(new) - len(old)]
    if old.endswith(new):
        return old[: len(old) - len(new)], b""
    return None


def _shifted(line: bytes, removed: bytes, extra: bytes) -> bytes:
    if not line.strip() or (line.startswith(b"#") and not removed):
        return line
    if removed and not line.startswith(removed):
        raise UnevenError
    return extra + line[len(removed) :]
