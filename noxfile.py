# /// script
# requires-python = ">=3.10"
# dependencies = ["nox>=2025.5.1,<2027", "uv>=0.9,<1"]
# ///
"""The sessions: arguments in, one call into `build`, result out.

Run as `nox -s NAME` or, without nox, as `python3 noxfile.py -s NAME`; `-l` lists them. What follows `--` goes to the
session. Sessions install what they need into environments of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from build.bootstrap import run_in_environment, status_of_tooling, uv_settings  # noqa: E402 - the path comes first

try:
    import nox
except ModuleNotFoundError:
    sys.exit(run_in_environment(HERE, "nox", [__file__, *sys.argv[1:]]))

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The tests start some thousand Pythons: without the files that this forbids, each compiles what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
# No default session: nox then lists the sessions, and does not download torch.
nox.options.sessions = []
nox.options.error_on_missing_interpreters = False

RELEASES = list(tomllib.loads((HERE / "build" / "releases.toml").read_text(encoding="utf-8"))["release"])
# The release on which `tests` runs the package: the newest with wheels for every supported Python, and small where an
# index has a CPU build of it.
TORCH = "2.13.0"
_FAULTS = "tests/multiworld/faults"


def _locked(*groups: str) -> list[str]:
    """Return the arguments that install dependency groups as they are locked, from the index of pip's configuration."""
    os.environ.update(uv_settings())
    return ["--require-hashes", *(item for name in groups for item in ("-r", str(HERE / "locks" / f"{name}.txt")))]


def _program(session: nox.Session, module: str, *arguments: str) -> None:
    """Run a module in the environment of the tooling."""
    sigstore = any(word.startswith(("--sigstore", "--identity")) for word in arguments)
    more = ["fleet"] if module == "ci.cluster" else ["sign"] if sigstore else []
    session.install(*_locked("tooling", "test", *more))
    # Ctrl-C: time to end compilers and to remove half-written files; nox's default is 0.3 s.
    # SIGTERM to nox alone ends it at once, and the build must end with it: see build/signals.py.
    env = {"PYTHONPATH": str(HERE), "MULTIWORLD_END_WITH_PARENT": str(os.getpid())}
    with status_of_tooling():
        session.run("python", "-m", module, *arguments, env=env, interrupt_timeout=30.0, terminate_timeout=10.0)


def _install_torch(session: nox.Session, torch: str = TORCH, *, cuda: bool = False) -> None:
    """Install a release of torch: a CPU build where pip's configuration has one, or with `cuda` the index's own."""
    numpy = "numpy<2" if tuple(int(part) for part in torch.split(".")[:2]) < (2, 3) else "numpy"
    if cuda:  # CPU builds are in folders of their own
        session.install(f"torch=={torch}", numpy)
    else:  # pip, not uv: it uses the find-links folders of this machine's configuration
        session.install("pip")
        # What is imported is compiled then, and torch is the most of what would be compiled for nothing.
        session.run_install("python", "-m", "pip", "install", "-q", "--no-compile", f"torch=={torch}", numpy)
        session.run_install("python", "-c", "import torch.distributed")


def _pytest(session: nox.Session, name: str, *folders: str, extras: str = "cli,metrics", cuda: bool = False) -> None:
    """Run a suite, or what the command line names instead, on the torch that it names."""
    arguments = list(session.posargs)
    torch = TORCH
    if "--torch" in arguments:
        place = arguments.index("--torch")
        torch = arguments[place + 1]
        del arguments[place : place + 2]
    session.install(*_locked("tooling", "test", "types", "fleet"))
    _install_torch(session, torch, cuda=cuda)
    session.install("-e", f".[{extras}]")
    if arguments in ([], ["--whole"]):
        arguments += folders
    else:
        name = "named"
    junit = f"--junitxml={HERE / 'dist' / f'tests-{name}-{torch}.xml'}"
    env = {"PYTHONPATH": str(HERE), "MULTIWORLD_NOX": sys.executable}  # tests of this file run it with this nox
    session.run("python", "-m", "pytest", "-q", "-n", "auto", junit, *arguments, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, strict mypy, layers of imports, scripts, workflows, dependencies and their locks, and the patch series."""
    session.install(*_locked("lint", "tooling", "test"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-logo", env={"PYTHONPATH": str(HERE)})
    session.run("shellcheck", ".ci/run", "ci/ansible/ssh", "ci/enter", *map(str, sorted(HERE.glob("*/**/*.sbatch"))))
    session.run("actionlint")  # with shellcheck on the scripts of steps
    session.run("zizmor", "--quiet", "--offline", ".github")
    session.run("ansible-lint", "--offline", "--profile", "production", str(HERE / "ci" / "ansible"))
    session.run("kubernetes-validate", "--strict", *map(str, sorted(HERE.glob("*/kubernetes/*.yaml"))))
    session.run("deptry", ".")
    # Without the groups: the package may import only the dependencies that it declares to its users.
    session.run("deptry", "multiworld", "--ignore", "DEP002", "--non-dev-dependency-groups", "none")
    session.run("python", "-m", "build", "lock", "--check", env={"PYTHONPATH": str(HERE)})
    session.run("python", "-m", "build", "lint-patches", env={"PYTHONPATH": str(HERE)})


@nox.session
def docs(session: nox.Session) -> None:
    """The manual as a site in `dist/site`, which opens without a server: links checked, reference, search."""
    session.install(*_locked("docs"))
    site = HERE / "dist" / "site"
    strict, folders = ("-E", "-q", "-W", "--keep-going"), ("-d", session.create_tmp(), "-c", "docs", ".", str(site))
    session.run("sphinx-build", *strict, *folders, env={"PYTHONPATH": str(HERE)})
    session.log(f"open {site / 'index.html'}")


@nox.session
def tests(session: nox.Session) -> None:
    """Tests of the tooling and of multiworld on a torch from the index: `-- [--whole] [--torch 2.6.0]`, then paths.

    With `--whole` the rows of the nightly run, too.
    """
    # At once: most of the package's tests wait while the tooling's compile.
    ours = "core", "engine", "process_groups", "supervision"
    _pytest(session, "all", "tests/build", *(f"tests/multiworld/{name}" for name in ours), _FAULTS)


@nox.session
def ray(session: nox.Session) -> None:
    """The row of supervision for which Ray has to be installed: an actor is killed, on two nodes of this machine."""
    session.install("--group", "ray")
    _pytest(session, "ray", "tests/multiworld/supervision/test_engines.py::test_ray_starts_a_killed_actor_again")


@nox.session
def faults(session: nox.Session) -> None:
    """Only the fault-tolerance suite: real processes, real faults, some three minutes: `-- [--torch 2.6.0]`.

    With `--simulated` its rows on simulated NCCL, on the CUDA build of that torch.
    """
    if "--simulated" in session.posargs:
        session.posargs.remove("--simulated")
        session.posargs.extend(["-k", "simulated", _FAULTS])
        _pytest(session, "simulated", extras="cli,metrics,nccl", cuda=True)
    else:
        _pytest(session, "faults", _FAULTS)


# Without an environment of its own: the Python that has a CUDA torch runs the tests, and nothing is installed.
@nox.session(venv_backend=None if "--bundle" in sys.argv else "none")
def gpu(session: nox.Session) -> None:
    """Rows for a real NVIDIA device, without network: `-- [pytest's arguments]`; `-- --bundle` packs them."""
    if "--bundle" in session.posargs:
        _program(session, "build", "gpu-bundle", *(argument for argument in session.posargs if argument != "--bundle"))
        return
    command = [sys.executable, "-m", "build.gpu.run", *session.posargs]
    with status_of_tooling():
        session.run(*command, env={"PYTHONPATH": str(HERE)}, external=True)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz frames and handshakes for a long time: `-- [--frames 10000000] [--seconds 3600] [--seed N]`."""
    _with_package(session, "tests.multiworld.fuzz")


@nox.session
def native(session: nox.Session) -> None:
    """The compiled core under sanitizers: compared with its model in Python, and fuzzed: `-- [--seconds 60]`."""
    _with_package(session, "tests.multiworld.engine")


def _with_package(session: nox.Session, module: str) -> None:
    """Run a module of the tests in an environment with torch and the package."""
    session.install(*_locked("test"))
    _install_torch(session)
    session.install("-e", ".")
    session.run("python", "-m", module, *session.posargs, env={"PYTHONPATH": str(HERE)})


@nox.session
def wheels(session: nox.Session) -> None:
    """The package's own wheel, by auditwheel and on every CPython from 3.10 on, without torch and in real worlds."""
    _program(session, "build", "wheels", *session.posargs)
    _install_torch(session)
    folder = HERE / "dist" / "torch-multiworld"
    session.install("--no-deps", "--no-index", "--find-links", str(folder), "--reinstall", "torch-multiworld")
    # Isolated: not the package in this checkout.
    session.run("python", "-I", "-m", "multiworld", "doctor")


@nox.session(name="switchml-patch")
def switchml_patch(session: nox.Session) -> None:
    """SwitchML's series as one patch for PyTorch 1.7.1: `-- [DPDK=1 MLX5=1 SWITCHML_HOME=PATH …]`."""
    _program(session, "build", "switchml-patch", "--folder", session.invoked_from, *session.posargs)


#: Sessions that only pass their arguments on, each with what `-l` says of it.
_PASSED_ON = {
    "lock": "Resolve the environments of tools and builds into locks/: `-- [--check] [--upgrade] [--conda PATH]`.",
    "explain": "Tell if an overlay can serve a patch, and how: `-- --release 2.6.0 --patches FILE`.",
    "clean": "Show what the caches hold, and free it: `-- [--older-than 30d] [--keep 5GB] [--dry-run]`.",
    "releases": "Table of the known releases: needs, built wheels, test results.",
    "wheelhouse": "Publish what is built as a folder for pip and uv: `-- [FOLDER …] [--out DIR] [--key PEM]`.",
    "verify": "Check a wheel and build it again, or a wheelhouse: `-- PATH [--key F|--identity URI] [--no-rebuild]`.",
    "lint-patches": "Check every series: manifest, headers, paths; with sources at hand, zero fuzz and the same bytes.",
    "patches": "Overview of patches and releases, on the terminal and as an HTML page.",
    "regenerate-patch": "Port a series by hunks: `-- RELEASE`, `-- --patches DIR --from-tree A --to-tree B --out DIR`.",
    "probes": "The probes of NCCL's defects on any CUDA build of torch, 2.0 or newer: `-- --python PATH`; `-- --list`.",
    "install": "Install a release on many hosts with Ansible: `-- --help`. `ci/install` does the same without nox.",
    "new-release": "Weekly: port the patches to each new PyTorch release and open pull requests: `-- [--list]`.",
    "fresh": "README's commands on a bare system, an hour, as root: `-- ['COMMAND' …]` runs others there.",
}
#: The modules of those that are no command of `build`.
_MODULES = {"probes": "gpuless", "install": "ci.cluster", "new-release": "ci.new_release", "fresh": "ci.fresh"}


def _passed_on(name: str, words: str) -> None:
    def session(session: nox.Session) -> None:
        _program(session, *([_MODULES[name]] if name in _MODULES else ["build", name]), *session.posargs)

    session.__doc__ = words
    nox.session(name=name)(session)


for _name, _words in _PASSED_ON.items():
    _passed_on(_name, _words)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the figures that the project promises: `-- [overlay|import|…]`; alone: `-- porting [--real]`."""
    if "porting" in session.posargs:
        _program(session, "docs.bench.porting", *(argument for argument in session.posargs if argument != "porting"))
        return
    if "nccl" in session.posargs:  # worlds have a member in the process that measures
        _install_torch(session)
    _program(session, "docs.bench", *session.posargs)


def _release_sessions(release: str) -> None:
    """Define apply-, build- and test- of one release."""

    @nox.session(name=f"apply-{release}")
    def apply(session: nox.Session) -> None:
        """Checkout with the series applied, and a verdict per hunk: `-- [--source PATH] [--into DIR]`."""
        _program(session, "build", "apply", release, *session.posargs)

    @nox.session(name=f"build-{release}")
    def build(session: nox.Session) -> None:
        """Patched wheel and overlay wheel, and a first proof: `-- [--source PATH] [--python V] [--no-test|--full]`.

        With `--patches FILE --label NAME` wheels of your own patches, without the tests of the series.
        """
        _program(session, "build", "build", release, *session.posargs)
        # A full build runs the probes itself.
        options = {word.partition("=")[0] for word in session.posargs}
        if not {"--no-test", "--full", "--plan", "--label", "--dist"} & options:
            session.notify(f"test-{release}", ["--first"])

    @nox.session(name=f"test-{release}")
    def test(session: nox.Session) -> None:
        """Probes and tests on the built wheels: `-- [--python 3.12] [--stock] [--first|--no-multiworld|--whole]`."""
        _program(session, "build", "test", release, *session.posargs)


for _release in RELEASES:
    _release_sessions(_release)

if __name__ == "__main__":
    sys.argv[1:1] = ["--noxfile", __file__]  # from whatever folder
    nox.main()
