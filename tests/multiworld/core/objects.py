"""A test's way to send an object to itself."""

from __future__ import annotations

from typing import Any

from multiworld.matching.membership import Membership
from multiworld.serialization.pickling import allowed, dumps, loads

US = Membership("w", 0, 2, 1, "gloo", 1.0, 1 << 20)


def load(data: bytes, allow: Any = ()) -> Any:
    return loads(data, allowed(allow, US, "recv_object"), US)


def round_trip(obj: Any, allow: Any = ()) -> Any:
    return load(dumps(obj, US), allow)
