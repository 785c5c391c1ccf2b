"""The official wheel of a release and its header packages: fetched, verified, unpacked."""

from build.official.headers import fetch_headers, fetch_package
from build.official.wheel import fetch_wheel, unpack

__all__ = ["fetch_headers", "fetch_package", "fetch_wheel", "unpack"]
