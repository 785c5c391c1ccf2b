"""What every process of a test run loads before it knows whether it has tests to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]
#: imports every conftest and prints what of torch was loaded with them
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print([name for name in sys.modules if name == "torch"])
"""


def test_no_conftest_loads_torch() -> None:
    """The process of pytest-xdist that only hands tests out would take seconds for it, before the others begin."""
    files = sorted(FOLDER.rglob("conftest.py"), key=lambda path: len(path.parts))  # the one of all folders is the first
    names = [".".join(path.with_suffix("").relative_to(FOLDER.parents[1]).parts) for path in files]
    assert len(names) > 3
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
