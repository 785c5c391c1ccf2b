"""Facts about a wheel in words: the state of its proof, its checks, its tests."""

from __future__ import annotations

from enum import Enum

from build.wheelhouse.model import Form, Wheel
from build.wheeltest import environments


class State(Enum):
    """The state of a wheel's proof: symbol, word and meaning."""

    PROVEN = ("●", "proven", "its tests passed on exactly these bytes")
    BUILT = ("◐", "built", "it passed the checks of its build; no test result is known")
    FAILED = ("✕", "failed", "its tests failed, or those of the wheel built with it")
    FOREIGN = ("○", "no record", "not built here: only its own RECORD was checked")

    @property
    def symbol(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]

    @property
    def meaning(self) -> str:
        return self.value[2]


def state(item: Wheel) -> State:
    if item.made is None:
        return State.FOREIGN
    if not item.tests:
        return State.BUILT
    return State.PROVEN if all(result.proven for result in item.tests) else State.FAILED


def pythons(item: Wheel) -> str:
    """Return for which Pythons a wheel is, e.g. `3.11`, or `3, any` for one that no version is named for."""
    tag = item.contents.tags.split("-", 1)[0]
    return f"{tag[2]}.{tag[3:]}" if tag.startswith("cp3") and len(tag) > 3 else "any"


def checks(item: Wheel) -> str:
    """Return how many checks of the build passed."""
    if item.made is None:
        return "none"
    every = item.made.provenance.checks
    return f"{sum(check.passed for check in every)} of {len(every)} passed"


def tests(item: Wheel) -> tuple[str, ...]:
    """Return a line per Python on which a wheel was tested: what ran on this form of it."""
    form = environments.Form.PATCHED if item.form is Form.PATCHED else environments.Form.OVERLAY
    lines = []
    for result in item.tests:
        runs = [run for run in result.runs if run.form == form.value]
        counted = [f"{run.suite} {run.counts.get('passed', 0)} passed{_failed(run.counts)}" for run in runs]
        lines.append(f"Python {result.python}: {'; '.join(counted) or 'nothing ran'}")
    return tuple(lines)


def _failed(counts: dict[str, int]) -> str:
    kinds = ("failed", "failed as expected", "skipped")
    return "".join(f", {counts[kind]} {kind}" for kind in kinds if counts.get(kind))
