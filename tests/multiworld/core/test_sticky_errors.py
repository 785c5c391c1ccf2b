"""Errors of CUDA that end a device for this process, by a runtime that answers as the test says."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from multiworld.backends import cuda, device_failures

_GLOBAL, _RELAXED = 0, 2  # cudaStreamCaptureMode
_UNSUPPORTED = 900  # cudaErrorStreamCaptureUnsupported


class _Runtime:
    """A stream, and the captures under way; a question that CUDA does not permit meanwhile ends them.

    Args:
        answers: to questions about the stream's progress.
        captured: whether the stream is being captured.
        elsewhere: whether another thread captures a stream in the global mode.
    """

    def __init__(self, answers: list[int], captured: bool = False, elsewhere: bool = False) -> None:
        self.answers, self.captured, self.elsewhere = iter(answers), captured, elsewhere
        self.mode = _GLOBAL
        self.spoilt = False

    def cudaStreamQuery(self, _stream: Any) -> int:  # noqa: N802
        if self.captured or (self.elsewhere and self.mode != _RELAXED):
            self.spoilt = True
            return _UNSUPPORTED
        return next(self.answers)

    def cudaStreamIsCapturing(self, _stream: Any, status: Any) -> int:  # noqa: N802
        ctypes.cast(status, ctypes.POINTER(ctypes.c_int))[0] = self.captured
        return 0

    def cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        wanted = ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))
        self.mode, wanted[0] = wanted[0], self.mode
        return 0


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([700, 700], 700),
        ([719, 719], 719),
        ([0, 0], 0),
        ([700, 0], 0),  # CUDA forgets an error that does not stick
        ([600, 600], 0),
        ([400, 400], 0),
        ([901, 901], 0),
        ([46, 46], 0),
    ],
    ids=["700", "719", "none", "told once", "not ready", "no handle", "capture", "of another process"],
)
def test_an_error_that_stays_is_the_end_of_the_device(
    answers: list[int], lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = _Runtime(answers)
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    assert cuda.sticky_error(1) == lost


def test_a_stream_that_is_being_captured_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _Runtime([700, 700], captured=True)
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    assert cuda.sticky_error(1) == 0
    assert not runtime.spoilt


def test_what_another_thread_captures_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _Runtime([700, 700], elsewhere=True)
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    assert cuda.sticky_error(1) == 700
    assert not runtime.spoilt
    assert runtime.mode == _GLOBAL  # of this thread, as it was


def test_who_reports_a_loss_second_goes_on_once_its_own_world_has_heard() -> None:
    held, told = threading.Event(), threading.Event()
    heard = []

    def holds(_: object) -> None:
        if not held.is_set():
            held.set()
            assert told.wait(30)

    # The listener that comes first holds the first report.
    cancels = [device_failures.listen("cuda:7", holds), device_failures.listen("cuda:7", heard.append)]
    first = threading.Thread(target=device_failures.report, args=("cuda:7", 700, "an illegal address"))
    first.start()
    try:
        assert held.wait(30)
        assert heard == []
        failure = device_failures.report("cuda:7", 700, "the same, seen by another")
        assert heard == [failure]
    finally:
        told.set()
        first.join(30)
        for cancel in cancels:
            cancel()
        device_failures._failures.pop("cuda:7")
