"""Short forms for measured outcomes. Only releases that were run are named anywhere here."""

from __future__ import annotations

from collections.abc import Mapping

from tests.gpuless.model import Outcome

OK = Outcome.OK
DEAD = Outcome.TERMINATED
LEAK = Outcome.GROUP_LEAKED
TYPE = Outcome.WRONG_EXCEPTION


def measured(**by_release: Outcome) -> Mapping[str, Outcome]:
    """Return outcomes by release: `measured(v2_6_0=OK)` is `{"2.6.0": Outcome.OK}`."""
    return {name.removeprefix("v").replace("_", "."): outcome for name, outcome in by_release.items()}
