"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import UsageError
from ci.cluster.__main__ import expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", ["login1"]),
        ("node[01-03],login1,", ["node01", "node02", "node03", "login1"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("r[1-2]n[01,03-04].site", [f"r{r}n{n}.site" for r in (1, 2) for n in ("01", "03", "04")]),
        ("a, b  a", ["a", "b"]),
        ("admin@node[1-2]", ["admin@node1", "admin@node2"]),
        ("fe80::1", ["fe80::1"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "node[01-",
        "node]1[",
        "node[a-b]",
        "node[]",
        "node[3-1]",
        "n[1-900000]",
        "n[1-]",
        "[[1]]",
        "",
        "n[1-999]m[1-999]",
        "-oProxyCommand=id",
        "a,-b",
        "$(id)",
        "a;id",
        "{{ 1 }}",
        "a/b",
        "a\x1bb",
    ],
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of hosts"):
        expand(text)


@given(st.integers(0, 999), st.integers(0, 40), st.integers(1, 5))
def test_a_range_names_all_its_numbers(first: int, more: int, width: int) -> None:
    names = expand(f"n[{first:0{width}}-{first + more}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert all(len(name) >= width + 1 for name in names)
