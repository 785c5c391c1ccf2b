"""The Slurm script and the Kubernetes example: their command parts run for real."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.paths import REPO
from tests.build.cluster.conftest import Site
from tests.build.cluster.hosts import Cluster
from tests.build.wheels.little_wheel import clean

SCRIPT = REPO / "ci" / "slurm" / "install.sbatch"
MANIFEST = REPO / "ci" / "kubernetes" / "job.yaml"


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    return found


def test_the_slurm_script_installs_on_the_nodes_of_its_job(fleet: Cluster, tmp_path: Path) -> None:
    """As Slurm runs it: a copy elsewhere, with the job's variables. `ci/install` is this interpreter's."""
    for name in ("node01", "node02"):
        fleet.add(name)
    shim = tmp_path / "checkout" / "ci" / "install"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ci.cluster "$@"\n')
    shim.chmod(0o755)
    copy = tmp_path / "slurm_script"
    copy.write_bytes(SCRIPT.read_bytes())
    job = {"SLURM_SUBMIT_DIR": str(tmp_path / "checkout"), "SLURM_JOB_NODELIST": "node[01-02]", "PYTHONPATH": str(REPO)}
    command = ["bash", str(copy), "--status", *fleet.ssh]
    done = subprocess.run(command, env=clean() | job, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("│")] == ["node01", "node02"]
    del job["SLURM_JOB_NODELIST"]
    done = subprocess.run(command, env=clean() | job, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "Slurm names the nodes" in done.stderr


def test_the_init_container_installs_and_the_worker_finds_it(site: Site, tmp_path: Path, pod: dict[str, Any]) -> None:
    (init,), (worker,) = pod["initContainers"], pod["containers"]
    requirements = tmp_path / "locked.txt"
    digest = hashlib.sha256(site.index.files["torch_multiworld-1.0-py3-none-any.whl"]).hexdigest()
    requirements.write_text(f"torch-multiworld==1.0 --hash=sha256:{digest}\n")
    values = {
        "/multiworld": str(tmp_path / "multiworld"),
        "/requirements/requirements.txt": str(requirements),
        "https://wheels.example/simple": f"{site.index.url}/simple",
        "https://index.example/simple": f"{site.index.url}/simple",
    }
    environment = {item["name"]: values[item["value"]] for item in init["env"]}
    assert environment == {item["name"]: values[item["value"]] for item in worker["env"]}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "PIP_NO_INDEX": "0", "HOME": str(tmp_path)}
    (tmp_path / "multiworld").mkdir()

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            init["command"], env=clean() | environment | path, capture_output=True, text=True, timeout=120, check=False
        )

    done = run()
    assert done.returncode == 0, done.stderr
    assert '"verdict": "ok"' in done.stdout
    python = Path(worker["command"][0].replace("/multiworld/", f"{tmp_path}/multiworld/", 1))
    done = subprocess.run(
        [python, "-c", "import little_multiworld"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "ill").touch()
    assert run().returncode != 0, "a pod starts where the doctor finds failures"


def test_what_is_mounted_is_declared(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
