"""A world whose peer is silent, and a barrier of another world on the same device."""

from __future__ import annotations

from breakage import answer, break_world

_PATIENCE = 5.0  # seconds for the barrier


def run() -> tuple[str, dict[str, object]]:
    """Leave an operation pending on one world, and wait for a barrier of the other."""
    breakage = break_world([], within=0, broken="second", until="", aborts=False)
    breakage.detail["barrier"] = answer(lambda: breakage.healthy.run("barrier"), _PATIENCE)
    return ("OK" if breakage.detail["barrier"] == "returned" else "STALLED"), breakage.detail
