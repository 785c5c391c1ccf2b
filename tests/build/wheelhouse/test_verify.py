"""`verify`: all claims hold for what was built, and the first that does not is named."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import build.preflight
import build.releases
from build import cli, paths
from build.errors import ClaimError, EnvironmentUnfitError
from build.seals import sha256_of
from build.wheelhouse import attestation
from build.wheels.archive import WheelWriter
from tests.build.overlay import little as lt
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place

DIGEST = "SHA-256 of the wheel"
NO_ATTESTATION = json.dumps({"version": 1, "attestation_bundles": [{"publisher": {"kind": "key"}, "attestations": []}]})
UNKNOWN_PUBLISHER = NO_ATTESTATION.replace(
    "[]", json.dumps([{"version": 1, "verification_material": {}, "envelope": {"statement": "", "signature": ""}}])
).replace('"key"', '"me"')


@pytest.fixture(scope="module")
def built(whole_release: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The miniature release, built and published with a signature; the tooling of this process knows it, too."""
    place = lr.copied(whole_release, tmp_path_factory.mktemp("release"))
    key = place.folder / "key.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", key)
    openssl("pkey", "-in", key, "-pubout", "-out", place.folder / "public.pem")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in lr.environment(place, {}).items():
            patch.setenv(name, value)
        patch.setattr(paths, "PATCHES", place.folder / "patches")
        patch.setattr(build.releases, "RELEASES_TOML", place.folder / "releases.toml")
        build.releases.load.cache_clear()
        assert cli.main(["wheelhouse", "--dist", str(place.dist), "--key", str(key)]) == 0
        yield place
    build.releases.load.cache_clear()


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, timeout=60, capture_output=True)


@pytest.fixture
def wheel(built: Place, tmp_path: Path) -> Path:
    """A copy of the published overlay wheel with what lies beside it."""
    return copied(built, "multiworld_torch_overlay-*.whl", tmp_path)


def copied(built: Place, pattern: str, folder: Path) -> Path:
    (found,) = (built.dist / "wheelhouse" / "files").glob(pattern)
    for suffix in ("", attestation.SUFFIX, attestation.STATEMENT, attestation.ENVELOPE):
        shutil.copy(found.with_name(found.name + suffix), folder)
    return folder / found.name


def verify(wheel: Path, *arguments: str | Path) -> int:
    return cli.main(["verify", str(wheel), *map(str, arguments)])


def cheap(wheel: Path, *arguments: str | Path) -> int:
    return verify(wheel, "--no-rebuild", *arguments)


@pytest.mark.parametrize("pattern", ["multiworld_torch_overlay-*.whl", "torch-*.whl"])
def test_what_was_built_holds(
    built: Place,
    tmp_path: Path,
    pattern: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is compared is not imported, so the Python of the wheel need not be here.
    monkeypatch.setattr(build.preflight, "interpreter", no_python)
    wheel = copied(built, pattern, tmp_path)
    assert verify(wheel, "--source", built.tree, "--key", built.folder / "public.pem") == 0
    said = capsys.readouterr().out
    assert "compiling nccl.cpp" in said, "no unit was compiled again"
    assert "ok: overlay library: the same" in said
    assert "ok: the whole wheel: the same bytes" in said
    assert "21 claims hold" in said


def no_python(python: str) -> Path:
    raise EnvironmentUnfitError(f"no Python {python}")


def test_straight_from_the_results_of_a_build(built: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (wheel,) = built.results.glob("torch-*.whl")
    assert cheap(wheel) == 0
    said = capsys.readouterr().out
    assert "NOT SIGNED" in said
    assert "14 claims hold; it was NOT built again" in said


def test_one_byte(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)
    assert verify(wheel) == ClaimError.exit_code
    assert f"the first claim that fails is: {DIGEST}" in capsys.readouterr().err


def forged(wheel: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write a wheel anew with changed members and a RECORD that fits, and claim its digest, without a signature."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(item, archive.read(item)) for item in archive.infolist()]
    info = next(item.filename.partition("/")[0] for item, _ in members if item.filename.endswith("/RECORD"))
    with WheelWriter(wheel, info) as writer:
        for item, data in members:
            if not item.filename.endswith("/RECORD"):
                writer.add(item.filename, change(item.filename, data), item.external_attr >> 16 & 0o777)
    claim(wheel, lambda said: said["subject"][0]["digest"].update(sha256=sha256_of(wheel)))


def claim(wheel: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the statement about a wheel, all copies of it, without a signature."""
    place = wheel.with_name(wheel.name + attestation.STATEMENT)
    said = json.loads(place.read_bytes())
    change(said)
    signed = attestation.Attestation(json.dumps(said).encode())
    place.write_bytes(signed.statement)
    wheel.with_name(wheel.name + attestation.SUFFIX).write_bytes(attestation.encode(signed))
    wheel.with_name(wheel.name + attestation.ENVELOPE).unlink(missing_ok=True)


def inner(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["predicate"]["buildDefinition"]["internalParameters"]
    return found


#: A part of the record, another value, and the claim that fails.
FORGERIES = {
    "commit": ("b" * 40, "release"),
    "patches": ([{"name": "0001-answer.patch", "subject": "x", "sha256": "0" * 64}], "patches"),
    "flags": (["-O3"], "compile flags"),
    "headers": (["nvidia-nccl-cu12==1"], "header packages"),
    "assembly": ("0" * 64, "code that writes the wheels"),
    "version": ("9.9.0+cu124.mw7", "name and tags"),
    "platform": ("manylinux_2_99_x86_64", "name and tags"),
}


@pytest.mark.parametrize("field", FORGERIES)
def test_a_claim_that_is_not_true(wheel: Path, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The wheel, its embedded record and the statement agree with each other, and not with this project."""
    value, name = FORGERIES[field]

    def change(said: dict[str, Any]) -> None:
        inner(said)[field] = value
        definition = said["predicate"]["buildDefinition"]
        if field in ("commit", "patches", "headers"):
            definition["resolvedDependencies"] = dependencies(definition)

    place = wheel.with_name(wheel.name + attestation.STATEMENT)
    said = json.loads(place.read_bytes())
    change(said)
    embedded = (json.dumps(inner(said), indent=2, ensure_ascii=False) + "\n").encode()
    forged(wheel, lambda name, data: embedded if name.endswith("/multiworld.json") else data)

    def both(said: dict[str, Any]) -> None:
        change(said)
        said["subject"][0]["digest"]["sha256"] = sha256_of(wheel)

    claim(wheel, both)
    assert cheap(wheel) == ClaimError.exit_code
    assert f"the first claim that fails is: {name}\n" in capsys.readouterr().err


def dependencies(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """Standard part of a statement that is made from forged parameters."""
    import msgspec

    from build.record import Artifact, Provenance
    from build.wheelhouse import statement

    proven = msgspec.convert(definition["internalParameters"], Provenance)
    item = next(x for x in definition["resolvedDependencies"] if x.get("uri", "").startswith("pkg:pypi/torch@"))
    made = statement.definition(proven, lt.PYTHON, Artifact(item["name"], item["digest"]["sha256"], 0))
    found: list[dict[str, Any]] = json.loads(msgspec.json.encode(made.resolved_dependencies))
    return found


def _official(said: dict[str, Any]) -> None:
    for item in said["predicate"]["buildDefinition"]["resolvedDependencies"]:
        if item.get("uri", "").startswith("pkg:pypi/torch@"):
            item["digest"]["sha256"] = "0" * 64


def _no_dependencies(said: dict[str, Any]) -> None:
    said["predicate"]["buildDefinition"]["resolvedDependencies"].pop(0)


def _other_embedded(said: dict[str, Any]) -> None:
    inner(said)["compiler"] = "clang 99"


@pytest.mark.parametrize(
    ("change", "name"),
    [(_official, "official wheel"), (_no_dependencies, "dependencies"), (_other_embedded, "embedded provenance")],
)
def test_a_statement_that_was_changed(
    wheel: Path, change: Callable[[dict[str, Any]], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(wheel, change)
    assert cheap(wheel) == ClaimError.exit_code
    assert f"the first claim that fails is: {name}\n" in capsys.readouterr().err


def test_an_sbom_that_was_changed(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged(wheel, lambda name, data: data.replace(b"g++", b"tcc") if name.endswith(".cdx.json") else data)
    assert cheap(wheel) == ClaimError.exit_code
    assert "the first claim that fails is: SBOM\n" in capsys.readouterr().err


def test_what_only_a_build_can_tell(wheel: Path, built: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The loader was changed, and everything that the wheel says of itself was made to fit."""
    forged(wheel, lambda name, data: data + b"# more\n" if name.endswith("_load.py") else data)
    assert cheap(wheel) == 0
    assert verify(wheel, "--source", built.tree) == ClaimError.exit_code
    said = capsys.readouterr().err
    assert "the first claim that fails is: the whole wheel\n" in said
    assert "members differ: multiworld_torch_overlay-" in said
    assert "multiworld_torch_overlay/_load.py" in said


def test_other_sources_are_not_compared(
    wheel: Path, built: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "tree"
    shutil.copytree(built.tree, other)
    (other / "README").write_text("another tree\n")
    assert verify(wheel, "--source", other) == 5
    assert "the wheel cannot be built again here: it was made from local folder" in capsys.readouterr().err


def test_signatures(wheel: Path, built: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the key that signed; by openssl, which knows nothing of this project; and not by another key."""
    public = built.folder / "public.pem"
    envelope = json.loads(wheel.with_name(wheel.name + attestation.ENVELOPE).read_bytes())
    statement = wheel.with_name(wheel.name + attestation.STATEMENT).read_bytes()
    assert base64.b64decode(envelope["payload"]) == statement
    (tmp_path / "signed").write_bytes(attestation.signed_bytes(statement))
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    where: list[str | Path] = ["-in", tmp_path / "signed", "-sigfile", tmp_path / "signature"]
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", *where)
    for suffix in (attestation.SUFFIX, attestation.ENVELOPE):
        assert cheap(wheel, "--key", public, "--provenance", wheel.with_name(wheel.name + suffix)) == 0
    capsys.readouterr()
    assert cheap(wheel) == 0
    assert "a key that came with it" in capsys.readouterr().out
    openssl("genpkey", "-algorithm", "ed25519", "-out", tmp_path / "other.pem")
    openssl("pkey", "-in", tmp_path / "other.pem", "-pubout", "-out", tmp_path / "other.pub")
    assert cheap(wheel, "--key", tmp_path / "other.pub") == ClaimError.exit_code
    assert "the first claim that fails is: signature" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [attestation.STATEMENT, attestation.ENVELOPE])
def test_a_copy_that_says_something_else(wheel: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = wheel.with_name(wheel.name + suffix)
    text = place.read_bytes()
    if suffix == attestation.ENVELOPE:
        whole = json.loads(text)
        whole["signatures"][0]["sig"] = base64.b64encode(b"\0" * 64).decode()
        place.write_text(json.dumps(whole))
    else:
        place.write_bytes(text.replace(b"9.9.0", b"9.9.1"))
    assert cheap(wheel) == ClaimError.exit_code
    said = capsys.readouterr().err
    assert "the first claim that fails is: copies of the statement\n" in said
    assert f"{place.name} says something else" in said


def test_a_signed_statement_that_was_changed(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = wheel.with_name(wheel.name + attestation.SUFFIX)
    signed = attestation.decode(place.read_bytes(), "it")
    changed = signed.statement.replace(b"9.9.0", b"9.9.1")
    place.write_bytes(
        attestation.encode(
            attestation.Attestation(changed, signed.publisher, signed.signature, signed.keyid, signed.material)
        )
    )
    assert cheap(wheel) == ClaimError.exit_code
    assert "the first claim that fails is: signature" in capsys.readouterr().err


def test_who_wants_a_signature_takes_no_other(wheel: Path, built: Place, capsys: pytest.CaptureFixture[str]) -> None:
    claim(wheel, lambda said: said)
    assert cheap(wheel) == 0
    assert cheap(wheel, "--key", built.folder / "public.pem") == ClaimError.exit_code
    assert "it is not signed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "not JSON", '{"payload": "x"}', '{"attestation_bundles": []}', NO_ATTESTATION, UNKNOWN_PUBLISHER],
)
def test_what_is_no_provenance(wheel: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "provenance"
    place.write_text(text)
    assert cheap(wheel, "--provenance", place) == ClaimError.exit_code
    assert "provenance is not" in capsys.readouterr().err


def test_nothing_to_verify(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare := tmp_path / "bare").mkdir()
    shutil.copy(wheel, bare)
    assert cheap(bare / wheel.name) == 2
    assert "nothing is claimed about" in capsys.readouterr().err
    assert cheap(tmp_path / "absent.whl") == 2
    assert cheap(wheel, "--provenance", tmp_path / "absent") == 2
    assert cheap(wheel, "--key", wheel) == 2
    assert "Traceback" not in capsys.readouterr().err
