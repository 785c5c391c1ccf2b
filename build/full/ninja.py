"""Read the output and the records of ninja: progress, failures, and the seconds that each unit took."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID

from build.console import note

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_FAILED = re.compile(r"^FAILED: (?:\[code=\d+\] )?(.*)")
#: Lines of a failed command's output that are kept for the message.
_KEPT = 40
#: On a pipe, a line per this many percent; a terminal has a bar.
_PERCENT = 5


@dataclass(slots=True)
class Watch:
    """Reads a build's output line by line.

    Attributes:
        done: steps that ninja has finished, of `total`.
        failed: what ninja says of failed steps: name, command and output.
        tail: the last lines of the output, for a failure that is not ninja's.
    """

    bar: Progress
    task: TaskID
    done: int = 0
    total: int = 0
    failed: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    _reading: bool = False
    _said: int = -1

    def line(self, text: str) -> None:
        self.tail = [*self.tail[1 - _KEPT :], text]
        if status := _STATUS.match(text):
            self._reading = False
            self._advance(int(status[1]), int(status[2]), status[3])
        elif _FAILED.match(text):
            self._reading = True
        if self._reading and len(self.failed) < 2 * _KEPT:
            self.failed.append(text)

    def _advance(self, done: int, total: int, what: str) -> None:
        self.done, self.total = done, total
        self.bar.update(self.task, completed=done, total=total, description=f"building {what[-50:]}")
        percent = 100 * done // max(total, 1)
        if self.bar.disable and percent // _PERCENT != self._said:
            self._said = percent // _PERCENT
            note(f"{percent} %: {done} of {total} steps")


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its first output, and how many seconds it took."""

    output: str
    seconds: float


def steps(tree: Path) -> tuple[Step, ...]:
    """Return the steps that ninja has recorded in the build folders of `tree`, the last of each output."""
    found: dict[str, Step] = {}
    # setup.py runs CMake in `build` itself or in a folder or two below it; deeper there are only objects.
    for log in sorted(path for depth in ("", "*/", "*/*/") for path in tree.glob(f"build/{depth}.ninja_log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
                output = f"{log.parent.relative_to(tree)}/{fields[3]}"
                found[output] = Step(output, (int(fields[1]) - int(fields[0])) / 1000)
    return tuple(found.values())
