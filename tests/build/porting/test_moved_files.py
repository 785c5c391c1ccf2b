"""Files are searched for moved lines: in one pass for all that a patch may ask for, few lines or many."""

from __future__ import annotations

from collections import UserDict
from collections.abc import ItemsView

import pytest

from build.porting.moved_files import MANY, _Pool

FILES = {
    "a.c": b"".join(b"  int line_%d;\n" % n for n in range(40)),
    "b.c": b"".join(b"\tint line_%d;\r\n" % n for n in range(0, 40, 2)),
    "c.c": b"if (x) int line_2; // a part of a line is not the line\n",
    "d.c": b"",
}


class Counted(UserDict[str, bytes]):
    """Files that count how often all of them are read."""

    passes = 0

    def items(self) -> ItemsView[str, bytes]:
        self.passes += 1
        return super().items()


@pytest.mark.parametrize("count", [1, MANY, MANY + 1, 40])
def test_the_files_that_have_a_line(count: int) -> None:
    lines = [b"int line_%d;" % n for n in range(count)]
    found = dict(zip(lines, _Pool(FILES).having(lines), strict=True))
    assert found == {line: ["a.c", "b.c"] if n % 2 == 0 else ["a.c"] for n, line in enumerate(lines)}


def test_a_line_that_no_file_has() -> None:
    assert list(_Pool(FILES).having([b"int line_40;"])) == [[]]


def test_lines_that_will_be_asked_for_are_searched_in_the_same_pass() -> None:
    files = Counted(FILES)
    pool = _Pool(files)
    first, second = b"int line_2;", b"int line_3;"
    assert list(pool.having([first], soon=[first, second])) == [["a.c", "b.c"]]
    assert list(pool.having([second, first])) == [["a.c"], ["a.c", "b.c"]]
    assert files.passes == 1
    assert list(pool.having([b"int line_5;"])) == [["a.c"]]
    assert files.passes == 2
