"""The platform tag that a library needs, by auditwheel's policies."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_find_versioned_symbols
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.elf.elffile import ELFFile

#: Libraries that the policies are about; CUDA's come with their own wheels.
_SYSTEM = ("libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so")
_NO_PROMISE = (1 << 16, 0)


def symbol_versions(library: Path) -> dict[str, set[str]]:
    """Return the symbol versions that a library needs of each library of the system, e.g. `GLIBC_2.34`."""
    versions: dict[str, set[str]] = defaultdict(set)
    with library.open("rb") as stream:
        for name, version in elf_find_versioned_symbols(ELFFile(stream)):
            if name.startswith(_SYSTEM):
                versions[name].add(version)
    return dict(versions)


def platform_tag(library: Path) -> str:
    """Return the most compatible tag that `library` may bear, e.g. `manylinux_2_34_x86_64`."""
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(platform.machine()))
    return str(policies.versioned_symbols_policy(symbol_versions(library)).name)


_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def _glibc(tag: str) -> tuple[int, int]:
    """Return the glibc that a tag promises to run on; `linux_*`, which promises nothing, counts as the newest."""
    parts = tag.split("_")
    if tag.startswith("manylinux_"):
        return int(parts[1]), int(parts[2])
    return _LEGACY.get(parts[0], _NO_PROMISE)


def newer(first: str, second: str) -> str:
    return max(first, second, key=_glibc)


def oldest(tags: Iterable[str]) -> str:
    """Return the tag that runs on the oldest systems, by its PEP 600 name where it has two."""
    return min(tags, key=lambda tag: (_glibc(tag), not tag.startswith("manylinux_")))
