"""The share of the processors that other programs take during a measurement.

The kernel counts what all programs take (``/proc/stat``) and what this one takes, with its children that have ended.
The difference is what the others took. The load average says less: it counts this program too, and lags by a minute.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

#: others may take this share of all processors before what is measured says nothing
_BUSY_SHARE = 0.1
#: fields of the first line of /proc/stat that are work of programs: user, nice, system, steal; see proc_stat(5)
_FIELDS = (1, 2, 3, 8)


@dataclass(frozen=True, slots=True)
class Load:
    """The load by others: ``others`` processors on average, of ``cores``."""

    others: float
    cores: int

    @property
    def busy(self) -> bool:
        return self.others > _BUSY_SHARE * self.cores

    def __str__(self) -> str:
        took = f"other programs took {self.others:.2f} of {self.cores} processors meanwhile"
        return f"{took}: a figure that misses its limit is not judged" if self.busy else took


class LoadMeter:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._start = self._now()

    def read(self) -> Load:
        """Return the load by others so far; children of ours that have not ended count as others."""
        wall, all_programs, ours = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return Load(max(0.0, all_programs - ours) / wall if wall else 0.0, os.cpu_count() or 1)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        ours = sum(item.ru_utime + item.ru_stime for item in used)
        return time.monotonic(), sum(int(fields[i]) for i in _FIELDS) / os.sysconf("SC_CLK_TCK"), ours
