"""What all tests share."""

from __future__ import annotations

import gc
import signal
import tempfile
from collections.abc import Iterator

import hypothesis  # noqa: F401 - before the freeze: it asks the collector who refers to what it registers
import pytest

# A shell that starts a job in the background has it ignore SIGINT, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What processes that tests kill leave behind is in a folder that pytest removes with its others."""
    folder = tmp_path_factory.mktemp("t")  # a short name: it becomes part of the names of Unix sockets
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not look through torch and all tests again and again."""
    gc.collect()
    gc.freeze()
