"""The hosts: an inventory in Ansible's INI form; its simplest case is a plain list of hosts, one a line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from build.errors import UsageError
from ci.cluster.hostlist import expand, split


@dataclass(frozen=True, slots=True)
class Host:
    """One host and how ssh reaches it; what is empty or 0 is left to ssh's own configuration.

    Attributes:
        name: as the inventory has it, for messages.
        address: what ssh connects to.
        python: the interpreter on the host that makes the environment.
    """

    name: str
    address: str = ""
    port: int = 0
    user: str = ""
    key: str = ""
    python: str = "python3"

    @property
    def target(self) -> str:
        return self.address or self.name


#: Ansible's variables that are understood, with the fields they set.
VARIABLES = {
    "ansible_host": "address",
    "ansible_port": "port",
    "ansible_user": "user",
    "ansible_ssh_private_key_file": "key",
    "ansible_python_interpreter": "python",
}


@dataclass(slots=True)
class _Group:
    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)


def read(path: Path, limit: str = "") -> list[Host]:
    """Return the hosts of an inventory.

    Args:
        limit: names of groups, hosts or shell patterns, separated by commas; empty for all hosts.

    Raises:
        UsageError: the file cannot be read, a line is wrong, or `limit` names nothing.
    """
    try:
        groups = _parse(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the inventory {path} cannot be read: {error}", remedy="name another file") from None
    hosts = _hosts(groups, path)
    return _limited(hosts, groups, limit) if limit else list(hosts.values())


def listed(text: str) -> list[Host]:
    """Return the hosts of a hostlist on the command line, each `[USER@]HOST`."""
    return [_named(name) for name in expand(text)]


def _named(name: str) -> Host:
    user, _, address = name.rpartition("@")
    return Host(name=address, user=user)


def _parse(text: str, path: Path) -> dict[str, _Group]:
    groups: dict[str, _Group] = {"all": _Group(), "ungrouped": _Group()}
    name, kind = "ungrouped", "hosts"
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        words = _words(line, where)
        if not words:
            continue
        if line.lstrip().startswith("[") and len(words) == 1 and words[0].endswith("]"):
            name, kind = _section(words[0][1:-1], where)
            groups.setdefault(name, _Group())
        elif kind == "hosts":
            given = dict(_assignments(words[1:], where))
            for host in expand(words[0]):
                groups[name].hosts.setdefault(host, {}).update(given)
        elif kind == "vars":
            groups[name].variables.update(_assignments(_variable(line), where))
        else:
            groups[name].children.append(words[0])
    return groups


def _words(line: str, where: str) -> list[str]:
    if line.lstrip().startswith(";"):
        return []
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}", remedy="close the quotes") from None


def _variable(line: str) -> list[str]:
    """Return a line `NAME = VALUE` of a group's variables as one word; the value may have blanks."""
    name, equals, value = line.partition("=")
    return [f"{name.strip()}{equals}{value.strip()}"]


def _section(head: str, where: str) -> tuple[str, str]:
    name, _, kind = head.partition(":")
    if not name or kind not in ("", "vars", "children"):
        raise UsageError(
            f"{where}: [{head}] is not a section", remedy="write [GROUP], [GROUP:vars] or [GROUP:children]"
        )
    return name, kind or "hosts"


def _assignments(words: list[str], where: str) -> Iterator[tuple[str, str]]:
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{where}: {word!r} is not NAME=VALUE", remedy="one host, list or range a line")
        if name.startswith("ansible_") and name not in VARIABLES:
            known = ", ".join(VARIABLES)
            raise UsageError(
                f"{where}: {name} is not understood",
                cause=f"only these variables of Ansible are: {known}",
                remedy="move it to ssh's configuration (--ssh-config), or remove it",
            )
        if name == "ansible_port" and not (value.isdigit() and 0 < int(value) < 65536):
            raise UsageError(f"{where}: {value!r} is not a port", remedy="give a number from 1 to 65535")
        yield name, value


def _hosts(groups: dict[str, _Group], path: Path) -> dict[str, Host]:
    """Return all hosts: a host's own variables outdo those of its groups, and a child's those of its parent."""
    merged: dict[str, dict[str, str]] = {}
    own: dict[str, dict[str, str]] = {}
    for depth in sorted({_depth(groups, name, path) for name in groups}):
        for name, group in groups.items():
            if _depth(groups, name, path) == depth:
                for host in _members(groups, name):
                    merged.setdefault(host, dict(groups["all"].variables)).update(group.variables)
    for group in groups.values():
        for host, variables in group.hosts.items():
            own.setdefault(host, {}).update(variables)
    return {name: _made(name, merged[name] | own[name]) for name in own}


def _depth(groups: dict[str, _Group], name: str, path: Path, seen: tuple[str, ...] = ()) -> int:
    """Return how many groups are above one: a parent's variables come first."""
    if name in seen:
        raise UsageError(f"{path}: the groups {', '.join(seen)} contain each other", remedy="break the circle")
    above = [parent for parent, group in groups.items() if name in group.children]
    return 1 + max((_depth(groups, parent, path, (*seen, name)) for parent in above), default=0)


def _members(groups: dict[str, _Group], name: str) -> list[str]:
    group = groups.get(name)
    if group is None:
        raise UsageError(f"the inventory has no group {name!r}", remedy="write [" + name + "], or correct the name")
    below = [host for child in group.children for host in _members(groups, child)]
    return list(dict.fromkeys([*group.hosts, *below]))


def _made(name: str, variables: dict[str, str]) -> Host:
    values = {VARIABLES[key]: value for key, value in variables.items() if key in VARIABLES}
    port = int(values.pop("port", "0"))
    return replace(_named(name), port=port, **values)


def _limited(hosts: dict[str, Host], groups: dict[str, _Group], limit: str) -> list[Host]:
    chosen: dict[str, Host] = {}
    for word in split(limit):
        names = _members(groups, word) if word in groups else []
        patterns = expand(word) if "[" in word else [word]
        names = names or [name for name in hosts if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if word == "all":
            names = list(hosts)
        if not names:
            raise UsageError(f"--limit {word}: the inventory has no such group or host", remedy="correct the name")
        chosen |= {name: hosts[name] for name in names}
    return list(chosen.values())
