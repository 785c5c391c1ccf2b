"""The rows of the table of backends: each runs here, or says why all tests are without it."""

from __future__ import annotations

import pytest

from tests.multiworld.faults.backends import BACKENDS, Backend, parameter


@pytest.mark.parametrize("row", [parameter(row) for row in BACKENDS])
def test_a_row_runs_or_says_why_not(row: Backend) -> None:
    assert row.missing() is None
