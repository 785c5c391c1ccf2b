"""Which functions of a unit a patch concerns, by the text: bodies end with a `}` in the first column (clang-format).

What is not understood counts as changed: more units are compiled then, or the patch is refused, but none is missed.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: How a definition begins: in the first column, and not as one of these.
_OTHER = re.compile(r"(#|//|/\*|\*|[{})]|namespace\b|using\b|extern\s+\"C\"\s*\{|public:|private:|protected:)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NAME = re.compile(r"([A-Za-z_~]\w*)\s*\(")
#: What a line may be about that code depends on without naming it.
_FAR = re.compile(r"^\s*#|\\$|\busing\s+namespace\b|\boperator\b|\btemplate\b", re.M)
#: A name where a declaration has it; the name of a type that is only used is followed by something else.
_DECLARED = re.compile(r"([A-Za-z_]\w*)(?:\s+final)?\s*(?:[({=;,)\[]|:(?!:))")
#: A specialization, or a template of a type: it changes what other code means, whatever functions it has.
_SPECIAL = re.compile(r"template\s*<\s*>|template\b[^{(]*?>\s*(class|struct|enum|union)\b")
_STATE = re.compile(r"^\s+(static|thread_local)\b(?!\s*(const|constexpr|_cast))", re.M)


@dataclass(frozen=True, slots=True)
class Text:
    """The functions of a unit by name, each with the texts of its definitions, and what is outside of them."""

    functions: Mapping[str, tuple[str, ...]]
    rest: str


def _blocks(source: str) -> Iterator[str]:
    """Yield definitions, and the lines between them one by one."""
    lines: list[str] = []
    for line in _COMMENT.sub("", source).splitlines():
        if not line.strip():
            continue
        if not lines and (line[0].isspace() or _OTHER.match(line)):
            yield line
            continue
        lines.append(line)
        opened = any("{" in item for item in lines)
        if (line[0] == "}" and opened) or (not opened and line.rstrip().endswith(";")) or _complete(lines):
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _complete(lines: list[str]) -> bool:
    """Whether a definition ends on its first line, `int f() { return 1; }`."""
    return len(lines) == 1 and "{" in lines[0] and lines[0].rstrip().endswith(("}", "};"))


def read(source: str) -> Text:
    functions: dict[str, list[str]] = defaultdict(list)
    rest = []
    for block in _blocks(source):
        name = _NAME.search(block)
        is_function = name and "{" in block and not re.match(r"(class|struct|enum|union|#)", block)
        if name and is_function:
            functions[name[1]].append(re.sub(r"\s+", " ", _STATE.sub(r"\n  STATE", block)))
        if (not is_function and not block.startswith("#include")) or _SPECIAL.match(block):
            rest.append(block)
    return Text({name: tuple(texts) for name, texts in functions.items()}, "\n".join(rest))


def _introduced(before: str, after: str) -> frozenset[str] | None:
    """Return the names that lines beside functions may declare, if the patch only adds such lines; None otherwise.

    Also None where an added line may change what code means that names nothing of it, such as a macro.
    """
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
    lines = [line for line in list(diff)[2:] if not line.startswith("@@")]
    added = "\n".join(line[1:] for line in lines)
    if any(line[0] == "-" for line in lines) or _FAR.search(added):
        return None
    return frozenset(_DECLARED.findall(added))


def affected(old: str, new: str) -> frozenset[str] | None:
    """Return the functions whose code differs, and those whose text names one of them; None for all.

    Functions with variables of their own count as well, whether they differ or not: an overlay has a second copy.
    """
    before, after = read(old), read(new)
    introduced = _introduced(before.rest, after.rest)
    if introduced is None:
        return None
    every = before.functions.keys() | after.functions.keys()
    found = {name for name in every if before.functions.get(name) != after.functions.get(name)} | introduced
    found |= {name for name, texts in after.functions.items() if any("STATE" in text for text in texts)}
    while more := {name for name, texts in after.functions.items() if name not in found and _names(texts, found)}:
        found |= more
    return frozenset(found)


def spared(old: str, new: str) -> frozenset[str]:
    """Return the functions that a patch surely does not concern: an overlay's copy does what the stock one does."""
    concerned = affected(old, new)
    return frozenset() if concerned is None else frozenset(read(new).functions) - concerned


def _names(texts: tuple[str, ...], found: set[str]) -> bool:
    return any(not found.isdisjoint(re.findall(r"\w+", text)) for text in texts)
