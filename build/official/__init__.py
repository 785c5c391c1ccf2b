"""The official wheel of a release and the header packages that go with it: fetched, verified, unpacked."""

from build.official.headers import fetch_headers, fetch_package, include_dirs
from build.official.wheel import OVERLAY_MEMBERS, distrust_wheel, fetch_wheel, unpack

__all__ = [
    "OVERLAY_MEMBERS",
    "distrust_wheel",
    "fetch_headers",
    "fetch_package",
    "fetch_wheel",
    "include_dirs",
    "unpack",
]
