"""The text before a patch's first change: mail header and DEP-3 fields (https://dep-team.pages.debian.net/deps/dep3/)."""

from __future__ import annotations

import re

#: Fields every patch of this project carries (the others of DEP-3 are optional).
REQUIRED = ("Description", "Origin", "Forwarded", "Applied-Upstream", "Last-Update")
_FIELD = re.compile(
    r"(Description|Subject|Origin|Bug(?:-[A-Za-z]+)?|Forwarded|Author|From|Date|Reviewed-by|Acked-by|"
    r"Last-Update|Applied-Upstream):[ \t]*(.*)"
)
_STAT = re.compile(
    rb"^ (\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?\r?$", re.MULTILINE
)
_MAIL = re.compile(rb"\AFrom [0-9a-f]{40} ")
_LOOKS_LIKE_HEADER = re.compile(rb"^(From|Subject|Description|Origin|Author|Forwarded|Last-Update|Date):", re.MULTILINE)


def read_fields(header: bytes) -> dict[str, str]:
    """Return the fields of a header; a line that starts with a blank continues the field above it."""
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in header.decode("utf-8", "replace").splitlines():
        match = _FIELD.fullmatch(line)
        if match:
            current = [match.group(2)]
            fields.setdefault(match.group(1), current)
        elif line[:1] in {" ", "\t"} and current is not None:
            current.append("" if line.strip() == "." else line.strip())
        else:
            current = None
    return {name: "\n".join(lines).strip() for name, lines in fields.items()}


def diffstat(header: bytes) -> tuple[int, int, int] | None:
    """Return files, insertions and deletions of the diffstat in a mail; None if it has no diffstat."""
    found = list(_STAT.finditer(header))
    if not found:
        return None
    files, plus, minus = found[-1].groups()
    return int(files), int(plus or 0), int(minus or 0)


def is_mail(data: bytes) -> bool:
    return _MAIL.match(data) is not None


def has_header(data: bytes) -> bool:
    """Return whether the bytes begin like a described patch: then a patch without changes is valid."""
    return is_mail(data) or _LOOKS_LIKE_HEADER.search(data[:4096]) is not None
