"""What `ci/install` makes of what Ansible's plugin writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.cluster.results import Result, problems, read


def told(tmp_path: Path, *lines: str) -> list[Result]:
    (tmp_path / "results").write_text("".join(lines))
    return read(tmp_path / "results")


def event(host: str, facts: object = None, outcome: str = "", why: str = "") -> str:
    return json.dumps({"host": host, "facts": facts, "outcome": outcome, "why": why}) + "\n"


def test_a_run_that_ends_in_the_middle_of_a_line_tells_what_was_known(tmp_path: Path) -> None:
    lines = [event("one"), event("two"), event("one", {"outcome": "installed", "release": "x"})]
    found = told(tmp_path, *lines, event("two", {"outcome": "installed"})[:-9])
    assert [(one.host, one.outcome) for one in found] == [("one", "installed"), ("two", "not finished")]


def test_the_first_failure_counts(tmp_path: Path) -> None:
    """Hosts are undrained after it, and a loop that fails has no reason of its own."""
    lines = [event("one", None, "failed", "no room"), event("one", None, "failed", "One or more items failed")]
    (one,) = told(tmp_path, *lines, event("one", {"outcome": "unchanged"}))
    assert problems([one]) == "one: failed: no room"


@pytest.mark.parametrize("facts", [5, {"outcome": "fine"}, {"kept": [1]}, {"doctor": [{"name": {}}]}])
def test_an_answer_that_is_not_the_modules_fails_its_host(facts: object, tmp_path: Path) -> None:
    (one,) = told(tmp_path, event("one", facts))
    assert (one.outcome, one.what) == ("failed", "its answer is not that of the module")


@pytest.mark.parametrize(
    ("why", "meaning"),
    [
        # Whoever says it: uv has it at the end of a list of causes.
        (
            "uv-program pip sync failed with status 1\nerror: failed\n  cause: No space left on device (os error 28)",
            "its disk is full: free space there, or name another --prefix",
        ),
        # Words of ansible-core 2.21.
        (
            "Ansible requires Python 3.9 or newer on the target. Current version: 3.8.18 (default)",
            "its Python is too old: set ansible_python_interpreter to another one",
        ),
    ],
)
def test_a_cause_is_told_with_what_to_do(why: str, meaning: str, tmp_path: Path) -> None:
    (one,) = told(tmp_path, event("one", None, "failed", why))
    assert one.what == f"{meaning}\n{why}"
