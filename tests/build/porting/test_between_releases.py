"""Porting a series of the project: neighbour, files, manifest, reports."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build import paths, releases
from build.errors import UsageError
from build.git import Git
from build.porting import Action, between_releases, registry, session
from build.porting.between_releases import Request, give_up, port_release
from build.series import manifest as manifests
from build.series.lint import lint_series
from build.series.manifest import ReleaseEntry, Verified
from tests.build.series.repos import commit, make_repo, numbered

from .trees import Files, series_on

MANIFEST = """# kept
[series]
name = "demo"
purpose = "test"

[[patch]]
id = "one"
slug = "one"
reason = "because"
applies = ">=2.0"

[[patch]]
id = "two"
slug = "two"
reason = "because"
applies = ">=2.0,<2.6"

[release."2.2.1"]
base_commit = "6c8c5ad5eaf47a62fafbb4a2747198cbffbf1ff0"
patches = ["one", "two"]
verified = "probed"
note = "by hand"
# the end
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Git]:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    toml = tmp_path / "releases.toml"
    toml.write_bytes(releases.RELEASES_TOML.read_bytes())
    monkeypatch.setattr(releases, "RELEASES_TOML", toml)
    releases.load.cache_clear()
    for function in (registry.set_series, registry.fill_build_ids, registry.known_release):
        monkeypatch.setattr(function, "__defaults__", (toml,))
    git = make_repo(tmp_path / "repo", {"a.c": numbered(40), "b.c": numbered(40)})
    git.out("tag", "v2.2.1")
    steps: list[Files] = [{"a.c": numbered(40, l10="mine\n")}, {"b.c": numbered(40, l10="mine\n")}]
    folder = tmp_path / "patches" / "demo" / "2.2.1"
    folder.mkdir(parents=True)
    for number, (slug, data) in enumerate(zip(("one", "two"), series_on(git, steps), strict=True), 1):
        (folder / f"{number:04d}-{slug}.patch").write_bytes(data)
    (folder.parent / "manifest.toml").write_text(MANIFEST)
    commit(git, {"a.c": b"x\n" + numbered(40)}, "v2.1.2")
    git.out("tag", "v2.1.2")
    commit(git, {"a.c": numbered(40, l10="mine\n"), "b.c": numbered(40, l10="theirs\n")}, "v2.4.0")
    git.out("tag", "v2.4.0")
    yield git
    releases.load.cache_clear()


def request(repo: Git, release: str, action: Action = Action.START, **more: object) -> Request:
    root = repo.folder.parent / "patches"
    trees = {"from_source": f"{repo.folder}@v2.2.1", "to_source": f"{repo.folder}@v{release}"}
    return Request(release, "demo", action=action, root=root, **trees, **more)  # type: ignore[arg-type]


def folder(repo: Git) -> Path:
    return repo.folder.parent / "patches" / "demo"


def test_a_port_is_written_and_entered(repo: Git) -> None:
    report = port_release(request(repo, "2.1.2"))
    assert report.complete
    entry = manifests.load(folder(repo)).release["2.1.2"]
    assert (entry.patches, entry.derived_from, entry.verified) == (("one", "two"), "2.2.1", Verified.PORTED)
    assert entry.base_commit == releases.get("2.1.2").commit
    names = sorted(path.name for path in (folder(repo) / "2.1.2").iterdir())
    assert names == ["0001-one.patch", "0002-two.patch", "PORT.md", "port.json"]
    text = (folder(repo) / "manifest.toml").read_text()
    assert text.startswith(MANIFEST.rstrip("\n"))
    kept = lint_series(folder(repo), lambda name: (repo.folder, f"v{name}")).findings
    assert not [item for item in kept if "other bytes" in item.what or "offset" in item.what]
    assert str(repo.folder.parent) not in (folder(repo) / "2.1.2" / "PORT.md").read_text()


def test_a_second_run_and_a_new_one_change_nothing(repo: Git) -> None:
    port_release(request(repo, "2.1.2"))

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder(repo).rglob("*") if path.is_file()}

    first = content()
    port_release(request(repo, "2.1.2"))
    assert content() == first
    port_release(request(repo, "2.1.2", again=True))
    assert content() == first


@pytest.mark.parametrize("failing", ["fill_build_ids", "write_series", "write_entry", "set_series"])
def test_a_port_that_fails_at_its_end_goes_on(repo: Git, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """The build ids take a while to stream, and an overlay is bound to them."""

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(between_releases, failing, fail)
        with pytest.raises(KeyboardInterrupt):
            port_release(request(repo, "2.1.2"))
    assert port_release(request(repo, "2.1.2")).complete
    assert "demo" in releases.get("2.1.2").series
    assert manifests.load(folder(repo)).release["2.1.2"].patches == ("one", "two")
    assert not request(repo, "2.1.2").state.exists()
    monkeypatch.setattr(between_releases, "write_series", fail)
    assert port_release(request(repo, "2.1.2")).complete  # finished: nothing is written again


def test_an_interrupt_waits_until_all_is_written(repo: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.write_entry

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(between_releases, "write_entry", interrupted)
    with pytest.raises(KeyboardInterrupt):
        port_release(request(repo, "2.1.2"))
    assert "demo" in releases.get("2.1.2").series
    assert not request(repo, "2.1.2").state.exists()


def test_upstream_and_conflict_are_entered_as_such(repo: Git) -> None:
    report = port_release(request(repo, "2.4.0"))
    assert not report.complete
    entry = manifests.load(folder(repo)).release["2.4.0"]
    assert [item.id for item in entry.not_applicable] == ["one"]
    assert (entry.missing, entry.verified) == (("two",), Verified.NONE)
    checkout = paths.cache("port") / "demo-2.4.0" / "checkout" / "b.c"
    data = checkout.read_bytes()
    checkout.write_bytes(
        data[: data.index(b"<<<<<<<")] + b"both\n" + data[data.index(b"\n", data.index(b">>>>>>>")) + 1 :]
    )
    assert port_release(request(repo, "2.4.0", Action.CONTINUE)).complete
    entry = manifests.load(folder(repo)).release["2.4.0"]
    assert (entry.patches, entry.missing, entry.verified) == (("two",), (), Verified.PORTED)
    assert b"+both\n" in (folder(repo) / "2.4.0" / "0001-two.patch").read_bytes()


def test_giving_up_brings_the_series_back(repo: Git) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder(repo).rglob("*") if path.is_file()}

    before = content()
    port_release(request(repo, "2.4.0"))
    assert content() != before
    state = request(repo, "2.4.0").state
    give_up(folder(repo), "2.4.0", state)
    assert content() == before
    assert not state.exists()
    with pytest.raises(UsageError, match="no port waits"):
        give_up(folder(repo), "2.4.0", state)
    port_release(request(repo, "2.1.2"))
    kept = content()
    repo.out("tag", "-f", "v2.1.2", "v2.4.0")
    assert not port_release(request(repo, "2.1.2", again=True)).complete
    give_up(folder(repo), "2.1.2", request(repo, "2.1.2").state)
    assert content() == kept


@pytest.mark.parametrize("name", ["before.json", "state.json"])
def test_an_interrupted_end_is_not_undone(repo: Git, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state's removal is killed after `name`; what the port wrote stays."""
    port_release(request(repo, "2.4.0"))
    state = request(repo, "2.4.0").state
    kept = manifests.load(folder(repo)).release["2.4.0"]
    whole = paths.clear

    def killed(path: Path) -> None:
        whole(path)
        if path.name == name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "clear", killed)
        with pytest.raises(KeyboardInterrupt):
            session.discard(state)
    assert not (state / "before.json").exists()
    with contextlib.suppress(UsageError):  # after the state's removal no port waits
        give_up(folder(repo), "2.4.0", state)
    assert manifests.load(folder(repo)).release["2.4.0"] == kept


def test_what_the_series_had_is_for_a_waiting_port_only(repo: Git) -> None:
    port_release(request(repo, "2.4.0"))
    state = request(repo, "2.4.0").state
    (state / "state.json").unlink()
    with pytest.raises(UsageError, match="no port waits"):
        give_up(folder(repo), "2.4.0", state)
    assert "2.4.0" in manifests.load(folder(repo)).release


def test_hand_written_patches_are_not_replaced_by_accident(repo: Git) -> None:
    port_release(request(repo, "2.1.2"))
    with pytest.raises(UsageError, match="written by hand"):
        port_release(request(repo, "2.2.1"))


def test_a_release_to_start_from_must_be_complete(repo: Git) -> None:
    with pytest.raises(UsageError, match=r"2\.2\.1"):
        port_release(request(repo, "2.1.2", origin="2.4.0"))


def test_the_manifest_keeps_what_is_not_the_release_s(repo: Git) -> None:
    entry = ReleaseEntry(base_commit="1" * 40, patches=("one", "two"), note='a "quoted" note')
    registry.write_entry(folder(repo), "2.2.1", entry)
    text = (folder(repo) / "manifest.toml").read_text()
    assert text.startswith(MANIFEST[: MANIFEST.index("[release")])
    assert text.endswith("# the end\n")
    assert manifests.load(folder(repo)).release["2.2.1"] == entry


def test_entries_of_a_new_release_are_valid() -> None:
    from build.official.facts import WheelFacts

    known = releases.get("2.6.0")
    wheel = releases.OfficialWheel(
        version="9.9.9",
        local="cu999",
        cuda="99.9",
        cxx11_abi=True,
        nccl="9.9.9",
        pythons=("3.11",),
        sha256={"3.11": "b" * 64},
        libtorch_cuda_build_ids={"3.11": "c" * 40},
    )
    facts = WheelFacts(
        wheel=wheel,
        commit="a" * 40,
        cxx_standard=20,
        requires={package.name: "1.2.3" for package in known.header_packages[:1]},
    )
    text = releases.RELEASES_TOML.read_bytes() + registry.entry_text(facts, known).encode()
    entry = releases.parse(text, "test")["9.9.9"]
    assert entry.header_packages[0].version == "1.2.3"
    assert entry.defines[0].reason == "as in 2.6.0"
    assert entry.wheel == wheel
