"""Compile units at once, each of them once and the biggest first; more can be added while others compile."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import PriorityQueue

from build.console import InFlight, log, note, progress
from build.errors import ToolError
from build.overlay.model import Inputs, Object
from build.overlay.objects import compile_one, jobs, override_headers
from build.process import kill_all


class Pool:
    """The units that compile, or have been compiled, in the block of `compiling`."""

    def __init__(self, inputs: Inputs, overrides: Path, shown: InFlight, ahead: Ahead | None) -> None:
        self._inputs, self._overrides, self._shown, self._ahead = inputs, overrides, shown, ahead
        self._waiting = PriorityQueue[tuple[int, str]]()
        self._made = dict[str, Future[Object]]()
        self._tasks = list[Future[None]]()
        self._jobs = jobs(inputs.jobs)
        self._threads = ThreadPoolExecutor(self._jobs)
        self._lock = threading.Lock()

    def ended(self, unit: str) -> bool:
        """Return whether a unit is compiled, or does not compile."""
        return unit in self._made and self._made[unit].done()

    @property
    def last_round(self) -> bool:
        """Return whether no more units wait than compilers run at once."""
        return self._waiting.qsize() <= self._jobs

    @property
    def finished(self) -> list[Object]:
        """The objects so far."""
        ended = [future for future in tuple(self._made.values()) if future.done() and not future.exception()]
        return [future.result() for future in ended]

    def start(self, unit: str) -> Future[Object]:
        """Compile a unit as soon as a compiler is free; return what it becomes."""
        with self._lock:
            if unit not in self._made:
                size = (self._inputs.tree / unit).stat().st_size
                self._made[unit] = Future()
                self._shown.expect(1)
                self._waiting.put((-size, unit))
                self._tasks.append(self._threads.submit(self._next))
            return self._made[unit]

    def compile(self, units: Mapping[str, str]) -> tuple[Object, ...]:
        """Return the objects of `units` (path to reason).

        Raises:
            CompileError: a unit does not compile; the message has the compiler's last lines.
        """
        made = {unit: self.start(unit) for unit in units}
        for future in as_completed(made.values()):
            future.result()
        return tuple(replace(made[unit].result(), why=why) for unit, why in units.items())

    def _next(self) -> None:
        """Compile the biggest unit that waits."""
        _, unit = self._waiting.get_nowait()
        try:
            item = compile_one(self._inputs, unit, self._overrides, self._shown)
            note(f"{unit}: {f'{item.seconds:.1f} s' if item.seconds else 'unchanged, reused'}")
            self._shown.advance()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the unit gets it
            self._made[unit].set_exception(error)
            return
        self._made[unit].set_result(item)
        try:
            if self._ahead and not all(future.done() for future in tuple(self._made.values())):
                self._ahead(self)
        except (ToolError, RuntimeError) as error:  # the pool has ended; what is wrong with the object is found again
            log.debug("no unit is compiled ahead: %s", error)

    def end(self) -> None:
        """Kill the compilers whose units nobody waits for, after a failure or since they are not needed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Repeatedly: a thread may have been about to start its compiler.
        while pending := [task for task in tuple(self._tasks) if not task.done()]:
            kill_all()
            wait(pending, timeout=0.1)
        self._threads.shutdown(wait=True)


#: Is called after each object that is made, in the thread that made it, and may start more units.
Ahead = Callable[[Pool], None]


@contextmanager
def compiling(inputs: Inputs, ahead: Ahead | None = None) -> Iterator[Pool]:
    """Yield a pool with as many compilers as cores and memory allow; its objects stay when the block ends."""
    with tempfile.TemporaryDirectory(prefix="overrides-") as scratch, progress() as bar:
        override_headers(inputs, Path(scratch))
        pool = Pool(inputs, Path(scratch), InFlight(bar, "compiling", 0, "units"), ahead)
        try:
            yield pool
        finally:
            pool.end()
