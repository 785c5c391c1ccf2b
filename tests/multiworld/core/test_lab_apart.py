"""What measures and breaks worlds is no part of what a program imports."""

from __future__ import annotations

import os
import subprocess
import sys

#: imports every module but those of ``multiworld.lab`` and prints what of it was loaded all the same
PROGRAM = """
import importlib, pathlib, sys
import multiworld
root = pathlib.Path(multiworld.__file__).parent.parent
names = [".".join(path.relative_to(root).with_suffix("").parts) for path in root.glob("multiworld/**/*.py")]
for name in names:
    if not name.startswith("multiworld.lab") and not name.endswith("__main__"):  # importing that runs the command
        importlib.import_module(name.removesuffix(".__init__"))
print(len(names), [name for name in sys.modules if name.startswith("multiworld.lab")])
"""


def test_no_module_of_the_package_imports_the_lab() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    count, _, loaded = done.stdout.strip().partition(" ")
    assert int(count) > 50
    assert loaded == "[]"
