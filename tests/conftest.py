"""Options and fixtures that all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# Until all is loaded; see `pytest_collection`. That is a second of each process with torch.
gc.disable()


def _end_at_once(pid: int) -> None:
    """End this process, but not what a test has forked from it, without taking torch apart: that takes half a second.

    What tests register later is called before. A process of pytest-xdist has told all by then.
    """
    if os.getpid() == pid:
        os._exit(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the nightly run."""
    parser.addoption("--whole", action="store_true", help="run the rows marked `nightly`, too, and longer searches")


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """The value of `--whole`, for tests that look longer for what is rare."""
    return bool(pytestconfig.getoption("--whole"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the rows that only `--whole` runs."""
    if config.getoption("--whole"):
        return
    if nightly := [item for item in items if item.get_closest_marker("nightly")]:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program or a header that README does not ask for, where it is missing."""
    if item.get_closest_marker("patch") and shutil.which("patch") is None:
        pytest.skip("the program patch is missing; the package patch has it")
    if item.get_closest_marker("headers") and not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python.h is missing; the package python3-dev has it")


def pytest_configure(config: pytest.Config) -> None:
    """Not by the variable of pytest-xdist: a pytest that a test starts has it, too, and its exit status counts."""
    if hasattr(config, "workerinput"):
        atexit.register(_end_at_once, os.getpid())


# A shell that starts a job in the background has it ignore SIGINT, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leftovers of processes that tests kill are in a folder that pytest removes with its others."""
    folder = tmp_path_factory.mktemp("t")  # a short name: it becomes part of the names of Unix sockets
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


def pytest_collection_finish() -> None:
    """Loaded modules stay: the garbage collector need not look through torch and all tests again and again.

    Tests that use hypothesis have imported it: it asks the collector who refers to what it registers.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """The plugin of hypothesis imports it at the end, if no test has."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector work again; where pytest-xdist only hands tests out, nothing is frozen."""
    try:
        return (yield)
    finally:
        gc.enable()
