"""A conda channel on disk, and a program that plays conda: py-rattler, mamba's successor's library, solves for it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

#: What conda-lock asks of a conda: `create --dry-run --json … SPECS`, and `create --file EXPLICIT --prefix …`.
_DRIVER = """#!{python}
import asyncio, json, os, pathlib, sys, tarfile, urllib.parse
import rattler

def values(name):
    return [sys.argv[place + 1] for place, word in enumerate(sys.argv) if word == name]

async def solve():
    words = sys.argv[2:]
    taken = ("--prefix", "--channel", "--file")
    specs = [word for place, word in enumerate(words) if word[0] != "-" and words[place - 1] not in taken]
    channels = [rattler.Channel(url) for url in values("--channel")]
    records = await rattler.solve(channels, specs, platforms=["linux-64", "noarch"], virtual_packages=[])
    found = [json.loads(record.to_json()) for record in records]
    return [dict(item, fn=item["url"].rpartition("/")[2]) for item in found]

def install():
    for line in pathlib.Path(values("--file")[0]).read_text().splitlines():
        if line.startswith("file:"):
            path = urllib.parse.urlsplit(line).path
            tarfile.open(path).extractall(values("--prefix")[0])

if "--dry-run" in sys.argv:
    try:
        found = asyncio.run(solve())
        print(json.dumps(dict(success=True, actions=dict(FETCH=found, LINK=found))), flush=True)
        os._exit(0)  # rattler's threads sometimes crash an interpreter that ends
    except Exception as error:
        print(json.dumps(dict(message=str(error))), flush=True)
        os._exit(1)
elif sys.argv[1] == "create":
    install()
elif sys.argv[1] == "--version":
    print("conda 25.1.0")
else:
    sys.exit("this conda does not know " + " ".join(sys.argv[1:]))
"""


def driver(folder: Path, python: Path) -> Path:
    """Write the program; `python` has py-rattler."""
    path = folder / "conda"
    path.write_text(_DRIVER.replace("{python}", str(python)))
    path.chmod(0o755)
    return path


@dataclass
class Channel:
    """A channel in a folder: packages of text files, and the index of them."""

    folder: Path
    packages: dict[str, object] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def add(self, name: str, version: str, *depends: str, files: dict[str, str] | None = None) -> None:
        place = self.folder / "linux-64"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{name}-{version}-0.tar.bz2"
        index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": list(depends)}
        members = {"info/index.json": json.dumps(index), **(files or {})}
        with tarfile.open(path, "w:bz2") as archive:
            for member, text in members.items():
                info = tarfile.TarInfo(member)
                info.size, info.mode = len(text.encode()), 0o755
                archive.addfile(info, io.BytesIO(text.encode()))
        data = path.read_bytes()
        digests = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}  # noqa: S324
        self.packages[path.name] = {**index, **digests, "size": len(data), "subdir": "linux-64"}

    def publish(self) -> None:
        for subdir, packages in (("linux-64", self.packages), ("noarch", {})):
            (self.folder / subdir).mkdir(parents=True, exist_ok=True)
            text = json.dumps({"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}})
            (self.folder / subdir / "repodata.json").write_text(text)
