"""Fixtures of the tests by the matching alone."""

from __future__ import annotations

import pytest
from device_engines import DeviceNetwork


@pytest.fixture
def net() -> DeviceNetwork:
    """Two members on a device."""
    return DeviceNetwork(2)
