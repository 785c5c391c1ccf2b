"""Files that are very long, on one line, or binary. Time and memory stay bounded."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from build.paths import REPO
from build.porting.textport import port_text
from build.series.inspect import lines_of
from build.series.model import Hunk, Verdict

from .code import LABELS

#: Ports a file within 60 s of processor time and 1.5 GiB of memory: one line is added in the middle of many.
_BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
from build.porting.groups import Labels
from build.porting.textport import port_text
from build.series.model import Hunk
lines = {lines}
at = len(lines) // 2
hunk = Hunk(at + 1, at + 1, (*(b" " + line for line in lines[at:at + 3]), {added}))
found = port_text(b"".join(lines), {top} + b"".join(lines), [hunk], Labels(b"new", b"old", b"patch"))
print(found.hunks[0].verdict.value)
"""
_LINE = '[b"int a;\\n", b"int b;\\n", b"int c;\\n", b"int d[] = {" + b"{7, \\"x\\"}," * 60_000 + b"};\\n"]'
_C = '[b"int f%d(int a);\\n" % n for n in range(100_000)]'


@pytest.mark.parametrize("lines", [_C, _LINE], ids=["100,000 lines", "one line of half a megabyte"])
def test_large_files(lines: str) -> None:
    code = _BOUNDED.format(lines=lines, added=repr(b"+int more(int a);\n"), top=b"// top\n")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "offset\n"), done.stderr[-500:]


def test_the_bound_on_memory_is_one() -> None:
    """The limit of the test above stops a program that takes more."""
    code = _BOUNDED.format(lines="[b'x' * (2 << 30)]", added="b''", top="b''")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=200, check=False
    )
    assert "MemoryError" in done.stderr


def one_line_more(data: bytes, at: int) -> tuple[Hunk, bytes]:
    lines = lines_of(data)
    hunk = Hunk(at + 1, at + 1, (b" " + lines[at], b"+" + lines[at].replace(b"(", b"_more("), b" " + lines[at + 1]))
    return hunk, b"".join([*lines[: at + 1], lines[at].replace(b"(", b"_more("), *lines[at + 1 :]])


def test_mixed_line_ends() -> None:
    lines = [b"int name_%d(int a);" % n for n in range(300)]
    data = b"".join(line + (b"\r\n" if n % 3 else b"\n") for n, line in enumerate(lines))
    for at in (149, 150, 151):
        hunk, patched = one_line_more(data, at)
        found = port_text(data, b"// top\r\n" + data, [hunk], LABELS)
        assert [result.verdict for result in found.hunks] == [Verdict.OFFSET]
        assert found.new == b"// top\r\n" + patched


def test_binary_content_in_a_text_file() -> None:
    data = random.Random(1).randbytes(50_000) + b"\nint a(int);\nint b(int);\nint c(int);\n" * 3
    at = data.count(b"\n") - 5
    hunk, patched = one_line_more(data, at)
    found = port_text(data, b"top\n" + data, [hunk], LABELS)
    assert found.new in {b"top\n" + patched, b"top\n" + data}
