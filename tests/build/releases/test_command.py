from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from build import record, releases
from build.commands.releases import built, proven, table
from build.record import Artifact, BuildRecord
from build.wheeltest import results
from docs.bench.wheelhouse import provenance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "2.6.0").mkdir()
    return tmp_path / "2.6.0"


def write_build(folder: Path, digest: str = "a" * 64) -> None:
    wheel = Artifact("torch.whl", digest, 1)
    record.write(BuildRecord(provenance("2.6.0"), "3.11", wheel, wheel, record.NONE, (), (), ()), folder)
    (folder / "torch.whl").touch()


def write_tests(folder: Path, *, green: bool, digest: str = "a" * 64) -> None:
    results.write(results.TestRecord("2.6.0", "2.6.0+cu124.mw1", "3.11", digest, "", green, ()), folder)


def test_nothing_there(folder: Path) -> None:
    assert (built(folder), proven(folder)) == ("no", "not tested")
    assert (built(folder / "missing"), proven(folder / "missing")) == ("no", "not tested")


def test_built_and_proven(folder: Path) -> None:
    write_build(folder)
    assert (built(folder), proven(folder)) == ("2.6.0+cu124.mw1, Python 3.11", "not tested")
    write_tests(folder, green=True)
    assert proven(folder) == "yes"
    write_tests(folder, green=False)
    assert proven(folder) == "no: tests failed"


def test_tests_of_another_build_prove_nothing(folder: Path) -> None:
    write_build(folder, "b" * 64)
    write_tests(folder, green=True)
    assert proven(folder) == "an older build"


def test_wheel_that_was_removed(folder: Path) -> None:
    write_build(folder)
    (folder / "torch.whl").unlink()
    assert built(folder) == "wheel removed"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"provenance": 1}', b"\xff"])
def test_reports_from_another_time_are_borne(folder: Path, text: bytes) -> None:
    for name in ("build.json", "tests.json"):
        (folder / name).write_bytes(text)
    assert (built(folder), proven(folder)) == ("no", "not tested")


def test_table_says_what_each_release_needs(folder: Path) -> None:
    write_build(folder)
    out = io.StringIO()
    Console(file=out, width=200).print(table(list(releases.load().values()), folder.parent))
    row = next(line for line in out.getvalue().splitlines() if "2.6.0" in line)
    for part in ("12.4", "2.21.5", "3.9 - 3.13", "Debian trixie", "nccl: proven", "2.6.0+cu124.mw1", "not tested"):
        assert part in row
