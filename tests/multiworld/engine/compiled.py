"""The core, compiled with a driver into a folder of the test's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = Path(__file__).parents[3] / "multiworld" / "engine"
#: with the checks of libstdc++
FLAGS = ("-std=c++20", "-D_GLIBCXX_ASSERTIONS", f"-I{SOURCES}")


def compile_core(driver: str, made: Path, *command: str) -> Path:
    """Compile the core and ``driver``, a file beside this one, with ``command``: a compiler and its options.

    All as one source: headers, which take most of the time, are read once.
    """
    text = "".join(f'#include "{path}"\n' for path in (*sorted(SOURCES.glob("core/*.cc")), HERE / driver))
    subprocess.run([*command, *FLAGS, "-o", made, "-x", "c++", "-"], input=text, text=True, check=True, timeout=600)
    return made
