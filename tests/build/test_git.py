"""The one module that runs git: objects by name, what is missing, whose settings count, ends and progress."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from build.errors import SourceError
from build.git import PROJECT, Git, Settings, init, repository, split_revision
from build.paths import REPO
from tests.build.series.repos import make_repo


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_blobs_come_in_order_and_none_for_what_is_no_blob(kind: str, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    init(tmp_path / "repo", object_format=kind)
    files: dict[str, bytes | None] = {
        "a b 7": b"one\n",
        "d/x": b"",
        "big": bytes(range(256)) * 4000,
        "ü": b"no newline",
    }
    git = make_repo(tmp_path / "repo", files)
    names = [f"HEAD:{name}" for name in files]
    assert list(git.blobs([*names, "HEAD:none 3", "HEAD:d", *names])) == [*files.values(), None, None, *files.values()]
    assert list(git.blobs([])) == []
    assert git.files("HEAD", "d")["d/x"].blob == git.line("rev-parse", "HEAD:d/x")


def test_more_requests_than_pipes_hold(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo", {f"f{n}": f"{n}\n".encode() * 500 for n in range(300)})
    names = [f"HEAD:f{n % 300}" for n in range(10_000)]  # 100 kB of requests
    assert sum(len(data or b"") for data in git.blobs(names)) > 10_000_000


def test_blobs_of_a_broken_repository_are_an_error_in_gits_words(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    (tmp_path / "repo" / ".git" / "HEAD").write_bytes(b"")
    with pytest.raises(SourceError, match="git cat-file failed") as caught:
        list(git.blobs(["HEAD:a"]))
    assert "not a git repository" in caught.value.cause


def test_commits_depend_on_their_arguments_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    tree = git.resolve("HEAD", "tree")
    first = git.commit(tree, b"text\n")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-01-01T00:00:00+0000")
    assert git.commit(tree, b"text\n") == first
    assert PROJECT.email in git.line("cat-file", "commit", first)


def test_what_a_path_is(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo@home", {"d/a": b"one\n"})
    assert repository(git.folder) == git
    assert repository(git.folder / "d") is None
    assert repository(tmp_path) is None
    assert split_revision(str(git.folder)) == (git.folder, None)
    assert split_revision(f"{git.folder}@v1") == (git.folder, "v1")
    with pytest.raises(SourceError, match="not a git repository"):
        Git(tmp_path).resolve("HEAD")
    with pytest.raises(SourceError, match="no revision 'v1'"):
        git.resolve("v1")


def test_settings_that_lead_to_a_remote_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    (tmp_path / "gitconfig").write_text(f'[url "{tmp_path}/"]\n\tinsteadOf = mirror:\n[core]\n\tautocrlf = true\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    assert git.call("ls-remote", "mirror:repo").returncode != 0
    remote = Git(git.folder, settings=Settings.REMOTE)
    assert b"refs/heads/main" in remote.out("ls-remote", "mirror:repo")
    assert remote.line("config", "core.autocrlf") == "false"


def run_alone(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "PYTHONPATH": str(REPO), **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=known, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_git_the_message_says_what_to_install(tmp_path: Path) -> None:
    done = run_alone(
        "from pathlib import Path\n"
        "from build.errors import EnvironmentUnfitError\n"
        "from build.git import Git\n"
        "try:\n    Git(Path('.')).call('version')\n"
        "except EnvironmentUnfitError as error:\n    print(error.what, error.remedy)\n",
        PATH=str(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("git cannot be run: No such file or directory install git\n", "")


def test_a_transfer_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    git.out("config", "alias.wait", f"!echo $$ > {tmp_path}/pid; exec sleep 600")
    with pytest.raises(subprocess.TimeoutExpired):
        git.transfer("wait", timeout=1.0)
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10  # the signal is sent; when the process is gone is the kernel's business
    while not _ended(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.01)


def _ended(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


_SHOWN = """\
import sys
from pathlib import Path
from build.git import Git
Git(Path(sys.argv[1])).transfer("report")
"""


def test_progress_of_a_transfer_is_shown_on_a_terminal(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    report = r"Receiving objects:  50%% (5/10), 1.20 MiB | 1.00 MiB/s\r"
    git.out("config", "alias.report", f"!for n in 1 2 3 4 5; do printf '{report}' >&2; sleep 0.2; done")
    main, terminal = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm", "COLUMNS": "120"}
    program = [sys.executable, "-c", _SHOWN, str(git.folder)]
    with subprocess.Popen(program, env=env, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        said = b""
        while block := _read(main):
            said += block
        os.close(main)
        assert process.stderr is not None
        assert process.wait(60) == 0, process.stderr.read()
    assert b"receiving objects" in said
    assert b"5/10" in said
    assert b"1.20 MiB" in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def test_a_transfer_that_fails_says_why(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "repo", {"a": b"one\n"})
    with pytest.raises(SourceError, match="git fetch failed") as caught:
        git.transfer("fetch", "--progress", str(tmp_path / "none"))
    assert "fatal: " in caught.value.cause
