"""The platform tag is what the binary needs, no less and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.wheels.platforms import newer, oldest, platform_tag, symbol_versions
from tests.build.overlay.little import shell
from tests.build.wheels.conftest import Made


def _glibc(library: Path) -> tuple[int, ...]:
    """Return the newest glibc that a library asks for, by its own version table."""
    names = {version for versions in symbol_versions(library).values() for version in versions}
    found = [tuple(map(int, match[1].split("."))) for name in names if (match := re.fullmatch(r"GLIBC_([\d.]+)", name))]
    return max(found, default=(0,))


def _tag(tag: str) -> tuple[int, ...]:
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tag)
    assert match, tag
    return int(match[1]), int(match[2])


def _library(folder: Path, code: str) -> Path:
    (folder / "a.c").write_text(code)
    shell("gcc", "-shared", "-fPIC", folder / "a.c", "-o", folder / "a.so")
    return folder / "a.so"


def test_more_is_asked_for_by_a_newer_function(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = _library(tmp_path / "old", "int f(void) { return 1; }\n")
    new = _library(
        tmp_path / "new", "#include <stdlib.h>\n#include <unistd.h>\nint f(void *b) { return getentropy(b, 1); }\n"
    )
    assert _glibc(new) >= (2, 25) > _glibc(old)
    assert _tag(platform_tag(new)) >= _glibc(new)
    assert _tag(platform_tag(old)) < (2, 25)


def test_the_overlays_tag_covers_its_needs(made: Made) -> None:
    assert _tag(made.tag) >= _glibc(made.overlay.path)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("manylinux1_x86_64", "manylinux_2_34_x86_64", "manylinux_2_34_x86_64"),
        ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"),
        ("manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2014_x86_64"),
        ("manylinux_2_9_x86_64", "manylinux_2_34_x86_64", "manylinux_2_34_x86_64"),
        # No policy fits the overlay, or none was promised for the official wheel: then none may be promised.
        ("manylinux_2_28_x86_64", "linux_x86_64", "linux_x86_64"),
        ("linux_x86_64", "manylinux_2_34_x86_64", "linux_x86_64"),
    ],
)
def test_the_newer_of_two(first: str, second: str, expected: str) -> None:
    assert newer(first, second) == expected


def test_the_oldest_tag_has_its_modern_name() -> None:
    assert oldest(["manylinux_2_34_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"]) == "manylinux_2_17_x86_64"
    assert oldest(["linux_x86_64", "manylinux_2_41_x86_64"]) == "manylinux_2_41_x86_64"
