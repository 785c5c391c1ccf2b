"""Fixtures of the tests by the matching alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from device_engines import DeviceNetwork


@pytest.fixture
def net() -> DeviceNetwork:
    """Two members on a device."""
    from device_engines import DeviceNetwork  # not above: it loads torch, see ../conftest.py

    return DeviceNetwork(2)
