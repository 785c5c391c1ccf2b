"""Members are carried as they are, and every kind of damage is found."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from build.errors import WheelError
from build.wheels.archive import WheelWriter, check_archive

INFO = "a-1.dist-info"
CONTENT = {
    "a/one.py": b"x = 1\n" * 50,
    "a/two, three.txt": b"comma",
    "a/empty": b"",
    "a/ünï.bin": bytes(range(256)) * 9,
}


def streamed(path: Path) -> dict[str, bytes]:
    """Read an archive front to back, as a streaming installer does: without its directory."""
    data, place, found = path.read_bytes(), 0, {}
    while data[place : place + 4] == b"PK\x03\x04":
        fields = struct.unpack_from("<4s5H3I2H", data, place)
        flags, method, crc, size, name_size, extra_size = (fields[i] for i in (2, 3, 6, 7, 9, 10))
        name_at = place + 30
        start = name_at + name_size + extra_size
        name = data[name_at : name_at + name_size].decode("utf-8" if flags & 0x800 else "cp437")
        assert not flags & 8, f"{name}: sizes come too late for a stream"
        body = data[start : start + size]
        found[name] = zlib.decompress(body, -15) if method == zipfile.ZIP_DEFLATED else body
        assert zlib.crc32(found[name]) == crc, name
        place = start + size
    assert data[place : place + 4] == b"PK\x01\x02"
    return found


def write(path: Path) -> Path:
    with WheelWriter(path, INFO) as writer:
        for name, data in CONTENT.items():
            writer.add(name, data)
    return path


def carried(source: Path, target: Path) -> Path:
    """Copy an archive by `carry`."""
    with zipfile.ZipFile(source) as archive, source.open("rb") as stream, WheelWriter(target, INFO) as writer:
        for member in archive.infolist():
            if not member.filename.endswith("RECORD"):
                writer.carry(stream, member, member.filename, f"sha256=x,{member.file_size}")
    return target


def compressed(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        member = archive.getinfo(name)
        stream.seek(member.header_offset)
        fields = struct.unpack("<4s5H3I2H", stream.read(30))
        stream.seek(fields[9] + fields[10], 1)
        return stream.read(member.compress_size)


def test_what_is_written_can_be_streamed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.whl")
    found = streamed(path)
    record = found.pop(f"{INFO}/RECORD").decode()
    assert found == CONTENT
    assert len(record.splitlines()) == len(CONTENT) + 1
    assert check_archive(path) == len(CONTENT) + 1


@pytest.mark.parametrize("level", [1, 9])
def test_carried_members_keep_their_compressed_bytes(level: int, tmp_path: Path) -> None:
    source = tmp_path / "source.whl"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, data in CONTENT.items():
            archive.writestr(name, data)
    target = carried(source, tmp_path / "target.whl")
    assert {name: compressed(target, name) for name in CONTENT} == {name: compressed(source, name) for name in CONTENT}
    assert check_archive(target) == len(CONTENT) + 1


def test_a_carried_member_beyond_the_32_bit_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 2 GiB were 200 bytes: one.py and ünï.bin are over it, the others not."""
    source = write(tmp_path / "source.whl")
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    target = carried(source, tmp_path / "target.whl")
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in CONTENT} == CONTENT
    assert check_archive(target) == len(CONTENT) + 1


def test_a_source_that_ends_early(tmp_path: Path) -> None:
    source = write(tmp_path / "source.whl")
    with zipfile.ZipFile(source) as archive:
        last = archive.getinfo("a/ünï.bin")
    cut = tmp_path / "cut"
    cut.write_bytes(source.read_bytes()[: last.header_offset + 60])
    with (
        cut.open("rb") as stream,
        pytest.raises(WheelError, match="bytes missing"),
        WheelWriter(tmp_path / "t", INFO) as w,
    ):
        w.carry(stream, last, last.filename, "")


def test_the_bytes_do_not_depend_on_the_day(tmp_path: Path) -> None:
    assert write(tmp_path / "one").read_bytes() == write(tmp_path / "two").read_bytes()


def _append(path: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(name, data)


def _unlisted(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/stranger.py", b"")


def _overwrite(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(data)


def _edit_record(old: str, new: str) -> Callable[[Path], None]:
    """Return damage that writes the wheel anew with another RECORD."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        text = content[f"{INFO}/RECORD"].decode()
        assert old in text
        content[f"{INFO}/RECORD"] = text.replace(old, new).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(zipfile.ZipInfo(name), data)

    return damage


def _dead(path: Path) -> None:
    """Drop a member from the directory alone, as tools do that 'delete' in place."""
    with zipfile.ZipFile(path, "a") as archive:
        gone = archive.NameToInfo.pop("a/one.py")
        archive.filelist.remove(gone)
        archive._didModify = True  # type: ignore[attr-defined]


def _before_directory(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.start_dir += 16
        archive._didModify = True  # type: ignore[attr-defined]
    assert zipfile.ZipFile(path).testzip() is None


def _no_record(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/one.py", b"")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a member replaced by appending": (lambda path: _append(path, "a/one.py", b"x"), "duplicate"),
    "a member that RECORD lacks": (_unlisted, r"RECORD and members differ: a/stranger\.py"),
    "a line of RECORD without member": (_edit_record("a/empty,", "a/other,"), "RECORD and members differ"),
    "a wrong size in RECORD": (_edit_record(",300\n", ",301\n"), r"differ: a/one\.py"),
    "no RECORD": (_no_record, "0 RECORD files"),
    "a dead entry": (_dead, "dead bytes before a/two"),
    "bytes before the directory": (_before_directory, "dead bytes before the directory"),
    "bytes before the first member": (lambda path: path.write_bytes(b"#!x\n" + path.read_bytes()), "dead bytes"),
    "another name in the local header": (lambda path: _overwrite(path, 30, b"b"), "disagrees"),
    "another checksum in the local header": (lambda path: _overwrite(path, 14, b"\0\0\0\0"), "disagrees"),
    "another size in the local header": (lambda path: _overwrite(path, 22, b"\1\0\0\0"), "disagrees"),
    "sizes behind the data": (lambda path: _overwrite(path, 6, b"\x08\x00"), "come after the data"),
    "no local header": (lambda path: _overwrite(path, 0, b"XX"), "no local header"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "damaged archive"),
    "no archive": (lambda path: path.write_bytes(b"hello"), "damaged archive"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.whl")
    assert check_archive(path)
    damage, message = DAMAGE[kind]
    damage(path)
    with pytest.raises(WheelError, match=message) as caught:
        check_archive(path)
    assert str(caught.value).startswith("a.whl: ") or "a.whl is" in str(caught.value)
