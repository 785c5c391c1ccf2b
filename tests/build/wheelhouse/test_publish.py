"""Files that `wheelhouse` writes whole, and input that it refuses."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

from build import cli, paths
from build.errors import ClaimError, EnvironmentUnfitError, UsageError, WheelError
from build.paths import REPO
from build.record import BuildRecord
from build.wheelhouse.publish import Request, publish
from build.wheelhouse.trust import LIST
from build.wheels.archive import WheelWriter, check_archive
from build.wheeltest import results
from docs.bench.wheelhouse import write_release
from tests.build.small_disk import small_disk
from tests.build.wheelhouse.conftest import PYTHONS, RELEASE


def bytes_of(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def patched(dist: Path, python: str = PYTHONS[0]) -> Path:
    return next((dist / RELEASE).glob(f"torch-*-cp{python.replace('.', '')}-*.whl"))


def test_what_is_in_it(dist: Path) -> None:
    assert cli.main(["wheelhouse", "--dist", str(dist)]) == 0
    out = dist / "wheelhouse"
    wheels = sorted(path.name for path in (out / "files").glob("*.whl"))
    assert wheels == sorted(path.name for path in (dist / RELEASE).glob("*.whl"))
    listed = json.loads((out / LIST).read_bytes())["wheels"]
    assert [item["file"] for item in listed] == [f"files/{name}" for name in wheels]
    for item in listed:
        assert item["sha256"] == hashlib.sha256((out / item["file"]).read_bytes()).hexdigest()
    assert {item["form"] for item in listed} == {"patched wheel", "overlay wheel"}


def links(page: Path) -> list[dict[str, str]]:
    """The attributes of all links of a page."""
    found = re.findall(r"<a ([^>]*)>", page.read_text(encoding="utf-8"))
    return [{name: unescape(value) for name, value in re.findall(r'([a-z-]+)="([^"]*)"', text)} for text in found]


def test_index_and_files_agree(dist: Path) -> None:
    publish(Request((dist / RELEASE,), out := dist / "out"))
    pages = sorted(out.glob("simple/*/index.html"))
    assert [page.parent.name for page in pages] == ["multiworld-torch-overlay", "torch"]
    for page in pages:
        told = json.loads(page.with_suffix(".json").read_bytes())
        assert told["meta"] == {"api-version": "1.3"}
        for link, item in zip(links(page), told["files"], strict=True):
            place = out / "simple" / page.parent.name / unquote(urlsplit(link["href"]).path)
            digest = hashlib.sha256(place.read_bytes()).hexdigest()
            assert link["href"].endswith(f"#sha256={digest}")
            assert (item["hashes"], item["filename"], item["size"]) == (
                {"sha256": digest},
                place.name,
                place.stat().st_size,
            )
            metadata = place.with_name(place.name + ".metadata").read_bytes()
            assert link["data-core-metadata"] == f"sha256={hashlib.sha256(metadata).hexdigest()}"
            assert item["core-metadata"] == {"sha256": hashlib.sha256(metadata).hexdigest()}
            with zipfile.ZipFile(place) as archive:
                assert metadata in {archive.read(name) for name in archive.namelist() if name.endswith("/METADATA")}
            assert link["data-requires-python"] == item["requires-python"] == ">=3.8"
            assert place.with_name(place.name + ".provenance").is_file()
            # Without the address there is no whole link, and clients refuse others.
            assert "provenance" not in item
            assert "data-provenance" not in link
    names = [link["href"] for link in links(out / "simple" / "index.html")]
    assert names == ["multiworld-torch-overlay/", "torch/"]


def unquoted(name: str) -> str:
    return name.replace("+", "%2B")


def test_every_link_of_the_front_page_leads_somewhere(dist: Path) -> None:
    publish(Request((dist / RELEASE,), out := dist / "out"))
    text = (out / "index.html").read_text(encoding="utf-8")
    found = [link["href"] for link in links(out / "index.html")]
    assert len(found) > 10
    for href in found:
        if href.startswith("#"):
            assert f'id="{href[1:]}"' in text
        else:
            assert (out / unquote(href)).exists(), href
    assert not re.search(r'(src|href)="https?:', text), "the page loads something"


def test_links_to_provenance_are_whole_where_the_address_is_known(dist: Path) -> None:
    publish(Request((dist / RELEASE,), out := dist / "out", url="https://example.org/wheels/"))
    found = [link["data-provenance"] for link in links(out / "simple" / "torch" / "index.html")]
    assert all(text.startswith("https://example.org/wheels/files/torch-") for text in found)
    assert "torch @ https://example.org/wheels/files/torch-" in (out / "index.html").read_text()


def test_two_runs_give_the_same_bytes(dist: Path) -> None:
    publish(Request((dist / RELEASE,), dist / "one"))
    publish(Request((dist / RELEASE,), dist / "two"))
    publish(Request((dist / RELEASE, dist / "one" / "files"), dist / "one"))
    assert bytes_of(dist / "one") == bytes_of(dist / "two")


def test_tests_of_other_bytes_prove_nothing(dist: Path) -> None:
    made = [write_release(dist / "9.2.0", "9.2.0", PYTHONS)][0]
    results.write(result_of(made[0], made[0].patched.sha256), dist / "9.2.0")
    results.write(result_of(made[1], "0" * 64), dist / "9.2.0")
    publish(Request((dist / "9.2.0",), out := dist / "out"))
    found = {item["file"]: item["pythons_proven"] for item in json.loads((out / LIST).read_bytes())["wheels"]}
    assert found[f"files/{made[0].patched.name}"] == ["3.11"]
    assert found[f"files/{made[1].patched.name}"] == []


def result_of(made: BuildRecord, digest: str) -> results.TestRecord:
    run = results.Run("patched", "probes", 0, (results.Case("a probe", "passed"),))
    return results.TestRecord("9.2.0", made.provenance.version, made.python, digest, "", proven=True, runs=(run,))


def test_yanked(dist: Path) -> None:
    wheel = patched(dist)
    wheel.with_name(wheel.name + ".yanked").write_text("leaks <a group>\n")
    publish(Request((dist / RELEASE,), out := dist / "out"))
    reasons = {
        link["href"].rpartition("/")[2].partition("#")[0]: link.get("data-yanked")
        for link in links(out / "simple" / "torch" / "index.html")
    }
    assert reasons[unquoted(wheel.name)] == "leaks <a group>"
    assert [reason for reason in reasons.values() if reason] == ["leaks <a group>"]
    page = (out / "index.html").read_text()
    assert "Yanked: leaks &lt;a group&gt;" in page
    assert "yanked: installed only where its version is pinned" in page  # a narrow window has the symbol only
    assert "<li>1 release of PyTorch</li>" in page


def test_every_server_can_read_it(dist: Path) -> None:
    """Whatever the umask was when the wheels were built and now; links become files."""
    wheel = patched(dist)
    kept = wheel.rename(dist / "kept")
    wheel.symlink_to(kept)
    kept.chmod(0o600)
    other = patched(dist, PYTHONS[1])
    other.symlink_to(other.rename(dist / "other"))
    before = os.umask(0o077)
    try:
        publish(Request((dist / RELEASE,), out := dist / "out"))
    finally:
        os.umask(before)
    files = [out, *out.rglob("*")]
    assert {stat.filemode(path.lstat().st_mode) for path in files} == {"drwxr-xr-x", "-rw-r--r--"}
    assert (out / "files" / wheel.name).read_bytes() == kept.read_bytes()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_files_that_cannot_be_read(dist: Path, tmp_path: Path) -> None:
    """Each is named; none is waited for."""
    (odd := tmp_path / "odd").mkdir()
    os.mkfifo(odd / "x.whl")
    (odd / "y.whl").symlink_to("nowhere")
    os.mkfifo(odd / "build-3.11.json")
    wheel = patched(dist)
    wheel.with_name(f"{wheel.name}.yanked").write_bytes(b"\xff\xfe")
    with pytest.raises(ClaimError) as caught:
        publish(Request((dist / RELEASE, odd), dist / "out"))
    assert f"{wheel.name}.yanked is not text in UTF-8" in caught.value.what
    assert f"{odd / 'build-3.11.json'} is not a file that can be read" in caught.value.what
    (odd / "build-3.11.json").unlink()
    with pytest.raises(ClaimError) as caught:
        publish(Request((odd,), dist / "out"))
    assert "x.whl is not a file that can be read" in caught.value.what
    assert "y.whl is not a file that can be read" in caught.value.what


@pytest.mark.parametrize("name", ["../over.py", "/over.py", "torch/../../over.py", "torch\\..\\over.py", "./over.py"])
def test_a_wheel_whose_members_leave_it(tmp_path: Path, name: str) -> None:
    info = "little-1.0.dist-info"
    with WheelWriter(tmp_path / "little-1.0-py3-none-any.whl", info) as writer:
        writer.add(f"{info}/METADATA", b"Metadata-Version: 2.4\nName: little\nVersion: 1.0\n")
        writer.add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        writer.add(name, b"")
    with pytest.raises(ClaimError, match=r"members that leave the wheel: '.*over\.py'"):
        publish(Request((tmp_path,), tmp_path / "out"))
    with pytest.raises(WheelError, match="members that leave the wheel"):
        check_archive(tmp_path / "little-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    "wrong",
    [("--url", "javascript:alert(1)"), ("--url", "example.org"), ("--url", "https://"), ("--assets", "https://x/?a")],
)
def test_what_is_no_address(dist: Path, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["wheelhouse", "--dist", str(dist), *wrong]) == UsageError.exit_code
    assert f"{wrong[0]} {wrong[1]!r} is not an address" in capsys.readouterr().err


def test_how_long_it_lives(dist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["wheelhouse", "--dist", str(dist), "--days", "9999999"]) == UsageError.exit_code
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    assert cli.main(["wheelhouse", "--dist", str(dist)]) == UsageError.exit_code
    assert capsys.readouterr().err.count("no wheelhouse can live") == 2


def test_the_builder_is_the_job(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://forge.example")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "me/it/.github/workflows/wheels.yml@refs/tags/v1")
    assert cli.main(["wheelhouse", "--dist", str(dist)]) == 0
    for path in dist.glob("wheelhouse/files/*.slsa.json"):
        builder = json.loads(path.read_bytes())["predicate"]["runDetails"]["builder"]
        assert builder == {"id": "https://forge.example/me/it/.github/workflows/wheels.yml@refs/tags/v1"}


def test_all_that_disagrees_is_named_and_nothing_is_published(dist: Path, tmp_path: Path) -> None:
    publish(Request((dist / RELEASE,), out := dist / "out"))
    before = bytes_of(out)
    good, other = patched(dist), patched(dist, PYTHONS[1])
    more = tmp_path / "more"
    shutil.copytree(dist / RELEASE, more)
    flip(more / good.name)  # another wheel of that name
    (more / "build.json").write_text('{"python": 3}')
    odd = tmp_path / "odd"
    odd.mkdir()
    shutil.copy(good, odd / good.name.replace("cp311-cp311", "cp312-cp312").replace("9.1.0", "9.1.1"))
    shutil.copy(other, odd / other.name.replace("manylinux_2_17", "manylinux_2_5"))
    (odd / "torch-1.0-py3-none-any.whl").write_bytes(good.read_bytes()[:-40])
    (odd / "torch.whl").write_bytes(b"")
    replaced = tmp_path / "replaced"
    shutil.copytree(dist / RELEASE, replaced)
    flip(replaced / other.name)
    same = tmp_path / "same"
    same.mkdir()
    shutil.copy(replaced / other.name, same / good.name)
    flip(same / good.name, at=-60)
    with pytest.raises(ClaimError) as caught:
        publish(Request((dist / RELEASE, more, odd, replaced, same), out))
    said = caught.value.what
    assert f"{more / 'build.json'} is not a record of this version" in said
    assert f"{other.name}: its SHA-256 is" in said
    assert "the record of its build says" in said
    assert "its METADATA is that of torch 9.1.0+cu124.mw1" in said or "its WHEEL has the tags cp311-cp311-" in said
    assert "manylinux_2_5_x86_64.whl: its WHEEL has the tags cp312-cp312-manylinux_2_17_x86_64" in said
    assert "torch-1.0-py3-none-any.whl is not a wheel that can be read" in said
    assert "torch.whl is not the name of a wheel" in said
    assert "nothing is published, 7 problems" in said
    assert bytes_of(out) == before


def flip(path: Path, at: int = 200) -> None:
    """Change one byte of a file, which is written anew: a wheelhouse has links to the old one."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_two_wheels_of_one_name(dist: Path, tmp_path: Path) -> None:
    wheel, other = patched(dist), tmp_path / "other"
    other.mkdir()
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(other / wheel.name, "w", zipfile.ZIP_STORED) as copy:
        for name in archive.namelist():
            copy.writestr(zipfile.ZipInfo(name), archive.read(name))
    with pytest.raises(ClaimError, match=f"2 wheels are called {re.escape(wheel.name)}") as caught:
        publish(Request((dist / RELEASE, other), dist / "out"))
    assert str(other / wheel.name) in caught.value.what
    assert not (dist / "out").exists()


def test_a_wheel_of_others_is_read_whole(tmp_path: Path, dist: Path) -> None:
    """Without a record of a build, RECORD is all there is: every member is compared with it."""
    wheel, other = patched(dist), tmp_path / "other"
    other.mkdir()
    shutil.copy(wheel, other)
    publish(Request((other,), out := dist / "out"))
    said = json.loads((out / "files" / f"{wheel.name}.slsa.json").read_bytes())
    assert said["predicateType"] == "urn:multiworld:published:1"
    assert said["subject"][0]["digest"]["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert cli.main(["verify", str(out / "files" / wheel.name)]) == 0
    assert "no record" in (out / "index.html").read_text()
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(other / wheel.name, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, archive.read(name) + (b"# more" if name.endswith("__init__.py") else b""))
    with pytest.raises(ClaimError, match=r"RECORD and members differ: torch/__init__\.py"):
        publish(Request((other,), out))


@pytest.mark.parametrize("content", ["notes.txt", None])
def test_a_folder_of_something_else_is_not_replaced(dist: Path, tmp_path: Path, content: str | None) -> None:
    out = tmp_path / "mine"
    if content:
        out.mkdir()
        (out / content).write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(UsageError, match="is not a wheelhouse"):
        publish(Request((dist / RELEASE,), out))
    assert (out / content if content else out).read_text() == "mine"


def test_nothing_to_publish(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        publish(Request((tmp_path / "absent",), tmp_path / "out"))
    with pytest.raises(UsageError, match="there is no wheel"):
        publish(Request((tmp_path,), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_reader_never_finds_it_missing(dist: Path) -> None:
    request = Request((dist / RELEASE,), out := dist / "out")
    publish(request)
    stop, missed, seen = threading.Event(), list[OSError](), 0

    def read() -> None:
        nonlocal seen
        while not stop.is_set():
            try:
                (out / "simple" / "torch" / "index.html").read_bytes()
                seen += 1
            except OSError as error:  # noqa: PERF203 - each read counts
                missed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(10):
            publish(request)
    finally:
        stop.set()
        thread.join()
    assert seen > 10
    assert missed == []


def test_where_folders_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "exchange", lambda *_: False)
    (final := tmp_path / "out").mkdir()
    (final / "old").touch()
    with paths.built_beside(final) as part:
        (part / "new").touch()
    assert [path.name for path in final.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_where_the_old_folder_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder of a lower layer of overlayfs."""
    (final := tmp_path / "out").mkdir()
    (final / "old").touch()
    rename = Path.rename

    def renameat2(*_: object) -> int:
        ctypes.set_errno(errno.EXDEV)
        return -1

    def of_upper_layers(self: Path, target: Path) -> Path:
        if self == final:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, target)

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=renameat2))
    monkeypatch.setattr(Path, "rename", of_upper_layers)
    with paths.built_beside(final) as part:
        (part / "new").touch()
    assert [path.name for path in final.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from build.wheelhouse import publish
publish.page.page = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
publish.publish(publish.Request((Path(sys.argv[1]),), Path(sys.argv[2])))
"""


def test_a_killed_run_leaves_the_last_wheelhouse(dist: Path) -> None:
    """Killed when all but the front page is written; the next run removes what it left."""
    publish(Request((dist / RELEASE,), out := dist / "out"))
    before = bytes_of(out)
    write_release(dist / "9.2.0", "9.2.0", PYTHONS[:1])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, dist / "9.2.0", out],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert bytes_of(out) == before
    assert len(list(dist.glob(".out.*.part"))) == 1
    publish(Request((dist / RELEASE,), out))
    assert list(dist.glob(".out.*.part")) == []
    assert bytes_of(out) == before


def test_a_full_disk_leaves_the_last_wheelhouse(dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small := tmp_path / "small").mkdir()
    with small_disk(small, "size=256k"):
        out = small / "out"
        assert cli.main(["wheelhouse", "--dist", str(dist), "--out", str(out)]) == 0
        before = bytes_of(out)
        for release in ("9.2.0", "9.3.0", "9.4.0"):
            write_release(dist / release, release, PYTHONS)
        assert cli.main(["wheelhouse", "--dist", str(dist), "--out", str(out)]) == EnvironmentUnfitError.exit_code
        said = capsys.readouterr().err
        assert "No space left on device" in said
        assert "free disk space there, or name another folder" in said
        assert bytes_of(out) == before
        assert list(small.glob(".out.*.part")) == []
