"""The table of kinds is well formed; `python -m tests.build.kinds` builds its rows."""

from __future__ import annotations

import pytest

from build.series import patchfile
from tests.build.kinds.row import load, names


@pytest.mark.parametrize("name", names())
def test_a_row_is_complete(name: str) -> None:
    row = load(name)
    assert patchfile.read(row.patch).changes
    assert row.kind
