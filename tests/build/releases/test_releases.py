from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from build import releases
from build.errors import ReleaseDataError, UnknownReleaseError
from build.series import manifest as manifests

TEXT = releases.RELEASES_TOML.read_bytes()


@pytest.mark.parametrize("version", list(releases.load()))
def test_entry_is_complete(version: str) -> None:
    entry = releases.get(version)
    assert entry.tag == f"v{version}"
    assert set(entry.wheel.sha256) == set(entry.wheel.pythons) == set(entry.wheel.libtorch_cuda_build_ids)
    assert entry.wheel.local == "cu" + entry.wheel.cuda.replace(".", "")
    assert all(package.headers_sha256 for package in entry.header_packages)
    reasons = [*(item.reason for item in entry.header_packages), *(item.reason for item in entry.defines)]
    assert all((*reasons, *(unit.reason for unit in entry.extra_units)))
    pinned = {package.name: package.version for package in entry.header_packages}
    assert pinned.get("nvidia-nccl-cu12", entry.wheel.nccl) == entry.wheel.nccl


def _built() -> list[str]:
    """Releases whose series was taken further than porting: they must have all that a build needs."""
    known = releases.load().items()
    return [
        version
        for version, entry in known
        for name in entry.series
        if manifests.load(manifests.folder(name)).release[version].verified
        in (manifests.Verified.COMPILED, manifests.Verified.PROBED)
    ]


def test_there_are_releases_that_can_be_built() -> None:
    assert {"2.2.1", "2.6.0"} <= set(_built())


@pytest.mark.parametrize("version", _built())
def test_release_with_a_series_can_be_built(version: str) -> None:
    entry = releases.get(version)
    assert entry.blobs
    assert entry.defines
    assert entry.header_packages
    assert entry.patched_version == f"{version}+{entry.wheel.local}.mw{entry.patch_level}"


def test_oldest_first() -> None:
    assert list(releases.load()) == sorted(releases.load(), key=Version)


@pytest.mark.parametrize(
    ("asked", "first"),
    [("2.6.1", "2.6.0"), ("2.8.0", "2.9.1"), ("2.2.0", "2.2.1"), ("1.13.1", "2.0.1"), ("3.0", "2.15.0")],
)
def test_unknown_release_lists_the_known_ones_nearest_first(asked: str, first: str) -> None:
    with pytest.raises(UnknownReleaseError) as caught:
        releases.get(asked)
    assert caught.value.exit_code == 3
    listed = caught.value.remedy.partition(": ")[2].split(", ")
    assert listed[0] == first
    assert sorted(listed, key=Version) == list(releases.load())


def test_no_version_at_all_lists_them_too() -> None:
    with pytest.raises(UnknownReleaseError, match=r"2\.6\.0"):
        releases.get("latest")


@given(st.text(max_size=8))
def test_any_text_is_unknown_in_a_civil_way(text: str) -> None:
    if text not in releases.load():
        with pytest.raises(UnknownReleaseError):
            releases.get(text)


def spoilt(pattern: str, replacement: str) -> bytes:
    """The shipped file with one change."""
    changed, count = re.subn(pattern, replacement, TEXT.decode(), count=1)
    assert count == 1
    return changed.encode()


@pytest.mark.parametrize(
    ("pattern", "replacement", "says"),
    [
        (r'commit = "[0-9a-f]+"', 'commit = "abc"', "`$.commit`"),
        (r"cxx11_abi", "cxx12_abi", "cxx12_abi"),
        (r"cxx_standard = 17", 'cxx_standard = "17"', "Expected `int`"),
        (r'"3\.8" = "[0-9a-f]{64}"', '"3.8" = "abc"', "`$.wheel.sha256[...]`"),
        (r'"3\.8" = "[0-9a-f]{40}"', '"3.8" = "abc"', "`$.wheel.libtorch_cuda_build_ids[...]`"),
        (r'"3\.8" = "([0-9a-f]{64})"', r'"3.7" = "\1"', "Python 3.7, which `pythons` does not list"),
        (r'version = "2\.0\.1"', 'version = "2.0.2"', "is under the key"),
        (r'\[release\."2\.0\.1"\]', '[release."two"]', "not valid"),
        (r'nccl\.cpp" = "[0-9a-f]{40}"', 'nccl.cpp" = "xyz"', "`$.blobs[...]`"),
        (r'headers_sha256 = "[0-9a-f]{64}"', 'headers_sha256 = "xyz"', "`$.header_packages[0].headers_sha256`"),
        (r"\[release", "[[release", "not valid"),
    ],
)
def test_mistake_is_named(pattern: str, replacement: str, says: str) -> None:
    with pytest.raises(ReleaseDataError) as caught:
        releases.parse(spoilt(pattern, replacement), "releases.toml")
    assert says in str(caught.value)
