"""`bench nccl`: what worlds on NCCL add to the bare communicator, on simulated NCCL."""

from __future__ import annotations

import tempfile
from pathlib import Path

from build import official, record, releases
from build.bench.figures import Figure, of_ratios, of_samples
from build.errors import UsageError
from build.paths import REPO
from build.wheeltest.environments import Form, environment, install
from gpuless import imitation
from multiworld.lab.bench import device
from multiworld.lab.workers import WorkerPool

#: What the project promises: microseconds added to a receive posted ahead, ratio of pipelined transfers.
ADDED, PIPELINED = 60.0, 1.05
_SECONDS = 300.0


def measure(release: str, dist: Path, rounds: int) -> list[Figure]:
    """Measure both drivers on the stock wheel of a release that was built.

    Args:
        release: e.g. "2.6.0".
        dist: folder with the results of `build`.
        rounds: interleaved rounds.

    Raises:
        UsageError: the release was not built.
    """
    made = record.read(dist / release)
    if made is None:
        raise UsageError(f"{dist / release} holds no build to measure", remedy=f"nox -s build-{release}")
    wheel = official.fetch_wheel(releases.get(release), made.python)
    with environment(Form.STOCK, made.python, [wheel]) as python:
        install(python, "--editable", f"{REPO}[nccl]")
        return [figure for backend in ("nccl", "torch-nccl") for figure in of_driver(python, backend, rounds)]


def of_driver(python: Path, backend: str, rounds: int) -> list[Figure]:
    """Measure one driver in an interpreter with a CUDA build of torch and nccl4py."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "control"
        control.mkdir()
        variables = imitation.environment(python, control)
        with WorkerPool(python_path=(str(REPO),), python=str(python), environment=variables) as pool:
            members = [pool.run(device.rounds, folder, rank, backend, rounds) for rank in range(2)]
            found, _ = (member.result(_SECONDS) for member in members)
    added = [(one.trip - one.bare_trip) / 2 * 1e6 for one in found]
    name = f"{backend} (simulated)"
    return [
        of_samples(f"{name}: added to 4 bytes, receive posted ahead", added, ADDED, "us"),
        of_ratios(
            f"{name}: 4 MB pipelined, over bare", [one.transfer for one in found],
            [one.bare_transfer for one in found], PIPELINED,
        ),
    ]  # fmt: skip
