"""The findings of ``multiworld doctor``."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass


class Verdict(enum.Enum):
    """Of one check."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; ``remedy`` is empty if there is nothing to do."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {**asdict(self), "verdict": self.verdict.value}


def judged(name: str, good: bool, found: str, remedy: str, otherwise: Verdict = Verdict.FAIL) -> Check:
    """A check that is OK if ``good``, else ``otherwise`` with its remedy."""
    return Check(name, Verdict.OK, found) if good else Check(name, otherwise, found, remedy)
