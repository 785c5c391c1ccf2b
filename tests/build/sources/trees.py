"""Little PyTorch-like trees as folder, git repository and tarball: real ones, no mocks."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import msgspec

from build import releases
from build.releases import Release

#: What makes imports hard: mixed line endings, attributes that would convert them, a program, a link, odd names.
FILES: dict[str, bytes] = {
    ".gitattributes": b"*.cpp text eol=crlf\n",
    "setup.py": b"print('torch')\n",
    "torch/csrc/cuda/nccl.cpp": b"int nccl() { return 1; }\r\nint lf() { return 2; }\n",
    "torch/csrc/cuda/nccl.h": b"int nccl();\n",
    'torch/csrc/a "b" ü.h': b"#pragma once\n",
    "torch/tool.sh": b"#!/bin/sh\n",
    "aten/src/ATen/Tensor.h": b"struct Tensor {};\n",
    "c10/macros/Export.h": b"#define C10_API\n",
    "test/test_nothing.py": b"x" * 1000,
    "third_party/other/big.bin": bytes(range(256)) * 400,
}
LINK = ("torch/csrc/link.h", "cuda/nccl.h")


def release(**changes: object) -> Release:
    """A release of its own, with nothing pinned unless said so."""
    free: dict[str, object] = {"debian": None, "blobs": {}}
    return msgspec.structs.replace(releases.get("2.6.0"), **(free | changes))


def write_tree(top: Path, files: dict[str, bytes] | None = None) -> Path:
    for name, data in (FILES if files is None else files).items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if files is None:
        (top / LINK[0]).symlink_to(LINK[1])
        (top / "torch/tool.sh").chmod(0o755)
    return top


def git(repo: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
    done = subprocess.run(["git", "-C", repo, *identity, *arguments], check=True, capture_output=True, timeout=60)
    return done.stdout.decode().strip()


def make_remote(top: Path, tag: str = "v2.6.0") -> tuple[Path, str]:
    """A bare repository that serves partial clones, and the commit of its annotated tag."""
    work = write_tree(top / "work")
    git(work, "init", "-q", "-b", "main")
    # As blobs the exact bytes: the tree's own .gitattributes would normalise them on `add`.
    (work / ".git" / "info" / "attributes").write_text("* -text\n")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "release")
    git(work, "tag", "-a", tag, "-m", tag)
    git(top, "clone", "-q", "--bare", str(work), str(top / "remote.git"))
    git(top / "remote.git", "config", "uploadpack.allowFilter", "true")
    # Over `ext::` git speaks protocol v0, in which a server has to allow what v2 always does.
    git(top / "remote.git", "config", "uploadpack.allowAnySHA1InWant", "true")
    return top / "remote.git", git(work, "rev-parse", "HEAD")


def make_tarball(path: Path, files: dict[str, bytes] | None = None, extra: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    """A source tarball with one top folder; `extra` members go in as they are."""
    with tarfile.open(path, "w:xz") as archive:
        for name, data in (FILES if files is None else files).items():
            info = tarfile.TarInfo(f"pytorch-2.6.0/{name}")
            info.size, info.mode = len(data), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(data))
        if files is None:
            archive.addfile(link(f"pytorch-2.6.0/{LINK[0]}", LINK[1]))
        for info in extra:
            archive.addfile(info)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def leftovers(cache: Path) -> list[str]:
    """List the cache of sources without locks, seals and leases: complete trees, or leftovers."""
    folder = cache / "sources"
    return (
        sorted(path.name for path in folder.iterdir() if path.suffix not in (".lock", ".seal", ".use"))
        if folder.is_dir()
        else []
    )


def snapshot(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything there is to see of a folder, `.git` included."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(top.rglob("*"))
    }
