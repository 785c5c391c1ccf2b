"""Compile units at once, each of them once and the biggest first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from build.console import InFlight, note, progress
from build.errors import CompileError
from build.overlay.model import Inputs, Object
from build.overlay.objects import compile_one, jobs, override_headers
from build.process import run_together


class Pool:
    """The units that have been compiled, or do not compile, in the block of `compiling`."""

    def __init__(self, inputs: Inputs, overrides: Path, shown: InFlight) -> None:
        self._inputs, self._overrides, self._shown = inputs, overrides, shown
        self._made = dict[str, Object]()
        self._failed = dict[str, CompileError]()

    def compile(self, units: Mapping[str, str]) -> tuple[Object, ...]:
        """Return the objects of `units` (path to reason).

        Raises:
            CompileError: a unit does not compile; the message has the compiler's last lines.
        """
        new = [unit for unit in units if unit not in self._made]
        new.sort(key=lambda unit: -(self._inputs.tree / unit).stat().st_size)
        self._shown.expect(len(new))
        if new:
            tasks = [partial(self._compile, unit) for unit in new]
            self._made |= {item.unit: item for item in run_together(tasks, jobs(self._inputs.jobs), grace=0)}
        return tuple(replace(self._made[unit], why=why) for unit, why in units.items())

    def _compile(self, unit: str) -> Object:
        if unit in self._failed:
            raise self._failed[unit]
        try:
            item = compile_one(self._inputs, unit, self._overrides, self._shown)
        except CompileError as error:
            self._failed[unit] = error
            raise
        note(f"{unit}: {f'{item.seconds:.1f} s' if item.seconds else 'unchanged, reused'}")
        self._shown.advance()
        return item


@contextmanager
def compiling(inputs: Inputs) -> Iterator[Pool]:
    """Yield a pool with as many compilers as cores and memory allow; its objects stay when the block ends."""
    with tempfile.TemporaryDirectory(prefix="overrides-") as scratch, progress() as bar:
        override_headers(inputs, Path(scratch))
        yield Pool(inputs, Path(scratch), InFlight(bar, "compiling", 0, "units"))
