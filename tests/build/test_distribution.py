"""The distribution's name, and what an environment says that has pymultiworld's files over or under ours."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import hatch_build
from build.paths import REPO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: As pymultiworld 0.2.3 is laid out: the same distribution name, the same package, some of the same files.
THEIRS = {
    "multiworld/__init__.py": "from multiworld.version import VERSION as __version__\nTHEIRS = True\n",
    "multiworld/version.py": 'VERSION = "0.2.3"\n',
    "multiworld/manager.py": "THEIRS = True\n",
    "multiworld/threadsafe_async.py": "",
    "multiworld/init.txt": "init\n",
    "multiworld/patch/pytorch-v2.4.0.patch": "",
}
TODO = "pip uninstall -y multiworld torch-multiworld, then pip install '.' in a checkout"


def _wheel(path: Path, name: str, version: str, files: dict[str, str]) -> Path:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    target = path / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"]))
    return target


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _wheel(tmp_path_factory.mktemp("theirs"), "multiworld", "0.2.3", THEIRS)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is here, under the name and version that pyproject.toml gives it."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    sources = [path for path in (REPO / "multiworld").rglob("*.py") if "__pycache__" not in path.parts]
    files = {path.relative_to(REPO).as_posix(): path.read_text() for path in sources}
    return _wheel(tmp_path_factory.mktemp("ours"), project["name"], project["version"], files)


def install(target: Path, *wheels: Path) -> None:
    """Install wheels one after the other into a folder, each over what is there, as into one site-packages."""
    import uv

    for wheel in wheels:
        command = [
            uv.find_uv_bin(),
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--offline",
            "--no-cache",
            "--target",
            str(target),
        ]
        subprocess.run([*command, str(wheel)], check=True, timeout=60, capture_output=True)


def python(target: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=env, cwd=target, capture_output=True, text=True, timeout=60, check=False)


def test_the_name_is_told_in_one_way() -> None:
    from multiworld.version import DISTRIBUTION, VERSION

    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, VERSION)
    for path in [*(REPO / "multiworld").rglob("*.py"), *(REPO / "docs").rglob("*.md"), REPO / "README.md"]:
        text = path.read_text(encoding="utf-8")
        assert "'multiworld[" not in text, path
        assert "`multiworld[" not in text, path


def test_hatchling_can_load_the_hook() -> None:
    """It executes the file as a module without a name in `sys.modules`, in which e.g. no dataclass can be made."""
    spec = importlib.util.spec_from_file_location("hook", REPO / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert module.NativeBuildHook.PLUGIN_NAME == "custom"


def test_what_the_wheel_says_of_itself(tmp_path: Path) -> None:
    """Its tag is what its engine needs, no older than torch's own; its SBOM names commit and engine."""
    data, machine = b"libc.so.6\0GLIBC_2.4\0", platform.machine()
    assert hatch_build.platform_tag(data) == f"manylinux_2_17_{machine}"
    assert hatch_build.platform_tag(data + b"GLIBC_2.32\0GLIBCXX_3.4.29\0") == f"manylinux_2_34_{machine}"
    assert hatch_build.platform_tag(data + b"GLIBC_2.36\0GLIBCXX_3.4.30\0") == f"manylinux_2_36_{machine}"
    assert hatch_build.platform_tag(b"libc.musl-x86_64.so.1").startswith("linux_")
    for root in (REPO, tmp_path):  # a clone, and what was unpacked from a tarball
        bill = json.loads(hatch_build.bill("it", "1.0", root, data))
        assert ("pedigree" in bill["metadata"]["component"]) == (root / ".git").exists()
        assert bill["components"][0]["hashes"][0]["content"] == hashlib.sha256(data).hexdigest()


def test_ours_alone_says_nothing(tmp_path: Path, ours: Path) -> None:
    install(tmp_path, ours)
    done = python(
        tmp_path, "import sys, multiworld; print(multiworld.__version__, 'torch' in sys.modules)", "-W", "error"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.split()[1] == "False"
    assert any(tmp_path.glob("torch_multiworld-*.dist-info"))


def test_ours_over_theirs_warns(tmp_path: Path, ours: Path, theirs: Path) -> None:
    install(tmp_path, theirs, ours)
    done = python(tmp_path, "import multiworld; print(multiworld.PeerLost.__name__)")
    assert (done.returncode, done.stdout.strip()) == (0, "PeerLost"), done.stderr
    assert "RuntimeWarning: pymultiworld and torch-multiworld are both installed" in done.stderr
    assert "multiworld-0.2.3.dist-info" in done.stderr
    assert "threadsafe_async.py" in done.stderr
    assert TODO in done.stderr
    assert "-c:" not in done.stderr.partition("RuntimeWarning")[2]


@pytest.mark.parametrize("left", ["multiworld-0.2.3.dist-info", "multiworld/patch"])
def test_either_trace_is_enough(left: str, tmp_path: Path, ours: Path) -> None:
    install(tmp_path, ours)
    (tmp_path / left).mkdir()
    assert Path(left).name in python(tmp_path, "import multiworld").stderr


def test_a_warning_can_be_made_an_error(tmp_path: Path, ours: Path, theirs: Path) -> None:
    install(tmp_path, theirs, ours)
    done = python(tmp_path, "import multiworld", "-W", "error")
    assert done.returncode == 1
    assert TODO in done.stderr


def test_a_mixture_is_refused(tmp_path: Path, ours: Path) -> None:
    """Some files are theirs, ours starts: what it would do nobody knows."""
    install(tmp_path, ours)
    (tmp_path / "multiworld" / "version.py").write_text(THEIRS["multiworld/version.py"])
    done = python(tmp_path, "import multiworld")
    assert done.returncode == 1
    assert "ImportError: the package in" in done.stderr
    assert TODO in done.stderr


def test_the_command_of_ours_in_theirs_says_so(tmp_path: Path, ours: Path, theirs: Path) -> None:
    """Their start is no code of ours; our command is."""
    install(tmp_path, ours, theirs)
    assert python(tmp_path, "import multiworld; multiworld.THEIRS").returncode == 0
    done = python(tmp_path, "from multiworld.cli import main; main()")
    assert done.returncode == 2
    assert TODO in done.stderr
    assert "Traceback" not in done.stderr


def test_the_look_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    from multiworld.compat import conflict

    (tmp_path / "multiworld").mkdir()
    for number in range(600):
        (tmp_path / f"package_{number}-1.0.dist-info").mkdir()
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        assert conflict.traces(str(tmp_path / "multiworld")) == []
        taken.append(time.perf_counter() - began)
    assert min(taken) < 0.001
