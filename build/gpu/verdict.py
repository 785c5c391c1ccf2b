"""The verdict of a run on a device: a skipped test has shown nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Tally:
    """Tests by outcome, and why the skipped ones were skipped."""

    passed: int
    failed: int
    skipped: int
    reasons: dict[str, int]

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read(junit: Path) -> Tally:
    """Count the cases of a JUnit file; a file that is missing has none."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    if junit.is_file():
        for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314 - written by our own pytest run
            skipped = case.find("skipped")
            bad = case.find("failure") is not None or case.find("error") is not None
            counts["failed" if bad else "skipped" if skipped is not None else "passed"] += 1
            if skipped is not None and not bad:
                reasons[skipped.get("message", "no reason given")] += 1
    return Tally(counts["passed"], counts["failed"], counts["skipped"], dict(reasons))
