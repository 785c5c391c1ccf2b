"""A kill in the middle of writing a wheel leaves 770 MB in the folder of results: the next build removes them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from build.wheels import overlay, patched
from tests.build.wheels import little_wheel as lw
from tests.build.wheels.conftest import Made


def _killed(module: ModuleType, assemble: Callable[[], Path]) -> None:
    """Assemble a wheel and die when all of it is written but its name."""
    module.check_archive = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    assemble()


@pytest.mark.parametrize("module", [patched, overlay])
def test_what_a_killed_assembly_left(module: ModuleType, made: Made, tmp_path: Path) -> None:
    def assemble() -> Path:
        return Path(module.assemble(made.release, made.official, made.overlay, made.tag, lw.DOCUMENTS, tmp_path))

    process = multiprocessing.get_context("fork").Process(target=_killed, args=(module, assemble))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    again = assemble()
    assert list(tmp_path.iterdir()) == [again]
