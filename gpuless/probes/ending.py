"""The application gets rid of a broken world; that may not end or block the process either."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from breakage import Breakage, answer, break_world
from world import forget

_PATIENCE = 20.0  # seconds to get rid of a world


def run(
    how: str, inject: list[tuple[str, int, int]], until: str = "", aborts: bool = True, backend: str = "classic"
) -> tuple[str, dict[str, object]]:
    """Break a world, end it, and use the other one.

    Args:
        how: "abort" (its method, `_shutdown` before 2.6, `_abort` in 2.1) or "delete" (drop the last reference).
        inject, until, aborts, backend: see `breakage.break_world`.
    """
    breakage = break_world(inject, within=12, broken="second", until=until, aborts=aborts, backend=backend)
    breakage.detail["ended"] = answer(_WAYS[how](breakage), _PATIENCE)
    time.sleep(2)  # no event to wait for: what must not happen is an end of the process
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", breakage.detail
    return ("STALLED" if breakage.detail["ended"] == "no answer" else "OK"), breakage.detail


def _abort(breakage: Breakage) -> Callable[[], object]:
    group = breakage.sick.group
    names = ("abort", "_shutdown", "_abort")
    way: Callable[[], object] = next(getattr(group, name) for name in names if hasattr(group, name))
    return way


def _delete(breakage: Breakage) -> Callable[[], object]:
    def delete() -> None:
        forget(breakage.sick)
        breakage.work = breakage.sick.group = None
        gc.collect()

    return delete


_WAYS = {"abort": _abort, "delete": _delete}
