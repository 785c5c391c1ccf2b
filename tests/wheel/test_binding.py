"""The dynamic loader binds every use of a replaced symbol to the overlay; on stock, to stock."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.wheel.conftest import TIMEOUT, Subject

PROGRAM = Path(__file__).with_name("binding.py")
SONAME = "libtorch_mw.so"
# Opened by torch in a scope of its own (2.0's fuser): what it has copies of, type information of inline classes, it
# takes from itself, on stock as well. Everything that it takes from elsewhere has to come from the overlay.
APART = frozenset({"libnvfuser_codegen.so"})


def bindings(subject: Subject) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [subject.python, "-c", PROGRAM.read_text(encoding="utf-8"), SONAME],
        input="\n".join(subject.record.replaced),
        env={"LD_BIND_NOW": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _strangers(library: str, row: dict[str, object]) -> list[object]:
    """Return what a library takes from where it must not."""
    other = row["other"]
    assert isinstance(other, list)
    own = f" in {library}" if library in APART else None
    return [item for item in other if own is None or not str(item).endswith(own)]


def test_every_use_is_bound_as_the_form_says(subject: Subject) -> None:
    found = bindings(subject)
    assert {"libtorch_cuda.so", "libtorch_python.so"} <= found.keys(), "the check looked at nothing"
    if subject.form == "stock":
        assert all(row["overlay"] == 0 and row["other"] for row in found.values()), found
    else:
        elsewhere = {library: other for library, row in found.items() if (other := _strangers(library, row))}
        assert not elsewhere
        assert all(row["overlay"] for row in found.values())
