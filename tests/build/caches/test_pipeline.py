"""The main job over damaged caches: a right wheel or an error, never exit status 0 with a damaged wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from build import record
from build.errors import DigestMismatchError, WheelError
from build.wheels import patched
from tests.build.caches import damage
from tests.build.overlay import little as lt
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place
from tests.build.wheels import little_wheel as lw
from tests.build.wheels.conftest import Made, made

__all__ = ["made"]
Damage = Callable[[Path], None]


@pytest.fixture
def place(built_release: Place) -> Place:
    return built_release


def check_wheel(path: Path) -> None:
    """Every member has its CRC and the digest of RECORD: an installer takes it."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        rows = archive.read(next(n for n in archive.namelist() if n.endswith("/RECORD"))).decode().splitlines()
        for name, digest, _ in csv.reader(rows):
            if digest:
                have = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
                assert digest == f"sha256={have}", name


def cached(place: Place) -> Path:
    return next((place.folder / "cache" / "wheels").glob("*/*.whl"))


def build(place: Place) -> str:
    status, output = lr.build(place)
    assert status == 0, output
    assert "Traceback" not in output
    for name in place.wheels():
        check_wheel(place.results / name)
    return output


def forget_results(place: Place) -> list[bytes]:
    """Remove the results, so that the next run assembles; return the wheels as they were."""
    wheels = [place.results / name for name in place.wheels()]
    content = [path.read_bytes() for path in wheels]
    for path in wheels:
        path.unlink()
    return content


@pytest.mark.parametrize("harm", damage.SOME)
def test_a_damaged_official_wheel(harm: Damage, place: Place) -> None:
    good = forget_results(place)
    harm(cached(place))
    output = build(place)
    assert [(place.results / name).read_bytes() for name in place.wheels()] == good
    assert "in the cache is damaged" in output


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("pattern", ["unpacked/*/torch/include/**/nccl.h", "unpacked/*/torch/lib/libtorch_cuda.so"])
def test_damaged_unpacked_files(harm: Damage, pattern: str, place: Place) -> None:
    good = forget_results(place)
    harm(next((place.folder / "cache").glob(pattern)))
    build(place)
    assert [(place.results / name).read_bytes() for name in place.wheels()] == good


@pytest.mark.parametrize("harm", damage.SOME)
def test_a_damaged_result(harm: Damage, place: Place) -> None:
    wheel = next(place.results.glob("torch-*.whl"))
    good = wheel.read_bytes()
    harm(wheel)
    status, output = lr.build(place)
    if status == 0:
        assert wheel.read_bytes() == good
    else:
        assert "to do:" in output
        assert "Traceback" not in output


@pytest.mark.parametrize("harm", damage.SOME)
def test_a_damaged_record(harm: Damage, place: Place) -> None:
    kept = (place.results / "build.json").read_bytes()
    harm(place.results / "build.json")
    status, output = lr.build(place)
    assert "Traceback" not in output
    if status == 0:
        assert (place.results / "build.json").read_bytes() == kept
    else:
        assert "to do:" in output


@pytest.mark.parametrize("harm", [damage.flip, damage.folder])
def test_a_damaged_checkout(harm: Damage, place: Place) -> None:
    harm(place.folder / "cache" / "applied" / lt.VERSION / lt.NCCL_CPP)
    status, output = lr.build(place)
    assert status != 0
    assert "to do:" in output
    assert "Traceback" not in output


def test_something_else_where_a_lock_should_be(place: Place) -> None:
    lock = place.folder / "cache" / "applied" / f"{lt.VERSION}.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    status, output = lr.build(place)
    assert status == 5
    assert "to do:" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("part", range(1, 40, 4))
def test_no_byte_of_the_official_wheel_is_copied_unchecked(part: int, made: Made, tmp_path: Path) -> None:
    damaged = tmp_path / lw.NAME
    damaged.write_bytes(made.official.read_bytes())
    with damaged.open("r+b") as stream:
        stream.seek(place := part * damaged.stat().st_size // 40)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises((DigestMismatchError, WheelError)) as caught:
        patched.assemble(made.release, damaged, made.overlay, made.tag, lw.DOCUMENTS, tmp_path / "dist")
    assert caught.value.cause
    assert list((tmp_path / "dist").iterdir()) == []


def test_the_record_of_what_was_built_names_the_wheels(place: Place) -> None:
    found = record.read(place.results)
    assert found is not None
    assert [found.patched, found.overlay] == [
        record.artifact(place.results / item.name) for item in (found.patched, found.overlay)
    ]
