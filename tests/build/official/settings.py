"""What the process has read of pip's settings and of the indexes."""

from __future__ import annotations

from build.official import index, pip_session


def forget() -> None:
    """Let pip's settings and the indexes be read again at the next call."""
    for cached in (pip_session._pip, pip_session.session, index.files):
        cached.cache_clear()
