"""Addresses of indexes and files: local ones, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from build.errors import EnvironmentUnfitError


def local_path(url: str) -> Path | None:
    """Return the file or folder that a `file:` URL names, None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def shown(url: str) -> str:
    """Return `url` without credentials, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def unreachable(url: str, error: Exception) -> EnvironmentUnfitError:
    reason = str(error.__cause__ or error.__context__ or error) or type(error).__name__
    remedy = "check the network and pip's `index-url` and `proxy` settings (`pip config list`)"
    if "certificate" in reason.lower():
        remedy = "set pip's `cert`, `client-cert` or `trusted-host` (`pip config list` shows them)"
    return EnvironmentUnfitError(f"{shown(url)} cannot be reached: {reason}", remedy=remedy)
