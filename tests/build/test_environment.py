"""Settings of a user's git reach neither the tooling's commands nor these tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from build.process import FOREIGN, environment, run
from build.series.apply import apply_series
from tests.build.series.repos import make_patch, make_repo, numbered, parsed


def test_commands_get_nothing_that_another_git_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOREIGN:
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("HARMLESS", "kept")
    code = "import os; print(*sorted(name for name in os.environ if name.startswith(('GIT_', 'HARM'))))"
    found = run([sys.executable, "-c", code], env={"GIT_DIR": "/chosen"}).stdout.decode().split()
    ours = {name for name in os.environ if name.startswith("GIT_")} - FOREIGN
    assert set(found) == ours | {"GIT_DIR", "HARMLESS"}
    assert not FOREIGN & set(environment())


def test_series_applies_whatever_hash_the_user_prefers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = make_repo(tmp_path / "source", {"a.c": numbered(20)})
    patch = make_patch(git, {"a.c": numbered(20, l5="five\n")})
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    applied = apply_series(git.folder, "HEAD", [parsed(patch)], tmp_path / "target")
    assert (applied.checkout / "a.c").read_bytes() == numbered(20, l5="five\n")


def test_these_tests_have_nobodys_settings() -> None:
    assert os.environ["GIT_CONFIG_GLOBAL"] == os.devnull
    assert not (FOREIGN | {"MULTIWORLD_LOCK_TIMEOUT", "GIT_CONFIG_COUNT"}) & set(os.environ)
