"""A package without its compiled engine says so, once, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld import BackendUnavailable, MultiWorld
from multiworld.cli import doctor
from multiworld.engine import library

hatch_build: Any = pytest.importorskip("hatch_build", reason="only in a source tree")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_module", None)
    monkeypatch.setattr(library, "_why", "No module named 'multiworld._engine'")


@pytest.mark.usefixtures("missing")
def test_nothing_can_be_joined() -> None:
    with pytest.raises(BackendUnavailable, match=r"cannot be loaded: No module(?s:.)*python hatch_build\.py"):
        MultiWorld()


@pytest.mark.usefixtures("missing")
def test_doctor_says_it() -> None:
    found = {check.name: check for check in doctor.examine()}
    assert found["engine"].verdict is doctor.Verdict.FAIL
    assert "compiler" in (found["engine"].remedy or "")


class AbortedError(Exception):
    """What a build hook's ``app.abort`` raises."""


class App:
    """Hatchling's."""

    def abort(self, text: str) -> None:
        raise AbortedError(text)

    def display_warning(self, text: str) -> None:
        """Pulse may be missing."""


def test_an_installation_without_a_compiler_ends_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "compile_into", lambda *_: "no compiler was found (c++, g++)")
    hook = object.__new__(hatch_build.NativeBuildHook)
    for name, value in {"root": ".", "app": App()}.items():
        monkeypatch.setattr(type(hook), name, value, raising=False)
    with pytest.raises(AbortedError, match=r"(?s)no compiler was found.*likely cause:.*what to do: install a compiler"):
        hook.initialize("standard", {"force_include": {}, "sbom_files": []})
