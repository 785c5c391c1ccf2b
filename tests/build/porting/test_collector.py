"""A port pauses the collector of cycles, and leaves it as it was."""

from __future__ import annotations

import gc

import pytest

from build.porting.collector import paused


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_before(on: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with paused():
            assert not gc.isenabled()
        assert gc.isenabled() is on
        with pytest.raises(KeyError), paused():
            raise KeyError
        assert gc.isenabled() is on
    finally:
        (gc.enable if was else gc.disable)()
