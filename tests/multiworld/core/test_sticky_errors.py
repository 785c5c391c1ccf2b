"""Which errors of CUDA are the end of a device for this process, by a runtime that answers as the test says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from multiworld.drivers import cuda


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
    said: Iterator[int] = iter(answers)
    monkeypatch.setattr(cuda, "runtime", lambda: SimpleNamespace(cudaStreamQuery=lambda _: next(said)))
    assert cuda._sticky_error(1) == lost
