"""The SBOM of a wheel: valid CycloneDX that names what went in, the same on every machine and day."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.model.bom import Bom

from build.record import Artifact
from build.wheels import sbom
from build.wheels.overlay import DISTRIBUTION
from docs.bench.wheelhouse import provenance

PROVEN = provenance("9.1.0")
STOCK = Artifact("torch-9.1.0-cp311-cp311-manylinux1_x86_64.whl", "e" * 64, 1)


def read(distribution: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.document(distribution, PROVEN, STOCK))
    return found


@pytest.mark.parametrize("distribution", ["torch", DISTRIBUTION])
def test_what_it_names(distribution: str) -> None:
    told = read(distribution)
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    root = told["metadata"]["component"]
    assert root["purl"] == f"pkg:pypi/{distribution}@9.1.0%2Bcu124.mw1"
    parts = {item["bom-ref"]: item for item in told["components"]}
    overlay = parts["libtorch_mw.so"]
    assert overlay["hashes"] == [{"alg": "SHA-256", "content": PROVEN.overlay_sha256}]
    assert [item["uid"] for item in overlay["pedigree"]["commits"]] == [PROVEN.commit]
    assert len(overlay["pedigree"]["patches"]) == len(PROVEN.patches)
    assert parts["pkg:pypi/nvidia-nccl-cu12@2.21.5"]["scope"] == "excluded"
    tools = {item["name"]: item["version"] for item in told["metadata"]["tools"]["components"]}
    assert (tools["compiler"], tools["linker"]) == (PROVEN.compiler, PROVEN.linker)
    assert Bom.from_json(data=told).metadata.component is not None  # type: ignore[attr-defined]


def test_the_official_wheel_is_in_one_and_beside_the_other() -> None:
    patched, alone = read("torch"), read(DISTRIBUTION)
    (ancestor,) = patched["metadata"]["component"]["pedigree"]["ancestors"]
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": STOCK.sha256}]
    needs = {item["ref"]: item.get("dependsOn", []) for item in alone["dependencies"]}
    assert needs[alone["metadata"]["component"]["bom-ref"]] == ["libtorch_mw.so", "pkg:pypi/torch@9.1.0"]


def test_neither_time_nor_chance() -> None:
    assert sbom.document("torch", PROVEN, STOCK) == sbom.document("torch", PROVEN, STOCK)
    told = read("torch")
    assert "timestamp" not in told["metadata"]
    assert told["serialNumber"] != read(DISTRIBUTION)["serialNumber"]
