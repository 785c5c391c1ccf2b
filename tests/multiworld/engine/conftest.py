"""The compiled engine of the package."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """The module of the binding."""
    from multiworld.engine import library  # which loads torch

    module = library.compiled()
    assert module is not None, "_engine.abi3.so is missing: install multiworld, or run python hatch_build.py"
    return module  # type: ignore[no-any-return]
