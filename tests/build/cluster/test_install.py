"""`ci/install` on hosts of this machine: Ansible, sshd, ssh, uv and the wheels are the real ones."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uv

from build.cli import guarded, only
from build.paths import REPO
from ci.cluster.__main__ import install
from tests.build.cluster.conftest import Site
from tests.build.cluster.hosts import Cluster, cluster, offer, offer_named
from tests.build.cluster.test_module import foreign
from tests.build.small_disk import small_disk
from tests.build.wheels.little_wheel import call, clean


def outcomes(hosts: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: host["outcome"] for name, host in hosts.items()}


def version(current: Path) -> str:
    """Return what a program that uses the link would run."""
    program = "import importlib.metadata as m; print(m.version('torch-multiworld'))"
    return call(current / "bin" / "python", "-c", program).strip()


@pytest.mark.slow
def test_from_nothing_to_a_new_version_and_back(site: Site) -> None:
    """An upgrade fetches what changed; no later index outbids the first; the same command twice changes nothing."""
    offer_named(site.index, "big", "1.0", site.top, {"big/__init__.py": "", "big/data": os.urandom(1 << 16).hex()})
    inventory, current = ("--inventory", site.local("one")), site.prefix("one") / "current"
    status, hosts, said = site.run("torch-multiworld==1.0", "big", site.source, *inventory, "--check")
    assert (status, outcomes(hosts)) == (26, {"one": "would change"}), said
    assert not site.prefix("one").exists()
    status, hosts, said = site.run("torch-multiworld==1.0", "big", site.source, *inventory)
    assert (status, outcomes(hosts), version(current)) == (0, {"one": "installed"}, "1.0"), said
    assert hosts["one"]["facts"]["doctor"] == [{"name": "versions", "verdict": "ok", "found": "multiworld 1.0"}]
    first, sent = hosts["one"]["facts"]["release"], site.index.sent
    log = site.top / "log"
    with other_index(site, "9.0") as other:
        drains = f"--drain=echo drain {{{{ inventory_hostname }}}} >> {log}", f"--undrain=echo undrain >> {log}"
        wanted = ("torch-multiworld", "big", site.source, f"--index={other}/simple", *inventory, *drains)
        status, hosts, said = site.run(*wanted)
        assert (status, outcomes(hosts), version(current)) == (0, {"one": "installed"}, "2.0"), said
        assert site.index.sent - sent < len(site.index.files["big-1.0-py3-none-any.whl"]), "more than what changed"
        ((one, two),) = [[path.stat().st_ino for path in site.prefix("one").glob("releases/*/lib/*/*/big/data")]]
        assert one == two
        inode = current.lstat().st_ino
        status, hosts, said = site.run(*wanted)
        assert (status, outcomes(hosts), current.lstat().st_ino) == (0, {"one": "unchanged"}, inode), said
    assert log.read_text().split() == ["drain", "one", "undrain"]
    status, hosts, said = site.run("--roll-back", first[:-4], *inventory)
    assert (status, outcomes(hosts), version(current)) == (0, {"one": "rolled back"}, "1.0"), said
    assert hosts["one"]["facts"]["kept"][0] == first


@contextlib.contextmanager
def other_index(site: Site, version: str) -> Iterator[str]:
    from tests.build.official.server import Index, serving

    with serving(Index()) as index:
        offer(index, version, site.top)
        yield index.url


def _python_of_nobody() -> str:
    """Return a Python that the user nobody can run; skip where there is none, or where root does not run the tests."""
    for python in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        command = ["su", "-s", "/bin/sh", "nobody", "-c", f"{python} -c 'import venv'"]
        if os.geteuid() == 0 and not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode:
            return python
    pytest.skip("no Python of this machine can be run as nobody by these tests: --become was not tested")


#: The beginning of a program for aarch64, or on such a machine for x86-64; its mode is what the role gives it.
_ARM = struct.pack("<4s12xHHIQ32x", b"\x7fELF", 2, 62 if os.uname().machine == "aarch64" else 183, 1, 0)


def test_another_user_and_one_host_after_the_other(site: Site) -> None:
    """Ansible's own: privilege, `serial`, and an end when enough have failed; what was not begun is told, too."""
    python = _python_of_nobody()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        open_to_all = Site(Path(folder), site.index)
        open_to_all.top.chmod(0o777)
        foreign(open_to_all.prefix("three"))
        inventory = open_to_all.local("one", "two", "three", "four", "five", ansible_python_interpreter=python)
        foreign_uv = open_to_all.top / "uv for arm"
        foreign_uv.write_bytes(_ARM)
        inventory.write_text(
            re.sub(r"^four .*", rf"\g<0> multiworld_torch_uv='{foreign_uv}'", inventory.read_text(), flags=re.M)
        )
        hooks = (f"--drain=echo {{{{ inventory_hostname }}}} >> {folder}/log", "--serial=2", "--max-fail=60")
        become = ("--become", "--become-method=su", "--become-user=nobody", "-e", "ansible_become_flags='-s /bin/sh'")
        wanted = ("torch-multiworld==1.0", site.source, "--inventory", inventory, *hooks)
        status, hosts, said = open_to_all.run(*wanted, "--", *become, without="HOME")
        ends = ["installed", "installed", "failed", "failed", "not finished"]
        assert (status, [host["outcome"] for host in hosts.values()]) == (25, ends), said
        assert "uv is for another architecture" in hosts["four"]["what"], said
        assert {path.owner() for path in open_to_all.prefix("one").glob("releases/*")} == {"nobody"}
        assert sorted(Path(folder, "log").read_text().split()) == ["one", "two"]
        assert not open_to_all.prefix("five").exists()


@pytest.mark.nightly("the other rows install through the role, too; test_module has locks with paths")
def test_wheels_of_a_folder_are_sent_and_the_role_works_by_itself(site: Site) -> None:
    folder = site.top / "wheels"
    folder.mkdir()
    for name, data in site.index.files.items():
        (folder / name).write_bytes(data)
    inventory = site.local("one", ansible_python_interpreter=sys.executable)
    status, hosts, said = site.run(
        "torch-multiworld==1.0", "--wheels", folder, "--inventory", inventory, without="HOME"
    )
    assert (status, outcomes(hosts)) == (0, {"one": "installed"}), said
    wanted, lock, play = (site.top / name for name in ("wanted.in", "pylock.toml", "play.yml"))
    wanted.write_text("torch-multiworld==2.0")
    options = ("--python", sys.executable, "--no-index", "--find-links", folder)
    call(uv.find_uv_bin(), "pip", "compile", wanted, "-o", lock, *options)
    lock.write_text(lock.read_text().replace('url = "file://', 'path = "'))
    installs = {"multiworld_torch_lock": str(lock), "multiworld_torch_uv": uv.find_uv_bin()}
    env = clean() | {
        "ANSIBLE_ROLES_PATH": str(REPO / "ci" / "ansible" / "roles"),
        "ANSIBLE_HOME": str(site.top / "home"),
    }
    command: list[str | Path] = [sys.executable, "-m", "ansible", "playbook", "-i", inventory, play]
    for variables in ({"multiworld_torch_status": True}, installs):
        role = {"role": "multiworld_torch", **variables}
        play.write_text(f"- hosts: all\n  gather_facts: false\n  roles: [{role}]\n")
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert version(site.prefix("one") / "current") == "2.0"
    assert not any(path.endswith(".whl") for _, path, _ in site.index.requests)


#: What loses the host's network once it has been sent what the release needs.
_DIES = """
process=$$
[ ! -e "$HOME/multiworld/cache/uv-program" ] || while [ $process -gt 1 ]; do
    read -r _ name _ parent _ </proc/$process/stat
    case $name in *sshd*) kill -9 $process ;; esac
    process=$parent
done
"""
#: Interpreters of hosts that are not what they seem, with words of what is said of each.
LIARS = {
    "flood": ("head -c 20000000 /dev/zero | tr '\\0' x", "does not answer as a module does"),
    "endless": ("exec yes", "does not answer as a module does"),
    "terminal": (r"printf '\033]0;owned\007\033[2J\n'; exit 1", "\N{REPLACEMENT CHARACTER}]0;owned"),
    "liar": (
        """echo '{"host": {"kind": "Python ../.., {{ 1 }}, glibc 9.9",
        "release": "", "kept": [], "versions": {}}}'""",
        "torch is not for this host",
    ),
    "errors": ("exec yes >&2", "does not answer as a module does"),
    "infinite": ("""echo '{"host": {"outcome": Infinity}}'""", "its answer is not that of the module"),
    "nonsense": ("""echo '{"host": 5}'""", "its answer is not that of the module"),
    "silent": ("exec sleep 600", "it hangs"),
    "bare": ("exec /no/python", "Python"),
    "dying": (f'{_DIES}exec {sys.executable} "$@"', "dying"),
}
#: A driver for CUDA 11, as far as it is asked.
_DRIVER = "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }\n"


def _old_pythons() -> dict[str, str]:
    """Return Pythons of this machine that Ansible no longer supports on hosts."""
    found = {}
    for name in ("python2.7", "python3.6"):
        places = [
            *os.environ["PATH"].split(os.pathsep),
            *map(str, Path("~/.pyenv/versions").expanduser().glob("*/bin")),
        ]
        for path in (Path(place, name) for place in places):
            if path.exists() and not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
                found[name] = str(path)
    return found


@pytest.mark.slow
def test_hosts_that_misbehave_are_told_and_the_others_go_on(site: Site, fleet: Cluster) -> None:
    """Each in its way, in one run: the table has all of them, the good ones are installed."""
    names = [f"node0{number}" for number in range(1, 4)]
    good = [fleet.add(name) for name in names]
    lines = [*names, "nowhere.invalid", "'$(touch pwned)'"]
    said_of = {"nowhere.invalid": "resolve", "$(touch pwned)": "invalid characters"}
    for name, (program, words) in LIARS.items():
        host = fleet.add(name)
        python = host.folder / "python"
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
        patience = " multiworld_torch_timeout=5" if name == "silent" else ""
        lines.append(f"{name} ansible_python_interpreter={python}{patience}")
        said_of[name] = words
    for name, path in _old_pythons().items():
        fleet.add(name)
        lines.append(f"{name} ansible_python_interpreter={path}")
        said_of[name] = "its Python is too old"
    fleet.add("stranger", known=False)
    fleet.add("other", known=False)
    fleet.trust("other", good[0].folder / "host_key.pub")
    denied = fleet.add("denied").folder / "sshd_config"
    denied.write_text(denied.read_text().replace("key.pub", "no-key"))
    said_of |= {"stranger": "not in known_hosts", "other": "not the one in known_hosts", "denied": "ssh is not let in"}
    full, readonly = fleet.add("full"), fleet.add("readonly")
    said_of |= {"full": "the disk is full", "readonly": "Read-only file system", "down": "Connection refused"}
    theirs = fleet.add("theirs").home / "multiworld"
    there = foreign(theirs)
    driver = fleet.add("driver").folder
    subprocess.run(
        ["cc", "-x", "c", "-shared", "-o", driver / "libcuda.so.1", "-"], input=_DRIVER, text=True, check=True
    )
    config = driver / "sshd_config"
    config.write_text(f"{config.read_text().rstrip()} LD_LIBRARY_PATH={driver}\n")
    offer_named(site.index, "nvidia-cuda-runtime-cu12", "12.4.127", site.top)
    said_of |= {"theirs": "has files of somebody else", "driver": "it is for CUDA 11, and the release needs CUDA 12"}
    assert len(fleet.hosts) >= 20
    with socket.socket() as closed, small_disk(full.home, "size=64k"), small_disk(readonly.home, "ro"):
        closed.bind(("127.0.0.1", 0))  # no sshd listens, and nothing else may
        fleet.reach("down", closed.getsockname()[1])
        inventory = site.top / "hosts.ini"
        inventory.write_text(
            "\n".join([*lines, "stranger", "other", "denied", "full", "readonly", "down", "theirs", "driver", ""])
        )
        wanted = ("torch-multiworld==1.0", "nvidia-cuda-runtime-cu12", site.source, "--inventory", inventory)
        status, hosts, said = site.run(*wanted, *fleet.ssh)
    assert status == 25, said
    assert hosts.keys() == {*names, *said_of}
    assert {name for name, host in hosts.items() if host["outcome"] == "installed"} == set(names), said
    wrong = {name: hosts[name]["what"] for name, words in said_of.items() if words not in hosts[name]["what"]}
    assert not wrong
    assert hosts["dying"]["outcome"] == "unreachable"
    assert not fleet.hosts["dying"].current.is_symlink()
    assert {version(host.current) for host in good} == {"1.0"}
    assert {name: (theirs / name).read_text() for name in there} == there
    assert "\x1b" not in said
    assert not list(site.top.rglob("pwned"))
    assert f"--limit '{','.join(name for name in hosts if name not in names)}'" in said


def test_a_run_uses_no_connection_of_another(site: Site, fleet: Cluster, tmp_path: Path) -> None:
    """A host of that name in another configuration of ssh is another host, a second later, too."""
    fleet.add("node")
    foreign(fleet.hosts["node"].home / "multiworld")
    with cluster(tmp_path / "other") as other:
        other.add("node")
        seen = [site.run("--status", "--hosts=node", *made.ssh)[1] for made in (other, fleet)]
    assert [outcomes(hosts) for hosts in seen] == [{"node": "looked"}, {"node": "failed"}]


def _wait(done: Callable[[], bool], what: str) -> None:
    waited = threading.Event()
    for _ in range(1200):
        if done():
            return
        waited.wait(0.05)
    raise AssertionError(what)


@pytest.mark.nightly("test_module removes a release that was not finished; hosts that misbehave do not end a run")
def test_hosts_lost_in_the_middle_and_ctrl_c(site: Site, fleet: Cluster) -> None:
    """While wheels are fetched one host loses its power: it is told. Then Ctrl-C. Nothing is half there afterwards."""
    good, dead = fleet.add("good"), fleet.add("dead")
    site.index.stall = threading.Event()
    wanted = ("torch-multiworld==1.0", site.source, "--hosts=good,dead", *fleet.ssh)
    process = site.start(*wanted)
    _wait(lambda: sum(path.endswith(".whl") for _, path, _ in site.index.requests) >= 2, "no wheel was asked for")
    dead.lose(processes=True)
    site.index.stall.set()
    status, hosts, said = site.end(process)
    assert (status, outcomes(hosts)) == (25, {"good": "installed", "dead": "unreachable"}), said
    assert version(good.current) == "1.0"
    assert not dead.current.is_symlink()
    site.index.stall = threading.Event()
    asked = len(site.index.requests)
    process = site.start(*wanted)
    _wait(lambda: any(path.endswith(".whl") for _, path, _ in site.index.requests[asked:]), "no wheel was asked for")
    os.killpg(process.pid, 2)
    status, hosts, said = site.end(process)
    assert (status, outcomes(hosts)["dead"]) == (130, "not finished"), said
    assert hosts["good"]["facts"]["release"].startswith("torch-multiworld-1.0")
    site.index.stall.set()
    _wait(lambda: not any(b"uv-program" in _command(pid) for pid in dead.left()), "uv does not end")
    status, hosts, said = site.run(*wanted)
    assert (status, outcomes(hosts)) == (0, {"good": "unchanged", "dead": "installed"}), said
    assert version(dead.current) == "1.0"


def test_an_ansible_that_is_killed_is_told_with_all_hosts(site: Site) -> None:
    site.index.stall = threading.Event()
    inventory = site.local("one", "two")
    process = site.start("torch-multiworld==1.0", site.source, "--inventory", inventory)
    _wait(lambda: sum(path.endswith(".whl") for _, path, _ in site.index.requests) >= 2, "no wheel was asked for")
    (ansible,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ansible), signal.SIGKILL)
    status, hosts, said = site.end(process)
    assert (status, outcomes(hosts)) == (25, dict.fromkeys(("one", "two"), "not finished")), said


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["torch-multiworld==1.0"], "name the hosts"),
        (["x", "--hosts", "-oProxyCommand=id"], "is not a list of hosts"),
        (["x", "--hosts", "a", "--limit", "b"], "no hosts"),
        (["x", "--inventory", "nothing"], "nothing"),
        (["--hosts", "a"], "name one of these"),
        (["x", "--status", "--hosts", "a"], "name one of these"),
        (["torch multiworld", "--hosts", "a"], "cannot be installed"),
        (["x", "--hosts", "a", "--wheels", "."], "has no wheels"),
        (["x", "--hosts", "a", "--serial", "0"], "is no number of hosts"),
        (["x", "--hosts", "a", "--serial", "101%"], "is no number of hosts"),
        (["x", "--hosts", "a", "--prefix", "/a", "--prefix", "/b"], "--prefix is given twice"),
        (["x", "--hosts", "a", "--wheels", "odd"], "something else that is called so"),
    ],
)
def test_mistakes_are_said_before_a_host_is_asked(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "x-1-py3-none-any.whl")
    assert guarded(only(install), arguments) == 2
    assert text in capsys.readouterr().err


def test_no_home_is_told() -> None:
    """By whom no entry of the users' list has a home either."""
    program = REPO / "ci" / "install"
    command: list[str | Path] = ["setpriv", "--reuid=54321", "--clear-groups", _python_of_nobody(), program, "--help"]
    homeless = {name: value for name, value in clean().items() if name not in ("HOME", "MULTIWORLD_CACHE")}
    done = subprocess.run(command, env=homeless, cwd="/", capture_output=True, text=True, check=False, timeout=60)
    if "Permission denied" in done.stderr or shutil.which("setpriv") is None:
        pytest.skip("other users cannot read this checkout")
    assert (done.returncode, "set HOME or MULTIWORLD_CACHE" in done.stderr) == (5, True), done.stderr


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
