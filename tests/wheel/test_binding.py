"""The dynamic loader binds every use of a replaced symbol to the overlay; on stock, to stock."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.wheel.conftest import TIMEOUT, Subject

PROGRAM = Path(__file__).with_name("binding.py")
SONAME = "libtorch_mw.so"


def bindings(subject: Subject) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [subject.python, "-c", PROGRAM.read_text(encoding="utf-8"), SONAME],
        input="\n".join(subject.record.replaced), env={"LD_BIND_NOW": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_use_is_bound_as_the_form_says(subject: Subject) -> None:
    found = bindings(subject)
    assert {"libtorch_cuda.so", "libtorch_python.so"} <= found.keys(), "the check looked at nothing"
    if subject.form == "stock":
        assert all(row["overlay"] == 0 and row["other"] for row in found.values()), found
    else:
        elsewhere = {library: row["other"] for library, row in found.items() if row["other"]}
        assert not elsewhere
        assert all(row["overlay"] for row in found.values())
