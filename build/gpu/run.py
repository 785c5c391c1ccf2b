"""Run the rows marked `gpu` on this machine's NVIDIA device: `python3 -m build.gpu.run [--out DIR] [ARGUMENTS]`.

Needs no network. ARGUMENTS are pytest's. In a bundle (there it is `python3 run.py`), the packages in it go into an
environment on top of the Python that has torch; in a checkout, that Python must have what the tests import. DIR
(default $OUT, else dist/gpu) gets `facts.json`, `gpu.xml` (JUnit), `pytest.log` and `result.json`.

Exit status: 0 passed, 2 wrong arguments, 5 this machine cannot run the tests, 13 a test failed, 21 nothing was shown:
there is no device, or every row was skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from build.errors import EnvironmentUnfitError, NoDeviceError, ProbeError, ToolError, UsageError

CHECKOUT = Path(__file__).resolve().parents[2]
#: In a bundle, beside the folder of the checkout.
MANIFEST = "bundle.json"
#: Likewise, the folder of the packages.
PACKAGES = "packages"
_TESTS = "tests/multiworld"
_FACTS_SECONDS = 300.0  # the first import of a CUDA torch from a cold disk
_PASSED, _FAILED, _NOTHING_COLLECTED = 0, 1, 5
#: What the tests import, and a Python outside of a bundle must have.
NEEDED = ("pytest", "pytest_timeout", "xdist", "hypothesis", "numpy", "typer", "rich")
_SECONDS = 60.0
_ASK = """
import importlib.util, json, sys
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
    "site": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, its version, modules that were asked for and are not there, and the folders of its packages."""

    path: Path
    version: str
    missing: tuple[str, ...]
    site: tuple[str, ...]


def find(asked: Path | None) -> Interpreter:
    """Return the Python to use: the one asked for; else this one or the first on PATH that has torch.

    Raises:
        UsageError: the one asked for cannot be run or has no torch.
        EnvironmentUnfitError: there is none with torch.
    """
    tried = []
    for path in [asked.absolute()] if asked else _candidates():
        known = examine(path)
        tried.append(str(path))
        if known is not None and "torch" not in known.missing:
            return known
    if asked:
        raise UsageError(f"{asked} has no torch", remedy="give a Python with a CUDA build of torch: --python PATH")
    remedy = "install a CUDA build of torch, or name the Python that has it: --python PATH"
    raise EnvironmentUnfitError("no Python with torch was found", cause="tried " + ", ".join(tried), remedy=remedy)


def _candidates() -> Iterator[Path]:
    seen = {Path(sys.executable)}
    yield from seen
    for folder in os.get_exec_path():
        for name in ("python3", "python"):
            path = Path(folder, name)
            if path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path


def examine(path: Path) -> Interpreter | None:
    command: list[str | Path] = [path, "-c", _ASK, "torch", *NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, cwd="/")
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, answer["version"], tuple(answer["missing"]), tuple(answer["site"]))


def layered(base: Interpreter, packages: Path, folder: Path) -> Path:
    """Make a virtual environment that sees `packages`, and below them all packages of `base`; return its Python.

    Raises:
        EnvironmentUnfitError: it cannot be made.
    """
    command: list[str | Path] = [base.path, "-m", "venv", "--system-site-packages", "--without-pip", folder]
    try:
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        cause = str(getattr(error, "stderr", "") or error).strip()
        raise EnvironmentUnfitError("the environment cannot be made", cause=cause) from None
    site = folder / "lib" / f"python{base.version}" / "site-packages"
    # Where `base` is itself a virtual environment, the new one sees the packages of the Python below it, not its own.
    lines = [f"import site; site.addsitedir({path!r})" for path in (str(packages), *base.site)]
    (site / "of_the_bundle.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Tally:
    """Tests by outcome, and why the skipped ones were skipped: a skipped test has shown nothing."""

    passed: int
    failed: int
    skipped: int
    reasons: dict[str, int]

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def parsed(arguments: list[str]) -> tuple[Path, Path | None, list[str]]:
    """Return the folder of the results, the Python to use, None: it is looked for, and arguments for pytest."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__, allow_abbrev=False, formatter_class=form)
    default = Path(os.environ.get("OUT") or CHECKOUT / "dist" / "gpu")
    parser.add_argument("--out", type=Path, default=default, help="folder of the results")
    parser.add_argument("--python", type=Path, help="the Python that has torch")
    known, rest = parser.parse_known_args(arguments)
    if not any((CHECKOUT / item.partition("::")[0]).exists() for item in rest):
        rest = [*rest, _TESTS]
    return known.out.absolute(), known.python, rest


def run(out: Path, asked: Path | None, arguments: list[str]) -> None:
    """Run the tests and write the results, see `parsed`.

    Raises:
        EnvironmentUnfitError: no torch, or modules that the tests need are missing.
        ProbeError: a test failed, or pytest itself.
        NoDeviceError: no test could show anything.
    """
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        python = _prepared(asked, stack)
        facts = _facts(python)
        _write(out / "facts.json", facts)
        names = ", ".join(f"{item['name']} ({item['memory_MiB']} MiB)" for item in facts["devices"])
        _say(f"torch {facts['torch']}, {names or 'NO NVIDIA DEVICE: ' + facts['no_device']}")
        status = _tests(python, out, arguments)
    tally = counted(out / "gpu.xml")
    _write(out / "result.json", {"pytest_status": status, **asdict(tally), "facts": facts})
    for reason, count in tally.reasons.items():
        _say(f"skipped {count} x: {reason}")
    _say(f"{tally}; results in {out}")
    if "--collect-only" not in arguments:
        judge(status, tally, facts)


def _prepared(asked: Path | None, stack: ExitStack) -> Path:
    """Return the Python for the tests, in a bundle one that has its wheels."""
    found = find(asked)
    manifest = CHECKOUT.parent / MANIFEST
    if manifest.is_file():
        return _of_bundle(found, json.loads(manifest.read_text(encoding="utf-8")), stack)
    if found.missing:
        remedy = "install them there (`pip install --group gpu`), or make a bundle elsewhere: `nox -s gpu -- --bundle`"
        raise EnvironmentUnfitError(f"{found.path} lacks {', '.join(found.missing)}", remedy=remedy)
    return found.path


def _of_bundle(found: Interpreter, manifest: dict[str, Any], stack: ExitStack) -> Path:
    if found.version != manifest["python"]:
        what = f"the bundle is for Python {manifest['python']}; {found.path} is {found.version}"
        remedy = f"name another Python (--python PATH), or make the bundle with `--python {found.version}`"
        raise EnvironmentUnfitError(what, remedy=remedy)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multiworld-gpu-")))
    _say(f"{len(manifest['packages'])} packages on top of {found.path}")
    return layered(found, CHECKOUT.parent / PACKAGES, folder / "venv")


def _facts(python: Path) -> dict[str, Any]:
    command: list[str | Path] = [python, "-m", "build.gpu.facts"]
    try:
        done = subprocess.run(
            command, cwd=CHECKOUT, env=_environment(), timeout=_FACTS_SECONDS, check=True, capture_output=True
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        cause = said[-2000:].decode("utf-8", "replace").strip()
        raise EnvironmentUnfitError(f"{python} cannot import torch", cause=cause) from None
    return facts


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"}


def _tests(python: Path, out: Path, arguments: list[str]) -> int:
    """Run pytest with its output on the terminal and in `pytest.log`; return its exit status."""
    junit = out / "gpu.xml"
    junit.unlink(missing_ok=True)
    subprocess.run([python, "hatch_build.py"], cwd=CHECKOUT, check=False)  # needs a compiler; says so without one
    command: list[str | Path] = [python, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider"]
    command += [f"--junitxml={junit}"]
    with (out / "pytest.log").open("w", encoding="utf-8") as log:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        with subprocess.Popen([*command, *arguments], cwd=CHECKOUT, env=_environment(), **pipes) as process:
            for line in process.stdout or ():
                sys.stdout.write(line)
                log.write(line)
                log.flush()
    return process.returncode


def counted(junit: Path) -> Tally:
    """Count the cases of a JUnit file; a file that is missing has none."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ElementTree.parse(junit).iter("testcase") if junit.is_file() else ():  # noqa: S314 - our own pytest's
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        counts["failed" if bad else "skipped" if skipped is not None else "passed"] += 1
        if skipped is not None and not bad:
            reasons[skipped.get("message", "no reason given")] += 1
    return Tally(counts["passed"], counts["failed"], counts["skipped"], dict(reasons))


def judge(status: int, tally: Tally, facts: dict[str, Any]) -> None:
    """Raise the error that says what is wrong with a run; return if it has shown something and nothing failed."""
    if tally.failed or status not in (_PASSED, _FAILED, _NOTHING_COLLECTED):
        raise ProbeError(f"tests on the device: {tally}; pytest ended with status {status}: see pytest.log")
    if not facts["devices"]:
        what = "there is no NVIDIA device, so nothing about one is shown"
        remedy = "run where there is one, with a CUDA build of torch; or `pytest tests/multiworld/faults -k simulated`"
        raise NoDeviceError(what, cause=str(facts["no_device"]), remedy=remedy)
    if not tally.passed:
        what = "every row was skipped" if tally.skipped else "no chosen row is marked `gpu`"
        raise NoDeviceError(f"{what}, so nothing is shown", cause="\n".join(tally.reasons))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _say(message: str) -> None:
    print(f":: {message}", flush=True)  # noqa: T201


def main(arguments: list[str] | None = None) -> int:
    try:
        run(*parsed(sys.argv[1:] if arguments is None else arguments))
    except ToolError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
