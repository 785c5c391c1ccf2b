"""`test RELEASE` reads what `build RELEASE` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from build import paths
from build.errors import BusyError, UsageError
from build.wheeltest.suite import prove_release

RELEASE = "2.6.0"


def test_waits_for_a_build_and_does_not_touch_the_last_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_LOCK_TIMEOUT", "0.1")
    folder = tmp_path / RELEASE
    folder.mkdir()
    (folder / "test.log").write_text("the last run\n")
    with paths.locked(folder / "build", "the build"), pytest.raises(BusyError, match=r"the build of 2\.6\.0 is still"):
        prove_release(RELEASE, tmp_path, multiworld=False)
    assert (folder / "test.log").read_text() == "the last run\n"
    with pytest.raises(UsageError, match="holds no wheels"):
        prove_release(RELEASE, tmp_path, multiworld=False)
