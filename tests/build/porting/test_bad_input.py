"""Files that no one would read: very long, on one line, binary, nested without end. Time and memory stay bounded."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from build.paths import REPO
from build.porting import grammar
from build.porting.grammar import Language, UnreadableError, compiles, parse
from build.porting.soundness import Checked, change, check
from build.porting.textport import port_text
from build.series.inspect import Text
from build.series.model import Hunk
from build.series.verdicts import Verdict

from .code import LABELS, source

#: Ports a file within 60 s of processor time and 1.5 GiB of memory: one line is added in the middle of many.
_BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
from build.porting.markers import Labels
from build.porting.textport import port_text
from build.series.model import Hunk
lines = {lines}
at = len(lines) // 2
hunk = Hunk(at + 1, at + 1, (*(b" " + line for line in lines[at:at + 3]), {added}))
found = port_text(b"".join(lines), {top} + b"".join(lines), [hunk], Labels(b"new", b"old", b"patch"), path={path})
print(found.hunks[0].verdict.value, found.unread, sep="|")
"""
_LONG = '[b"int f%d(int a);  // %s\\n" % (n, b"x" * 230) for n in range(20_000)]'
_LINE = '[b"int a;\\n", b"int b;\\n", b"int c;\\n", b"int d[] = {" + b"{7, \\"x\\"}," * 60_000 + b"};\\n"]'
_C = '[b"int f%d(int a);\\n" % n for n in range(100_000)]'
_PY = '[b"name_%d = [1, 2]\\n" % n for n in range(100_000)]'


@pytest.mark.parametrize(
    ("lines", "path", "added", "said"),
    [
        (_C, "a.c", "int more(int a);", ""),
        (_PY, "a.py", "more = 1", ""),
        (_LONG, "a.cpp", "int more(int a);", "not read as code: it has more than 4 MiB"),
        (_LINE, "a.c", "int e;", ""),
    ],
    ids=["100,000 lines", "100,000 lines of Python", "too large", "one line of half a megabyte"],
)  # fmt: skip
def test_large_files(lines: str, path: str, added: str, said: str) -> None:
    top = b"# top\n" if path.endswith(".py") else b"// top\n"
    code = _BOUNDED.format(lines=lines, added=repr(b"+" + added.encode() + b"\n"), top=top, path=repr(path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"offset|{said}\n"), done.stderr[-500:]


def test_the_bound_on_memory_is_one() -> None:
    """The limit of the test above stops a program that takes more."""
    code = _BOUNDED.format(lines="[b'x' * (2 << 30)]", added="b''", top="b''", path="'a.c'")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=200, check=False
    )
    assert "MemoryError" in done.stderr


def one_line_more(data: bytes, at: int) -> tuple[Hunk, bytes]:
    lines = Text(data).lines
    hunk = Hunk(at + 1, at + 1, (b" " + lines[at], b"+" + lines[at].replace(b"(", b"_more("), b" " + lines[at + 1]))
    return hunk, b"".join([*lines[: at + 1], lines[at].replace(b"(", b"_more("), *lines[at + 1 :]])


def test_mixed_line_ends() -> None:
    lines = [b"int name_%d(int a);" % n for n in range(300)]
    data = b"".join(line + (b"\r\n" if n % 3 else b"\n") for n, line in enumerate(lines))
    for at in (149, 150, 151):
        hunk, patched = one_line_more(data, at)
        found = port_text(data, b"// top\r\n" + data, [hunk], LABELS, path="a.c")
        assert [result.verdict for result in found.hunks] == [Verdict.OFFSET]
        assert (found.new, found.unread) == (b"// top\r\n" + patched, "")


def test_binary_content_in_a_text_file() -> None:
    data = random.Random(1).randbytes(50_000) + b"\nint a(int);\nint b(int);\nint c(int);\n" * 3
    at = data.count(b"\n") - 5
    hunk, patched = one_line_more(data, at)
    found = port_text(data, b"top\n" + data, [hunk], LABELS, path="a.c")
    assert found.unread == "not read as code: it is binary"
    assert found.new in {b"top\n" + patched, b"top\n" + data}


DEEP = 50_000


@pytest.mark.parametrize(
    "code",
    [b"(" * DEEP + b")" * DEEP, b"-" * DEEP + b"1", b"a" + b".a" * DEEP, b"1 if 1 else " * DEEP, b"f" + b"(1)" * DEEP],
    ids=["brackets", "signs", "dots", "conditions", "calls"],
)  # fmt: skip
@pytest.mark.parametrize("language", [Language.C, Language.CPP, Language.PYTHON])
def test_code_that_is_nested_without_end(code: bytes, language: Language) -> None:
    path = {Language.C: "a.c", Language.CPP: "a.cpp", Language.PYTHON: "a.py"}[language]
    lines = [b"one\n", b"x = " + code + b"\n", b"two\n"]
    same = change(lines, [])
    assert check(path, same, same) == Checked()
    assert compiles(b"".join(lines))  # refused, without a crash
    parse(language, b"".join(lines))


def test_a_file_that_takes_too_long_is_only_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "LONGEST", 0.0)
    old = (
        source("one", "two", "three") * 20 + "// the end of this one\n"
    ).encode()  # nothing that another test has read
    with pytest.raises(UnreadableError, match="too long"):
        parse(Language.C, old)
    hunk = Hunk(old.count(b"\n"), old.count(b"\n"), (b" // the end of this one\n", b"+int more;\n"))
    found = port_text(old, b"// top\n" + old, [hunk], LABELS, path="a.c")
    assert [result.verdict for result in found.hunks] == [Verdict.OFFSET]
    assert found.unread == "not read as code: it takes too long"
