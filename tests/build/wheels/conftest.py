"""The miniature's official wheel, an overlay for it, and both wheels made of them; each made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from build.overlay.model import Overlay
from build.releases import Release
from build.wheels import overlay as overlay_wheel
from build.wheels import patched as patched_wheel
from build.wheels.platforms import platform_tag
from tests.build.overlay.little import Little
from tests.build.wheels import little_wheel as lw
from tests.once import once


@dataclass(frozen=True, slots=True)
class Made:
    release: Release
    official: Path
    overlay: Overlay
    tag: str
    patched: Path
    alone: Path


@pytest.fixture(scope="session")
def made(little: Little, request: pytest.FixtureRequest) -> Made:
    return once(request, "wheels", lambda folder: _make(little, folder))


def _make(little: Little, folder: Path) -> Made:
    official, release = lw.official(little, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTIWORLD_CACHE", str(folder / "cache"))
        overlay = lw.make_overlay(little, folder)
    tag = platform_tag(overlay.path)
    patched = patched_wheel.assemble(release, official, overlay, tag, lw.DOCUMENTS, folder / "dist")
    alone = overlay_wheel.assemble(release, official, overlay, tag, lw.DOCUMENTS, folder / "dist")
    return Made(release, official, overlay, tag, patched, alone)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with pip."""
    return lw.venv(tmp_path_factory.mktemp("venv") / "v")
