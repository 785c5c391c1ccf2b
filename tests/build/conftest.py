"""Fixtures that several suites of the tooling share; nothing is made before a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from build.process import FOREIGN
from tests.build.with_nox import nox_is_here as nox_is_here
from tests.once import once

if TYPE_CHECKING:
    from tests.build.overlay.little import Little
    from tests.build.pipeline.little_release import Place


#: Settings that git takes from the environment, and this project's own; a test that is about one sets it itself.
_SETTINGS = ("GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS", "MULTIWORLD_LOCK_TIMEOUT")


@pytest.fixture(scope="session", autouse=True)
def nobodys_settings() -> Iterator[None]:
    """The tests run alike on everyone's machine, and from a git hook: its repository is not theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*FOREIGN, *_SETTINGS):
            patch.delenv(name, raising=False)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        yield


@pytest.fixture(scope="session")
def little(request: pytest.FixtureRequest) -> Little:
    """A PyTorch in miniature, compiled once."""
    from tests.build.overlay.little import make

    return once(request, "little", make)


@pytest.fixture(scope="session")
def whole_release(little: Little, request: pytest.FixtureRequest) -> Place:
    """The release in miniature, built once: not to be changed, but copied (`built_release`)."""
    from tests.build.pipeline import little_release

    def make(folder: Path) -> Place:
        place = little_release.make(little, folder)
        status, output = little_release.build(place)
        assert status == 0, output
        return place

    return once(request, "whole", make)


@pytest.fixture
def built_release(whole_release: Place, tmp_path: Path) -> Place:
    """A release that was built, of the test's own: its caches are filled, and its wheels are right."""
    from tests.build.pipeline import little_release

    return little_release.copied(whole_release, tmp_path)


@pytest.fixture(scope="module")
def module_cache(little: Little, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that the tests of one module share: equal inputs are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        (folder / "runtime").symlink_to(little.runtime)
        patch.setenv("MULTIWORLD_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MULTIWORLD_CACHE", str(folder))
    return folder
