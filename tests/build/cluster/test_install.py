"""`ci/install` on real hosts of this machine: sshd, ssh, Python's venv and pip are the real ones."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from build.cli import guarded
from build.paths import REPO
from ci.cluster.app import _app
from ci.cluster.inventory import Host as Target
from ci.cluster.release import Wanted
from ci.cluster.rollout import Action, Outcome, Plan, Rollout
from ci.cluster.ssh import Way
from tests.build.cluster.conftest import Site
from tests.build.cluster.hosts import Host
from tests.build.wheels.little_wheel import clean


def version(host: Host) -> str:
    """Return what a program that uses the link would run."""
    done = subprocess.run(
        [host.current / "bin" / "python", "-c", "import importlib.metadata as m; print(m.version('torch-multiworld'))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def outcomes(hosts: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: host["outcome"] for name, host in hosts.items()}


def test_from_nothing_to_a_new_version_and_back(site: Site) -> None:
    one, two = site.cluster.add("node01"), site.cluster.add("node02")
    status, hosts, said = site.install("node[01-02]", "--check")
    assert (status, outcomes(hosts)) == (26, {"node01": "would change", "node02": "would change"}), said
    assert not (one.home / "multiworld").exists()
    status, hosts, said = site.install("node[01-02]")
    assert (status, outcomes(hosts)) == (0, {"node01": "installed", "node02": "installed"}), said
    assert (version(one), version(two)) == ("1.0", "1.0")
    assert hosts["node01"]["doctor"] == {"ok": ["versions: multiworld 1.0"]}
    inode = one.current.lstat().st_ino
    status, hosts, said = site.install("node[01-02]")
    assert (status, outcomes(hosts)) == (0, {"node01": "unchanged", "node02": "unchanged"}), said
    assert one.current.lstat().st_ino == inode
    _one_host_cannot_use_it(site, one, two)
    status, hosts, said = site.run("--hosts", "node[01-02]", "--roll-back")
    assert status == 25
    assert outcomes(hosts) == {"node01": "rolled back", "node02": "failed"}
    assert "no release from before" in said
    assert (version(one), version(two)) == ("1.0", "1.0")
    _a_command_that_fails_after_the_switch_rolls_back(site, one)
    status, hosts, said = site.run("--hosts", "node[01-02]", "--status")
    assert status == 0
    assert {host["versions"]["torch-multiworld"] for host in hosts.values()} == {"1.0"}


def _one_host_cannot_use_it(site: Site, one: Host, two: Host) -> None:
    """The new version's doctor fails on one host: it keeps the old one, the other gets the new one."""
    (two.home / "ill").write_text("2.0")
    status, hosts, said = site.install("node[01-02]", version="2.0")
    assert (status, outcomes(hosts)) == (25, {"node01": "installed", "node02": "failed"}), said
    assert "node02: failed: multiworld doctor finds failures" in said
    assert "node01: failed" not in said
    assert (version(one), version(two)) == ("2.0", "1.0")
    assert len(two.releases) == 1


def _a_command_that_fails_after_the_switch_rolls_back(site: Site, one: Host) -> None:
    """The host has the environment of 2.0 from before, which is used again without an installation."""
    kept = one.home / "multiworld" / "previous" / "release.json"
    made = kept.stat().st_mtime_ns
    after = "readlink ~/multiworld/current >> ~/served; ! tail -n 1 ~/served | grep -F -- -2.0-"
    status, hosts, said = site.install("node01", "--after", after, version="2.0")
    assert (status, outcomes(hosts)) == (25, {"node01": "failed"})
    assert f"the host runs {hosts['node01']['before']} again" in said
    assert version(one) == "1.0"
    assert [line.split("-")[-2] for line in (one.home / "served").read_text().split()] == ["2.0", "1.0"]
    assert kept.stat().st_mtime_ns == made


def test_hosts_that_cannot_be_reached_are_named_and_the_rest_goes_on(site: Site, tmp_path: Path) -> None:
    good = site.cluster.add("node01")
    stranger = site.cluster.add("stranger", known=False)
    site.cluster.add("other", known=False)
    site.cluster.trust("other", stranger.folder / "host_key.pub")
    bare = site.cluster.add("bare")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # no sshd listens, and nothing else may
        site.cluster.reach("down", closed.getsockname()[1])
        inventory = tmp_path / "hosts.ini"
        lines = ["node01", "stranger", "other", "down", "nowhere.invalid", "bare ansible_python_interpreter=/no/python"]
        inventory.write_text("\n".join([*lines, "denied", ""]))
        site.cluster.add("denied").folder.joinpath("sshd_config").write_text(
            (good.folder / "sshd_config").read_text().replace("key.pub", "no-key")
        )
        denied = site.cluster.hosts["denied"]
        denied.folder.joinpath("host_key").write_bytes((good.folder / "host_key").read_bytes())
        site.cluster.trust("denied", good.folder / "host_key.pub")
        status, hosts, said = site.run("--status", "--inventory", inventory)
    assert status == 25
    assert hosts["node01"]["outcome"] == "looked", said
    assert {host["outcome"] for name, host in hosts.items() if name != "node01"} == {"unreachable"}
    assert "its host key is not in known_hosts" in hosts["stranger"]["cause"]
    assert "its host key is not the one in known_hosts" in hosts["other"]["cause"]
    assert "nothing listens there" in hosts["down"]["cause"]
    assert "no host of that name" in hosts["nowhere.invalid"]["cause"]
    assert hosts["bare"]["what"] == "Python cannot be run there"
    assert "ssh is not let in" in hosts["denied"]["cause"]
    assert "6 of 7 hosts are not as wanted" in said
    assert not (bare.home / "multiworld").exists()


def test_hosts_lost_in_the_middle(site: Site) -> None:
    """One loses its network, one its power, one freezes while pip reads the wheel: they are named, and as they were."""
    good, cut, dead, frozen = (site.cluster.add(name) for name in ("good", "cut", "dead", "frozen"))
    site.index.stall = threading.Event()
    requirements = site.requirements()
    process = site.start(
        "--requirements", requirements, "--hosts", "good,cut,dead,frozen", "--index", f"{site.index.url}/simple"
    )
    _wait_for_wheels(site, 4)
    frozen.freeze()
    cut.lose(processes=False)
    dead.lose(processes=True)
    site.index.stall.set()
    status, hosts, said = site.end(process)
    assert (status, outcomes(hosts)) == (25, {"good": "installed", "cut": "lost", "dead": "lost", "frozen": "lost"})
    assert "not responding" in hosts["frozen"]["cause"], said
    assert version(good) == "1.0"
    _wait_until_gone(cut)
    assert cut.releases == []
    assert not cut.current.is_symlink()
    assert len(dead.releases) == 1  # nobody could remove it; it is not in use
    assert not dead.current.is_symlink()
    status, hosts, said = site.run(
        "--requirements", requirements, "--hosts", "dead", "--index", f"{site.index.url}/simple"
    )
    assert (status, outcomes(hosts)) == (0, {"dead": "installed"}), said
    assert (version(dead), len(dead.releases)) == ("1.0", 1)


def _wait_for_wheels(site: Site, count: int) -> None:
    waited = threading.Event()
    for _ in range(1200):
        if sum(path.startswith("/files/") for _, path, _ in site.index.requests) >= count:
            return
        waited.wait(0.1)
    raise AssertionError(f"only {site.index.requests}")


def _wait_until_gone(host: Host) -> None:
    waited = threading.Event()
    for _ in range(600):
        if not host.left():
            return
        waited.wait(0.1)
    raise AssertionError(f"processes are left on {host.name}: {host.left()}")


def test_interrupted(site: Site) -> None:
    """Ctrl-C ends ssh, and with it what runs on the hosts."""
    host = site.cluster.add("node01")
    site.index.stall = threading.Event()
    arguments = ("--requirements", site.requirements(), "--hosts", "node01", "--index", f"{site.index.url}/simple")
    process = site.start(*arguments)
    _wait_for_wheels(site, 1)
    process.send_signal(2)
    status, _, said = site.end(process)
    assert status == 130, said
    _wait_until_gone(host)
    assert host.releases == []


def test_wheels_of_a_folder_are_sent_and_checked(site: Site, tmp_path: Path) -> None:
    host, full = site.cluster.add("node01"), site.cluster.add("full")
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, data in site.index.files.items():
        (folder / name).write_bytes(data)
    bare = tmp_path / "python"  # a host's Python without pip
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=60)
    inventory = tmp_path / "hosts"
    inventory.write_text(f"node01 ansible_python_interpreter={bare}/bin/python\nfull\n")
    with _full_disk(full):
        asked = ("torch-multiworld==2.0", "--wheels", folder)
        status, hosts, said = site.run(*asked, "--inventory", inventory)
        assert (status, outcomes(hosts)) == (25, {"node01": "installed", "full": "failed"}), said
        assert "full: failed: the disk is full" in said
        assert full.releases == []
    assert version(host) == "2.0"
    assert not any(path.startswith("/files/") for _, path, _ in site.index.requests)
    requirements = tmp_path / "other.txt"
    requirements.write_text(f"torch-multiworld==1.0 --hash=sha256:{'0' * 64}\n")
    arguments = ("--requirements", requirements, "--index", f"{site.index.url}/simple", "--hosts", "node01")
    status, hosts, said = site.run(*arguments)
    assert (status, outcomes(hosts)) == (25, {"node01": "failed"})
    assert "DO NOT MATCH THE HASHES" in said
    assert version(host) == "2.0"


class _full_disk:  # noqa: N801 - a context manager
    """A file system of 64 kB on a host."""

    def __init__(self, host: Host) -> None:
        self.place = host.home

    def __enter__(self) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "full", self.place], capture_output=True, timeout=30, check=False
        )
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.place], check=True, timeout=30)


def test_a_host_that_hangs_is_given_up_and_one_that_chatters_is_understood(site: Site) -> None:
    """The login of the first never ends; the second's says more than it should, some of it JSON."""
    site.cluster.add("stuck")
    site.cluster.add("chatty")
    hosts = [
        Target("stuck", python="sleep 600;"),
        Target("chatty", python="sh -c 'echo 5; echo {}; exec python3 \"$@\"' -"),
    ]
    plan = Plan(Action.LOOK, Wanted(), Way(site.cluster.config, timeout=5), "~/multiworld")
    stuck, chatty = asyncio.run(Rollout(plan, lambda *_: None).run(hosts))
    assert (stuck.outcome, stuck.what) == (Outcome.LOST, "it hangs")
    assert chatty.outcome is Outcome.LOOKED, chatty


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["torch-multiworld==1.0"], "name the hosts"),
        (["--hosts", "a"], "name either what to install or --requirements"),
        (["torch multiworld", "--hosts", "a"], "is not a requirement"),
        (["--requirements", "bare.txt", "--hosts", "a"], "has no hashes for torch-multiworld"),
        (["--check", "--status", "--hosts", "a"], "exclude each other"),
        (["x", "--hosts", "a", "--wheels", "."], "has no wheels"),
        (["x", "--hosts", "a", "--limit", "b"], "--limit goes with --inventory"),
        (["x", "--inventory", "empty"], "there are no hosts"),
    ],
)
def test_mistakes_are_said_before_a_host_is_asked(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bare.txt").write_text("torch-multiworld==1.0\n")
    (tmp_path / "empty").write_text("# nobody\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # ssh would not be found
    assert guarded(_app, arguments) == 2
    assert text in capsys.readouterr().err


#: An environment whose Python only says how it was called.
_LAUNCH = """
import sys
from pathlib import Path
from build import bootstrap
def make(folder, requirements):
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\\necho "$PYTHONPATH" "$@"\\nexit 26\\n')
    python.chmod(0o755)
bootstrap._make = make
program, *sys.argv = sys.argv[1:]
sys.argv.insert(0, program)
exec(compile(Path(program).read_bytes(), program, "exec"), {"__file__": program})
"""


def test_the_program_runs_in_the_locked_environment_and_keeps_the_exit_status(tmp_path: Path) -> None:
    program = REPO / "ci" / "install"
    assert program.stat().st_mode & 0o111
    command = [sys.executable, "-c", _LAUNCH, str(program), "--hosts", "node[1-2]", "--check"]
    environment = clean() | {"PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(tmp_path)}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (26, f"{REPO} -m ci.cluster --hosts node[1-2] --check\n"), done.stderr
