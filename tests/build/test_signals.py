"""A signal that wakes nobody is not lost: the main thread sleeps in a lock while another thread gets the signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from build.paths import REPO

_TIMEOUT = 60.0
#: `raise_signal` gives the signal to the calling thread, as the kernel may: the wait for the lock is not interrupted.
_SLEEPER = """
import signal, sys, threading, time
from build import signals

signals.handle()
waits = threading.Event()

def give_to_this_thread():
    waits.wait()
    while "in wait" not in stack():
        time.sleep(0.001)
    for number in {numbers}:
        signal.raise_signal(number)

def stack():
    import traceback
    return "".join(traceback.format_stack(sys._current_frames()[threading.main_thread().ident]))

threading.Thread(target=give_to_this_thread, daemon=True).start()
try:
    waits.set()
    threading.Event().wait()
except KeyboardInterrupt:
    time.sleep(0.2)  # more of the same must not come
    print("left")
"""


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_a_signal_wakes_the_main_thread_from_a_lock(numbers: list[signal.Signals]) -> None:
    script = _SLEEPER.format(numbers=[int(number) for number in numbers])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


_LEAVER = """
import os, signal, sys
from build import cli

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)

cli.main = lambda: cli.EXIT_INTERRUPTED
sys.kept = Late()  # is let go of when the handlers are gone already
sys.exit(cli.run())
"""


def test_a_signal_at_the_very_end_leaves_the_exit_status() -> None:
    """nox sends SIGTERM a third of a second after SIGINT: the build may just be leaving."""
    done = subprocess.run(
        [sys.executable, "-c", _LEAVER], cwd=REPO, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    assert done.returncode == 130, done.stderr
