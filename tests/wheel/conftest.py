"""The subject of the wheel tests: another interpreter, with a torch in one of three forms.

MULTIWORLD_TORCH_PYTHON  the interpreter; it needs torch and nothing else of ours
MULTIWORLD_TORCH_FORM    stock, patched (the patched wheel) or overlay (official torch and the overlay wheel)
MULTIWORLD_BUILD_JSON    the record of the build: which version, commit and replaced symbols to expect

`nox -s test-RELEASE` sets them.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from build.record import BuildRecord

TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Subject:
    """The interpreter under test."""

    python: Path
    form: str
    record: BuildRecord

    def run(self, code: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program in the interpreter, isolated from this process's Python settings."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return subprocess.run(
            [self.python, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            cwd="/",
            env=kept | (env or {}),
        )

    def ask(self, code: str, *arguments: str, env: dict[str, str] | None = None) -> object:
        """Run a program that prints one JSON value last, and return that value."""
        done = self.run(code, *arguments, env=env)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return json.loads(done.stdout.splitlines()[-1])


def _subject() -> Subject | str:
    """Return the subject, or why there is none."""
    missing = [n for n in ("MULTIWORLD_TORCH_PYTHON", "MULTIWORLD_TORCH_FORM") if not os.environ.get(n)]
    if missing:
        return f"no wheel to test: {' and '.join(missing)} not set (run `nox -s test-RELEASE`)"
    try:
        record = msgspec.json.decode(Path(os.environ.get("MULTIWORLD_BUILD_JSON", "")).read_bytes(), type=BuildRecord)
    except (OSError, msgspec.DecodeError):
        return "no wheel to test: MULTIWORLD_BUILD_JSON names no record of a build"
    # Not resolved: the interpreter of an environment is a link, and its place decides what it imports.
    python = Path(os.environ["MULTIWORLD_TORCH_PYTHON"]).absolute()
    return Subject(python, os.environ["MULTIWORLD_TORCH_FORM"], record)


@pytest.fixture(scope="session")
def subject() -> Subject:
    found = _subject()
    if isinstance(found, str):
        pytest.skip(found)
    return found
