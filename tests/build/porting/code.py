"""A source file that looks like one, and ways to edit it."""

from __future__ import annotations

from build.porting.fileport import apply_hunks
from build.porting.groups import Labels
from build.porting.textport import TextPort, port_text
from build.series.model import Hunk
from build.series.patchfile import parse

LABELS = Labels(b"new", b"old", b"patch")
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


def function(name: str, body: int = 12) -> str:
    lines = [f"  step_{name}_{n}(value, {n}); // part {n} of {name}" for n in range(body)]
    return f"int compute_{name}(int value) {{\n" + "\n".join(lines) + f"\n  return finish_{name}(value);\n}}\n"


def source(*names: str) -> str:
    return "#include <first.h>\n#include <second.h>\n\n" + "\n".join(function(n) for n in names or NAMES)


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def hunks(old: str, new: str) -> tuple[Hunk, ...]:
    """The hunks of `diff -u`, made by git."""
    import subprocess
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text(old)
        Path(folder, "b").write_text(new)
        done = subprocess.run(
            ["git", "diff", "--no-index", "--no-color", "a", "b"],
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=60,
        )
    return parse(done.stdout, "p").changes[0].hunks


def port(old: str, patched: str, new: str) -> TextPort:
    found = port_text(old.encode(), new.encode(), hunks(old, patched), LABELS)
    assert apply_hunks(old.encode(), hunks(old, patched)) == patched.encode()
    return found
