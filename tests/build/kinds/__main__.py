"""Build rows of the table with the real sources and wheel, and run their programs: `--help`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from build import official, releases
from build.console import note, step
from build.paths import REPO
from build.process import Completed, run
from build.wheeltest.environments import Form, environment
from tests.build.kinds.row import Row, load, names

#: Seconds that one build may take on a busy machine, and one program.
_BUILD, _PROGRAM = 3600, 600
#: Runs a program with the packages of one folder only, whose `.pth` files count.
_WITH = (
    "import runpy, site, sys; site.addsitedir(sys.argv.pop(1)); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)


def _tool(*arguments: str | Path) -> Completed:
    return run([sys.executable, "-m", "build", *arguments], cwd=REPO, env={"PYTHONPATH": str(REPO)}, timeout=_BUILD)


def _said(done: Completed) -> str:
    """Return all that a command printed, in one line: tables and messages fold on a terminal."""
    return re.sub(r"[\s│]+", " ", (done.stdout + done.stderr).decode("utf-8", "replace"))


def _refused(row: Row, done: Completed, by: str) -> list[str]:
    said = _said(done)
    if not done.returncode:
        return [f"{by} does not refuse it"]
    if "Traceback" in said:
        return [f"{by} ends with a traceback: {said[-2000:]}"]
    return [] if re.search(row.reason, said) else [f"{by} says another reason than {row.reason!r}: {said[-2000:]}"]


def _show(row: Row, python: Path, *before: str | Path) -> str:
    """Return what the program of a row prints, or how it ended."""
    done = run([python, "-I", *before, row.folder / "show.py"], cwd=row.folder, timeout=_PROGRAM)
    printed = done.stdout.decode("utf-8", "replace").rstrip("\n")
    return f"{printed}\n(ended with {done.returncode})\n{done.tail}" if done.returncode else printed


def _beside(wheel: Path, python: Path, site: Path) -> Path:
    """Unpack an overlay wheel beside links to all packages of an environment: its loader wants it next to torch."""
    packages = run([python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], timeout=60)
    (site / "torch").mkdir(parents=True)
    for path in Path(packages.stdout.decode().strip()).iterdir():
        for item in path.iterdir() if path.name == "torch" else [path]:  # a folder of its own: a link would be followed
            (site / item.relative_to(path.parent)).symlink_to(item)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def _behaves(row: Row, python: Path, wheels: Path) -> list[str]:
    found = sorted(wheels.glob("*/multiworld_torch_overlay-*.whl"))
    if len(found) != 1:
        return [f"{len(found)} overlay wheels were built"]
    site = _beside(found[0], python, wheels / "site")
    printed = {row.stock: _show(row, python), row.patched: _show(row, python, "-S", "-c", _WITH, site)}
    return [f"it prints {now!r}, expected {wanted!r}" for wanted, now in printed.items() if now != wanted]


def judge(row: Row, python: Path, arguments: list[str], label: str) -> list[str]:
    """Build one row, and return what is not as the row says; empty when all is."""
    explained = _tool("explain", "--release", row.release, "--patches", row.patch)
    with tempfile.TemporaryDirectory(prefix="kinds-") as scratch:
        own = ["--patches", str(row.patch), "--label", label, "--no-test", "--dist", scratch, *row.arguments]
        done = _tool("build", row.release, *own, *arguments)
        if row.outcome == "refused":
            wrong = _refused(row, done, "build")
            return wrong + (_refused(row, explained, "explain") if row.explain else [])
        if done.returncode or explained.returncode:
            return [f"it is refused: {_said(done if done.returncode else explained)[-3000:]}"]
        return _behaves(row, python, Path(scratch))


@contextlib.contextmanager
def _python(given: str, release: str) -> Iterator[Path]:
    """Yield an interpreter with the official wheel: the given one, or of an environment that is made and removed."""
    if given:
        yield Path(given)
        return
    version = ".".join(map(str, sys.version_info[:2]))
    with environment(Form.STOCK, version, [official.fetch_wheel(releases.get(release), version)]) as python:
        yield python


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.build.kinds", description=__doc__)
    parser.add_argument("names", nargs="*", help="rows, default all")
    parser.add_argument("--python", default="", help="interpreter with the official wheel; default: one is made")
    parser.add_argument("--jobs", default="", help="compilers at once, as for build")
    parser.add_argument("--include", action="append", default=[], help="folder of headers, e.g. of fmt, as for build")
    parser.add_argument("--label", default="kinds", help="label of the wheels; runs at once need one each")
    given = parser.parse_args()
    arguments = ["--jobs", given.jobs] if given.jobs else []
    arguments += [word for path in given.include for word in ("--include", path)]
    rows = [load(name) for name in given.names or names()]
    failed = []
    os.environ.pop("MULTIWORLD_TORCH_OVERLAY", None)
    for release in sorted({row.release for row in rows}):
        with _python(given.python, release) as python:
            for row in (row for row in rows if row.release == release):
                wrong = judge(row, python, arguments, given.label)
                step(f"{row.name}: {'NOT ' if wrong else ''}{row.outcome}: {row.kind}")
                for line in wrong:
                    note(line)
                failed += [row.name] if wrong else []
    step(
        f"{len(rows) - len(failed)} of {len(rows)} rows are as they have to be"
        + "".join(f"\n{name}" for name in failed)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
