"""Hostlists as Slurm writes them, inventories as Ansible reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import UsageError
from ci.cluster.hostlist import expand
from ci.cluster.inventory import Host, listed, read


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", ["login1"]),
        ("node[01-03],login1", ["node01", "node02", "node03", "login1"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("r[1-2]n[01,03-04].site", [f"r{r}n{n}.site" for r in (1, 2) for n in ("01", "03", "04")]),
        ("node[01:03]", ["node01", "node02", "node03"]),
        ("a, b  a", ["a", "b"]),
        ("admin@node[1-2]", ["admin@node1", "admin@node2"]),
        ("fe80::1", ["fe80::1"]),
    ],
)
def test_hostlist(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text", ["node[01-", "node]1[", "node[a-b]", "node[]", "node[3-1]", "n[1-900000]", "n[1-]", "[[1]]"]
)
def test_hostlist_that_is_wrong(text: str) -> None:
    with pytest.raises(UsageError):
        expand(text)


@given(st.integers(0, 999), st.integers(0, 40), st.integers(1, 5))
def test_a_range_names_all_its_numbers(first: int, more: int, width: int) -> None:
    names = expand(f"n[{first:0{width}}-{first + more}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert all(len(name) >= width + 1 for name in names)


INI = """
# the cluster
login1 ansible_host=10.0.0.1
[gpu]
node[01:02]   ansible_user=ml
node03 ansible_port=2222 rack=7
[cpu]
admin@node03
cpu1
[gpu:vars]
ansible_user = root
ansible_python_interpreter=/opt/python 3/bin/python3
[all:children]
gpu
cpu
[all:vars]
ansible_port=22
"""


def test_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(INI.replace("admin@node03\n", "node03\n"))
    python = "/opt/python 3/bin/python3"
    assert read(path) == [
        Host("login1", address="10.0.0.1", port=22),
        Host("node01", user="ml", port=22, python=python),
        Host("node02", user="ml", port=22, python=python),
        Host("node03", user="root", port=2222, python=python),
        Host("cpu1", port=22),
    ]
    assert [host.name for host in read(path, "cpu,login*")] == ["node03", "cpu1", "login1"]
    assert [host.name for host in read(path, "node[01-02]")] == ["node01", "node02"]


def test_plain_lines_are_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("node[01-02]\n\nml@node03 # a comment\n")
    assert read(path) == [Host("node01"), Host("node02"), Host("node03", user="ml")]
    assert listed("ml@node03") == [Host("node03", user="ml")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node1 ansible_prot=22\n", ":1: ansible_prot is not understood"),
        ("\nnode1 ansible_port=ssh\n", ":2: 'ssh' is not a port"),
        ("node1 node2\n", ":1: 'node2' is not NAME=VALUE"),
        ("[gpu:hosts]\n", "is not a section"),
        ("[a:children]\nb\n", "no group 'b'"),
        ("[a:children]\na\n", "contain each other"),
        ("node1 'x=1\n", ":1: No closing quotation"),
    ],
)
def test_inventory_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert said in str(caught.value)


def test_a_limit_that_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1\n")
    with pytest.raises(UsageError, match="no such group or host"):
        read(tmp_path / "hosts", "nodes")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "nothing")
