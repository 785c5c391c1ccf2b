"""`bench wheelhouse`: time and memory of publishing 200 wheels, small ones with the records of their builds."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from build import record
from build.console import step
from build.overlay.model import Check
from build.record import Artifact, BuildRecord, Patch, Provenance, UnitRecord
from build.wheels import sbom
from build.wheels.archive import WheelWriter
from build.wheels.overlay import DISTRIBUTION
from docs.bench.figures import Figure, of_samples
from docs.bench.overlay import Subject, tooling

#: What the project promises for 200 wheels.
SECONDS, MEMORY = 10.0, 200.0
RELEASES, PYTHONS = 20, tuple(f"3.{minor}" for minor in range(8, 17))
_PLATFORM = "manylinux_2_17_x86_64"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def provenance(release: str) -> Provenance:
    """Return what the overlay of an invented release was made from."""
    unit = "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
    return Provenance(
        schema=record.SCHEMA,
        release=release,
        version=f"{release}+cu124.mw1",
        commit=_digest(release)[:40],
        source=f"upstream git: commit {_digest(release)[:40]}; its commit is the pinned one",
        source_tree=_digest(f"tree of {release}")[:40],
        libtorch_cuda_build_ids={python: _digest(release + python)[:40] for python in PYTHONS},
        series=("nccl",),
        patches=tuple(Patch(f"000{n}-patch.patch", f"patch {n}", _digest(f"{release} {n}")) for n in range(1, 6)),
        headers=("nvidia-nccl-cu12==2.21.5", "nvidia-cuda-runtime-cu12==12.4.127"),
        compiler="g++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        linker="GNU ld (GNU Binutils for Debian) 2.40",
        flags=("-std=c++17", "-O2"),
        units=(UnitRecord(unit, "patched", _digest(release + unit)),),
        soname="libtorch_mw.so",
        overlay_sha256=_digest(f"overlay of {release}"),
        overlay_build_id=_digest(f"build id of {release}")[:40],
        assembly=record.assembly(),
        platform=_PLATFORM,
        checks=(Check("the source tree is the release", True, "its commit is the pinned one"),),
    )


def write_wheel(folder: Path, distribution: str, tags: str, proven: Provenance, stock: Artifact) -> Artifact:
    """Write a small wheel that says of itself what a real one says, and return its name and digest."""
    stem = f"{distribution.replace('-', '_')}-{proven.version}"
    info, path = f"{stem}.dist-info", folder / f"{stem}-{tags}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {proven.version}\nRequires-Python: >=3.8\n"
    with WheelWriter(path, info) as writer:
        writer.add(f"{distribution.replace('-', '_')}/__init__.py", b"")
        writer.add(f"{info}/METADATA", metadata.encode())
        writer.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n".encode())
        writer.add(f"{info}/{record.EMBEDDED}", record.encode(proven))
        writer.add(f"{info}/{sbom.PLACE}", sbom.document(distribution, proven, stock))
    return record.artifact(path)


def write_release(folder: Path, release: str, pythons: tuple[str, ...] = PYTHONS) -> list[BuildRecord]:
    """Write patched wheels, one overlay wheel and the records of their builds, as `build` leaves them; return these."""
    folder.mkdir(parents=True)
    proven, made = provenance(release), list[BuildRecord]()
    stock = {
        python: Artifact(f"torch-{release}-{_tag(python)}-{_PLATFORM}.whl", _digest(release + python), 1)
        for python in pythons
    }
    overlay = write_wheel(folder, DISTRIBUTION, f"py3-none-{_PLATFORM}", proven, next(iter(stock.values())))
    for python, official in stock.items():
        patched = write_wheel(folder, "torch", f"{_tag(python)}-{_PLATFORM}", proven, official)
        made.append(BuildRecord(proven, python, official, patched, overlay, (), (), ()))
        record.write(made[-1], folder)
    return made


def _tag(python: str) -> str:
    return "-".join([f"cp{python.replace('.', '')}"] * 2)


def measure(subject: Subject) -> list[Figure]:
    """Publish 200 wheels several times, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        dist = Path(scratch, "dist")
        step(f"making {RELEASES * (len(PYTHONS) + 1)} small wheels")
        for number in range(RELEASES):
            write_release(dist / f"9.{number}.0", f"9.{number}.0")
        costs = [tooling("wheelhouse", "--dist", str(dist)) for _ in range(subject.repeats)]
    return [
        of_samples("publish 200 wheels", [item.seconds for item in costs], SECONDS, "s"),
        of_samples("processor time of that", [item.cpu for item in costs], SECONDS, "s"),
        of_samples("peak memory of that", [item.peak / 1e6 for item in costs], MEMORY, "MB"),
    ]
