"""Headers for patches of a user: of submodules, changed by the patch, or with macros that nobody has decided."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from build import record
from build.git import Git
from build.seals import sha256_of
from tests.build.overlay import little as lt
from tests.build.overlay import little_sources as text
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place
from tests.build.pipeline.user_patches import AUTHOR, INIT, build, explain, made, patch, run
from tests.build.series.repos import commit, make_repo
from tests.build.wheels import little_wheel as lw


@pytest.fixture
def place(little: Little, tmp_path: Path) -> Place:
    place = lr.make(little, tmp_path)
    lt.write(place.tree, {INIT: text.INIT})
    return place


def test_a_macro_of_a_header_that_nobody_has_decided(place: Place) -> None:
    header = "torch/csrc/cuda/Extra.h"
    lt.write(place.tree, {"CMakeLists.txt": "add_definitions(-DUSE_EXTRA)\n"})
    lt.write(place.tree, {header: "#ifdef USE_EXTRA\n#define EXTRA 300\n#else\n#define EXTRA 200\n#endif\n"})
    edits = lt.edited(lt.NCCL_CPP, "return 1 +", "return EXTRA +")
    edits[lt.NCCL_CPP] = f"#include <{header}>\n{edits[lt.NCCL_CPP]}"
    own = patch(place, edits)
    status, output = build(place, "--patches", own)
    assert (status, "includes headers that test macros" in output, "USE_EXTRA" in output) == (10, True, True), output
    status, output = build(place, "--patches", own, "--define", "USE_EXTRA=1")
    assert status == 0, output
    found, folder = made(place)
    assert found.provenance.flags[-1] == "-DUSE_EXTRA=1"
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "340"


def test_a_missing_submodule_is_named(place: Place) -> None:
    edits = lt.edited(lt.NCCL_CPP, "return 1 +", "return 2 +")
    own = patch(place, {lt.NCCL_CPP: f"#include <fmt/format.h>\n{edits[lt.NCCL_CPP]}"})
    status, output = build(place, "--patches", own)
    assert status == 10, output
    assert "third_party/fmt/include cannot be fetched" in output
    assert "no-upstream" in output
    assert f"git checkout v{lt.VERSION} && git submodule update --init third_party/fmt; then --include" in output
    lt.write(place.folder / "fmt" / "include", {"fmt/format.h": "\n"})
    status, output = build(place, "--patches", own, "--include", place.folder / "fmt" / "include")
    assert status == 0, output


def _upstream(place: Place, header: str) -> Path:
    """Make a remote of PyTorch whose tag has a submodule, which has moved on since, and pin the release to it."""
    place.folder.joinpath("remotes").mkdir()
    module = make_repo(place.folder / "remotes" / "fmt", {"include/fmt/format.h": header.encode(), "README": b"fmt\n"})
    named = module.resolve("HEAD")
    commit(module, {"include/fmt/format.h": b"#error the submodule's newest commit\n"}, "later")
    git = make_repo(place.folder / "remotes" / "pytorch", {"torch/csrc/x.cpp": b"\n"})
    modules = f'[submodule "fmt of others"]\n\tpath = third_party/fmt\n\turl = {module.folder.as_uri()}\n'
    (git.folder / ".gitmodules").write_text(modules)
    git.out("add", ".gitmodules")
    git.out("update-index", "--add", "--cacheinfo", f"160000,{named},third_party/fmt")
    git.out("commit", "--quiet", "-m", "release", env=AUTHOR)
    git.out("tag", f"v{lt.VERSION}")
    git.out("config", "uploadpack.allowFilter", "true")
    releases = place.folder / "releases.toml"
    releases.write_text(releases.read_text().replace("a" * 40, git.resolve("HEAD")))
    return git.folder


def test_headers_of_a_submodule_are_fetched_at_the_commit_that_the_release_names(place: Place) -> None:
    remote = _upstream(place, "#pragma once\n#define FROM_FMT 800\n").as_uri()
    edits = lt.edited(lt.NCCL_CPP, "return 1 +", "return FROM_FMT +")
    own = patch(place, {lt.NCCL_CPP: f"#include <fmt/format.h>\n{edits[lt.NCCL_CPP]}"})
    build_it = ("build", lt.VERSION, "--source", place.tree, "--dist", place.dist, "--label", "fix1", "--no-test")
    status, output = lr.command(place, *build_it, "--patches", own, MULTIWORLD_UPSTREAM=remote)
    assert status == 0, output
    assert "fetching third_party/fmt at" in output
    found, folder = made(place)
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "840"
    (kept,) = (place.folder / "cache" / "headers").glob("third_party-fmt-include-????????????????")
    assert [path.relative_to(kept).as_posix() for path in kept.rglob("*.*")] == ["fmt/format.h"]
    status, output = lr.command(place, "verify", folder / found.patched.name, "--source", place.tree, "--patches", own)
    assert status == 0, output


def test_a_tag_that_was_moved_is_no_origin_of_headers(place: Place) -> None:
    """Headers of another commit may have another class layout: a person has to look at that."""
    remote = _upstream(place, "#pragma once\n")
    moved = make_repo(place.folder / "elsewhere", {"torch/csrc/x.cpp": b"// moved\n"})
    moved.out("tag", f"v{lt.VERSION}")
    own = patch(place, {lt.NCCL_CPP: f"#include <fmt/format.h>\n{text.CUDA[lt.NCCL_CPP]}"})
    arguments = ("build", lt.VERSION, "--source", place.tree, "--dist", place.dist, "--label", "fix1", "--no-test")
    status, output = lr.command(place, *arguments, "--patches", own, MULTIWORLD_UPSTREAM=moved.folder.as_uri())
    assert (status, f"v{lt.VERSION} is not the pinned commit" in output) == (7, True), output
    for git in (Git(remote), moved):
        assert git.resolve("HEAD") in output
    assert "--include" not in output, "the advice to fetch them by hand, as if the network were the cause"


def test_headers_that_no_unit_includes(place: Place) -> None:
    """Extensions include them from the wheel, and inductor its own: the official wheel is not the same without them."""
    public, prefix, private = "torch/csrc/Public.h", "torch/_inductor/prefix.h", "torch/csrc/Private.h"
    lt.write(place.tree, dict.fromkeys((public, prefix, private), "#define A 1\n"))
    _add_to_the_wheel(place, {f"torch/include/{public}": b"#define A 1\n", prefix: b"#define A 1\n"})
    own = patch(place, dict.fromkeys((public, prefix, private), "#define A 2\n"))
    status, output = explain(place, "--patches", own)
    assert (status, "no overlay wheel" in output) == (0, True), output
    assert f"{public}: extensions have it compiled in" in " ".join(output.split()), output
    status, output = build(place, "--patches", own)
    assert (status, f"{public}: other than stock's: # define A 1" in output) == (9, True), output
    status, output = build(place, "--patches", own, "--extensions-rebuilt")
    assert status == 0, output
    found, folder = made(place)
    assert found.overlay == record.NONE
    assert f"every extension that includes {public} must be compiled anew" in found.provenance.checks[1].detail
    with zipfile.ZipFile(folder / found.patched.name) as archive:
        assert {name for name in archive.namelist() if archive.read(name) == b"#define A 2\n"} == {
            f"torch/include/{public}",
            prefix,
        }
    status, output = build(place, "--patches", patch(place, {private: "#define A 2\n"}), label="fix2")
    assert (status, "changes nothing that is in the wheel" in output) == (8, True), output


def _add_to_the_wheel(place: Place, files: Mapping[str, bytes]) -> None:
    """Make the release's official wheel anew with more files, and pin it."""
    (wheel,) = (place.folder / "index").glob("*.whl")
    old = sha256_of(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/", "RECORD"))]
        content = {name: archive.read(name) for name in names}
    lw.write_wheel(wheel, {**content, **files})
    releases = place.folder / "releases.toml"
    releases.write_text(releases.read_text().replace(old, sha256_of(wheel)))
