"""Write wheels: unchanged members keep their compressed bytes, and the same input gives the same bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from build.errors import WheelError, reading

_BLOCK = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_DATA_DESCRIPTOR = 0x08
_UTF8 = 0x800
#: What RECORD may be made with; the signatures of RECORD itself (`RECORD.jws`) are not listed in it.
_RECORD_DIGESTS = ("sha256", "sha384", "sha512")
#: Time stamp of the members written here: the oldest of the format, so that the bytes do not depend on the day.
EPOCH = (1980, 1, 1, 0, 0, 0)


def record_line(name: str, digest: bytes, size: int) -> str:
    """Return one line of a RECORD file, as the specification of the binary distribution format defines it."""
    encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={encoded},{size}"


def _data_offset(stream: BinaryIO, member: zipfile.ZipInfo) -> int:
    stream.seek(member.header_offset)
    data = stream.read(_LOCAL_HEADER.size)
    if len(data) != _LOCAL_HEADER.size or data[:4] != b"PK\x03\x04":
        raise WheelError(f"{member.filename}: no local header where the directory says", cause="a damaged wheel")
    *_, name, extra = _LOCAL_HEADER.unpack(data)
    return member.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def write_member(archive: zipfile.ZipFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that its bytes in the archive depend on name, data and mode alone."""
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o100000 | mode) << 16
    archive.writestr(info, data, compresslevel=9)


class WheelWriter:
    """Writes one wheel, member by member, and its RECORD last."""

    def __init__(self, path: Path, dist_info: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._lines: list[str] = []
        self._record = f"{dist_info}/RECORD"

    def __enter__(self) -> WheelWriter:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            write_member(self._zip, self._record, ("\n".join([*self._lines, f"{self._record},,"]) + "\n").encode())
        self._zip.close()

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        write_member(self._zip, name, data, mode)
        self._lines.append(record_line(name, hashlib.sha256(data).digest(), len(data)))

    def carry(self, source: BinaryIO, member: zipfile.ZipInfo, name: str, record: str) -> None:
        """Copy a member in its compressed form; `record` is its digest and size in RECORD, `sha256=…,123`."""
        offset = _data_offset(source, member)
        info = zipfile.ZipInfo(name, member.date_time)
        info.compress_type, info.external_attr = member.compress_type, member.external_attr
        info.create_system, info.CRC = member.create_system, member.CRC
        info.compress_size, info.file_size = member.compress_size, member.file_size
        # Sizes go into the local header instead of behind the data: uv reads wheels as a stream.
        info.flag_bits = member.flag_bits & ~_DATA_DESCRIPTOR
        out = self._zip.fp
        if out is None:
            raise WheelError("the wheel is already closed")
        out.seek(self._zip.start_dir)
        info.header_offset = out.tell()
        out.write(info.FileHeader(zip64=max(info.file_size, info.compress_size) > zipfile.ZIP64_LIMIT))
        source.seek(offset)
        left = member.compress_size
        while left and (block := source.read(min(_BLOCK, left))):
            out.write(block)
            left -= len(block)
        if left:
            raise WheelError(f"{member.filename}: {left} bytes missing", cause="the official wheel is cut off")
        self._zip.start_dir = out.tell()
        self._zip.filelist.append(info)
        self._zip.NameToInfo[name] = info
        self._lines.append(f'"{name}",{record}' if "," in name else f"{name},{record}")


def _check_local(stream: BinaryIO, member: zipfile.ZipInfo) -> None:
    """Compare a member's local header, which is all that a streaming reader has, with the directory."""
    stream.seek(member.header_offset)
    _, _, flags, method, _, _, crc, packed, size, length, _ = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if flags & _DATA_DESCRIPTOR:
        raise WheelError(f"{member.filename}: sizes come after the data", cause="the header was not completed")
    encoding = "utf-8" if flags & _UTF8 else "cp437"
    name = stream.read(length).decode(encoding, "replace")
    large = max(member.file_size, member.compress_size) > zipfile.ZIP64_LIMIT
    want = (member.orig_filename, member.compress_type, member.CRC)
    if (name, method, crc) != want or (not large and (packed, size) != (member.compress_size, member.file_size)):
        raise WheelError(f"{member.filename}: its local header disagrees with the directory", cause="a damaged wheel")


def _check_layout(archive: zipfile.ZipFile, stream: BinaryIO, members: list[zipfile.ZipInfo]) -> None:
    """Walk from header to header: each must begin where the member before it ends, with the size in RECORD."""
    place = 0
    for item in members:
        if item.header_offset != place:
            raise WheelError(f"dead bytes before {item.filename}")
        place = _data_offset(stream, item) + item.compress_size
        _check_local(stream, item)
    if place != archive.start_dir:
        raise WheelError("dead bytes before the directory")
    sizes = {item.filename: str(item.file_size) for item in members}
    if wrong := [name for name, row in _listed(archive).items() if row[2:] != [sizes[name]]]:
        raise WheelError(f"RECORD and members differ: {', '.join(sorted(wrong)[:10])}")


def _leaves(name: str) -> bool:
    """Tell if the name of a member leads out of the folder that it is unpacked into, on any system."""
    return name.startswith("/") or not {"\\", "\0"}.isdisjoint(name) or not {"..", "."}.isdisjoint(name.split("/"))


def _listed(archive: zipfile.ZipFile, where: str = "") -> dict[str, list[str]]:
    """Return the lines of RECORD by name; each member must be within the wheel, and there and in RECORD once."""
    if out := [item.orig_filename for item in archive.infolist() if _leaves(item.orig_filename)]:
        what = f"{where}members that leave the wheel: {', '.join(map(repr, out[:10]))}"
        raise WheelError(what, remedy="do not use this wheel")
    names = [item.filename for item in archive.infolist() if not item.is_dir()]
    if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
        raise WheelError(f"{where}duplicate members: {', '.join(twice[:10])}", cause="a damaged wheel")
    records = [name for name in names if name.count("/") == 1 and name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise WheelError(f"{where}{len(records)} RECORD files, one expected", cause="a damaged wheel")
    rows = [row for row in csv.reader(archive.read(records[0]).decode().splitlines()) if row]
    lines = {row[0]: row for row in rows}
    # RECORD itself need not be listed, nor its signatures (`RECORD.jws`); they have no digest.
    own = {records[0], f"{records[0]}.jws", f"{records[0]}.p7s"}
    wrong = (lines.keys() ^ set(names)) - own | lines.keys() - set(names)
    if wrong or len(lines) < len(rows):
        which = ", ".join(sorted(wrong)[:10]) or "a duplicate line"
        raise WheelError(f"{where}RECORD and members differ: {which}", cause="a damaged wheel")
    return {name: row for name, row in lines.items() if name not in own}


def check_digests(path: Path) -> int:
    """Read every member of a wheel, of any builder, and compare it with RECORD; return how many there are.

    Raises:
        WheelError: a member is damaged, differs from RECORD, or is not listed there.
    """
    with reading(path.name, "get it again"), zipfile.ZipFile(path) as archive:
        rows = _listed(archive, f"{path.name}: ")
        wrong = [name for name, row in rows.items() if not _is(archive, name, *row[1:2])]
    if wrong:
        raise WheelError(f"{path.name}: RECORD and members differ: {', '.join(wrong[:10])}", cause="a damaged wheel")
    return len(rows) + 1


def _is(archive: zipfile.ZipFile, name: str, said: str = "") -> bool:
    """Return whether a member has the digest that RECORD says."""
    kind, _, want = said.partition("=")
    if kind not in _RECORD_DIGESTS:
        return False
    digest = hashlib.new(kind)
    with archive.open(name) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() == want


def check_archive(path: Path) -> int:
    """Read a wheel the way a streaming installer does, header after header, and compare with its directory.

    Raises:
        WheelError: dead entries, gaps, a header that disagrees with the directory, or a member not in RECORD.
    """
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            members = sorted(archive.infolist(), key=lambda item: item.header_offset)
            _check_layout(archive, stream, members)
    except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError) as error:
        raise WheelError(f"{path.name} is a damaged archive: {error}", cause="a damaged wheel") from None
    except WheelError as error:
        raise WheelError(f"{path.name}: {error.what}", cause=error.cause, remedy=error.remedy) from None
    return len(members)
