"""The matrix of builds, as the workflow computes it: a program that needs no environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build import releases
from build.paths import REPO
from ci.matrix import rows


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, **variables}
    command = [sys.executable, "-I", str(REPO / "ci" / "matrix.py"), *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def test_rows_are_what_the_tooling_knows() -> None:
    found = rows()
    for row in found:
        release = releases.get(row["release"])
        assert row["python"] in release.wheel.pythons
        assert release.series
    assert {"release": "2.6.0", "python": "3.11"} in found
    assert {row["release"] for row in found}.isdisjoint({"2.9.1", "2.15.0"}), "these have no patches"
    assert found[0]["release"] == "2.6.0"


def test_it_goes_to_the_next_job(tmp_path: Path) -> None:
    output = tmp_path / "output"
    done = call("2.4.0", GITHUB_OUTPUT=str(output))
    assert done.returncode == 0, done.stderr
    name, _, value = output.read_text().partition("=")
    assert name == "matrix"
    assert {row["release"] for row in json.loads(value)["include"]} == {"2.4.0"}


@pytest.mark.parametrize("release", ["1.0.0", "2.15.0"])
def test_a_release_that_cannot_be_built(release: str) -> None:
    done = call(release)
    assert done.returncode == 2
    assert f"no patches for {release}" in done.stderr


def test_a_release_with_missing_patches_is_left_out(tmp_path: Path) -> None:
    for name in ("build/releases.toml", "patches/nccl/manifest.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    assert any(row["release"] == "2.4.0" for row in rows(tmp_path))
    manifest = tmp_path / "patches" / "nccl" / "manifest.toml"
    head, entry, tail = manifest.read_text().partition('[release."2.4.0"]')
    manifest.write_text(head + entry + tail.replace("missing = []", 'missing = ["send"]', 1))
    assert not any(row["release"] == "2.4.0" for row in rows(tmp_path))
