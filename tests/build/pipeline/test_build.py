"""`build RELEASE` from sources and official wheel to proven wheels, over a release in miniature."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import msgspec
import pytest

from build import record
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place


@pytest.fixture
def place(little: Little, tmp_path: Path) -> Place:
    return lr.make(little, tmp_path)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.suffix in (".whl", ".json")
    }


def test_from_release_to_wheels_and_again(whole_release: Place, place: Place) -> None:
    status, output = lr.build(place)
    assert status == 0, output
    said = output.splitlines()
    assert said.index("   compiling nccl.cpp") < next(i for i, line in enumerate(said) if "nccl.cpp: " in line)
    made = record.read(place.results)
    assert made is not None
    assert sorted(path.name for path in place.results.iterdir()) == sorted(
        [made.patched.name, made.overlay.name, "build.json", f"build-{made.python}.json", "build.log", "build.lock"]
    )
    assert all(f": {name}\n" in output for name in place.wheels()), "a name of a wheel is cut"
    assert "all 1 hunks apply cleanly" in output
    assert all(check.passed for check in made.provenance.checks)
    assert [unit.unit for unit in made.provenance.units] == [lt.NCCL_CPP, lt.HIDDEN_CPP]
    assert [patch.name for patch in made.provenance.patches] == ["0001-answer.patch"]
    assert len(made.verdicts) == 1
    _check_embedded(place, made)
    assert str(place.folder) not in (place.results / "build.json").read_text()
    before = digests(place.results)
    assert before == digests(whole_release.results), "another folder gave other wheels"
    status, output = lr.build(place)
    assert status == 0, output
    assert "wheels unchanged, kept" in output
    assert output.count("unchanged, reused") == 2
    assert digests(place.results) == before
    assert place.leftovers() == []


def _check_embedded(place: Place, made: record.BuildRecord) -> None:
    """Each wheel says itself what it was made from."""
    for name in (made.patched.name, made.overlay.name):
        with zipfile.ZipFile(place.results / name) as archive:
            inside = next(item for item in archive.namelist() if item.endswith(".dist-info/multiworld.json"))
            assert archive.read(inside) == record.encode(made.provenance)


def test_a_failed_build_leaves_the_last_good_one(built_release: Place) -> None:
    place = built_release
    good = digests(place.results)
    lr.write_patch(place, "return no_such_thing +")
    status, output = lr.build(place)
    assert status == 10
    assert "error: CompileError: torch/csrc/cuda/nccl.cpp does not compile" in output
    assert "no_such_thing" in output
    assert "Traceback" not in output
    assert digests(place.results) == good
    assert place.leftovers() == []


def test_a_first_build_that_fails_leaves_its_log_and_nothing_else(place: Place) -> None:
    lr.write_patch(place, "return no_such_thing +")
    assert lr.build(place)[0] == 10
    assert sorted(path.name for path in place.results.iterdir()) == ["build.lock", "build.log"]
    assert "no_such_thing" in (place.results / "build.log").read_text()


def test_a_source_whose_headers_are_not_the_wheels(place: Place) -> None:
    header = place.tree / lt.NCCL_H
    header.write_text(header.read_text() + "// moved\n")
    status, output = lr.build(place)
    assert status == 7
    theirs = hashlib.sha256((place.tree / lt.NCCL_H).read_bytes()).hexdigest()
    assert lt.NCCL_H in output
    assert theirs in output
    assert place.wheels() == []


def test_a_wheel_that_is_not_the_pinned_one(place: Place) -> None:
    (wheel,) = (place.folder / "index").iterdir()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("torch/more.py", "")
    status, output = lr.build(place)
    assert status == 7
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() not in (place.folder / "releases.toml").read_text()
    assert "is not the official wheel" in output
    assert place.wheels() == []


def test_a_python_without_official_wheel(place: Place) -> None:
    status, output = lr.command(place, *lr.build_arguments(place), "--python", "3.7")
    assert status == 5, output
    assert "Python 3.7" in output
    assert not (place.folder / "cache" / "objects").exists(), "said after the work, not before"


def test_tests_are_refused_for_other_wheels_than_the_record_says(built_release: Place) -> None:
    place = built_release
    wheel = next(place.results.glob("torch-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"more")
    status, output = lr.command(place, "test", lt.VERSION, "--dist", place.dist)
    assert status == 2, output
    assert f"{wheel.name} is not the wheel in build.json" in output


def test_the_record_survives_a_round_trip(built_release: Place) -> None:
    place = built_release
    made = record.read(place.results)
    assert made is not None
    path = record.write(made, place.folder / "copy")
    assert path.read_bytes() == (place.results / "build.json").read_bytes()
    assert record.read(place.folder / "copy") == made
    keys = json.loads(path.read_bytes())["provenance"].keys()
    assert {"compiler", "flags", "units", "patches", "checks", "overlay_sha256"} <= keys


def test_the_record_of_one_python_survives_a_build_for_another(built_release: Place, tmp_path: Path) -> None:
    place = built_release
    first = record.read(place.results)
    assert first is not None
    other = msgspec.structs.replace(first, python="3.99")
    record.write(other, place.results)
    assert record.read(place.results) == other == record.read(place.results, "3.99")
    assert record.read(place.results, first.python) == first
    assert record.read(place.results, "3.98") is None
    status, output = lr.command(place, "test", lt.VERSION, "--dist", place.dist, "--python", "3.98")
    assert status == 2, output
    assert "holds no wheels for Python 3.98 to test" in output
    assert f"nox -s build-{lt.VERSION} -- --python 3.98" in output
    (place.results / f"build-{first.python}.json").unlink()  # as builds of earlier versions have left it
    record.write(first, tmp_path / "new")
    (tmp_path / "new" / f"build-{first.python}.json").unlink()
    assert record.read(tmp_path / "new", first.python) == first


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"provenance": 1}', "\xff"])
def test_a_record_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "build.json").write_bytes(text.encode("latin-1"))
    assert record.read(tmp_path) is None
    assert record.read(tmp_path / "absent") is None
