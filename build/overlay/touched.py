"""Find the functions of a unit that a patch concerns, by the text; a body ends with a `}` in the first column.

What is not understood counts as changed: more units are compiled then, or the patch is refused. What only headers show
is not seen here: a macro of theirs that makes names, or a class of theirs whose members are defined in the unit.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: How a definition begins: in the first column, and not as one of these.
_OTHER = re.compile(r"(#|//|/\*|\*|[{})]|namespace\b|using\b|extern\s+\"C\"\s*\{|public:|private:|protected:)")
#: Texts are matched, too: they may have in them what looks like a comment.
_COMMENT = re.compile(r'(R"(\w*)\(.*?\)\2"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')|//[^\n]*|/\*.*?\*/', re.S)
_NAME = re.compile(r"([A-Za-z_~]\w*)\s*\(")
_TYPE = re.compile(r"\s*(?:template\b[^{]*?>\s*)?(?:typedef\s+|static\s+|const\s+)*(?:class|struct|enum|union)\b")
#: What a line may be about that code depends on without naming it.
_FAR = re.compile(r"^\s*#|\\$|\busing\s+namespace\b|\boperator\b|\btemplate\b", re.M)
#: Functions that code calls without naming them: operators, destructors, constructors; those of a range-based `for`.
_UNNAMED = re.compile(r"\boperator\b|~|\b(\w+)(?:<[^<>]*>)?::\1\s*\(")
_RANGE = frozenset({"begin", "end"})
#: The same in a class, where they are declared, and not called as `x.begin()` or `std::begin(x)`.
_RANGE_MEMBER = r"(?<![.>:])\b(?:begin|end)\s*\("
#: Before these words, `##` only drops the comma; elsewhere a macro makes names of parts with it.
_COMMA = re.compile(r",\s*##\s*__VA_ARGS__\b")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+\w+(?:\(([^)]*)\))?((?:[^\n\\]|\\.)*)", re.M | re.S)
_PASTED = re.compile(r"\w+(?:\s*##\s*\w+)+")
_PARENTHESES, _BRACES = r"\([^()]*\)", r"\{[^{}]*\}"
#: What may stand between `struct` and the name.
_ATTRIBUTE = re.compile(
    r"\[\[.*?\]\]|\b(?:alignas|__attribute__|__declspec)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.S
)
_CLASS = re.compile(r"\b(?:class|struct|union)\b([^;{]*)\{")
_CLASS_NAME = re.compile(r"\s*(?:\w+\s+)*?(?:\w+\s*::\s*)*(\w+)\s*(?:final\s*)?(?::(?!:)|$)")
#: A name where a declaration has it; the name of a type that is only used is followed by something else.
_DECLARED = re.compile(r"([A-Za-z_]\w*)(?:\s+final)?\s*(?:[({=;,)\[]|:(?!:))")
#: A specialization, or a template of a type: it changes what other code means, whatever functions it has.
_SPECIAL = re.compile(r"template\s*<\s*>|template\b[^{(]*?>\s*(class|struct|enum|union)\b")
#: They stand where a name stands, and are none.
_KEYWORDS = frozenset(
    {"const", "noexcept", "override", "final", "else", "try", "public", "private", "protected"}
    | {"return", "default", "delete"}
)


@dataclass(frozen=True, slots=True)
class Text:
    """The functions of a unit by name, each with the texts of its definitions, and what is outside of them.

    A function has each name before its body that an argument list may follow: one of them is its own.
    """

    functions: Mapping[str, tuple[str, ...]]
    rest: tuple[str, ...]


def bare(source: str) -> str:
    return _COMMENT.sub(lambda found: found[1] or "", source)


def _blocks(source: str) -> Iterator[str]:
    """Yield definitions, and the lines between them one by one."""
    lines: list[str] = []
    for line in bare(source).splitlines():
        if not line.strip():
            continue
        if not lines and (line[0].isspace() or _OTHER.match(line)):
            yield line
            continue
        lines.append(line.rstrip())
        opened = any("{" in item for item in lines)
        whole = len(lines) == 1 and opened and line.rstrip().endswith(("}", "};"))  # `int f() { return 1; }`
        if (line[0] == "}" and opened) or (not opened and line.rstrip().endswith(";")) or whole:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def read(source: str) -> Text:
    functions: dict[str, list[str]] = defaultdict(list)
    rest = []
    for block in _blocks(source):
        head, opened, _ = block.partition("{")
        names = _NAME.findall(head) if opened and not _TYPE.match(block) and block[0] not in "# \t" else []
        for name in names:
            functions[name].append(block)
        if not block.startswith("#include") and not (names and _is_function(block) and not _SPECIAL.match(block)):
            rest.append(block)
    return Text({name: tuple(texts) for name, texts in functions.items()}, tuple(rest))


def _is_function(block: str) -> bool:
    """Return whether a block with `name(` before its `{` is one function.

    A variable may have such a name in its type or initialiser, and the lines after it may be taken for a part of it.
    """
    head, opened, body = _COMMENT.sub('""', block).partition("{")
    return not re.search(r"[=()]", _without(_PARENTHESES, head)) and _without(_BRACES, opened + body) == " ["


def _introduced(before: tuple[str, ...], after: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names that blocks beside functions may declare, if the patch only adds such blocks; None otherwise.

    Also None where an added block may change what code means that names nothing of it, such as a macro, and where it
    is a part of something that this module does not understand: then it is indented.
    """
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    added = [block for kind, _, _, low, high in changes if kind == "insert" for block in after[low:high]]
    if any(kind in {"delete", "replace"} for kind, *_ in changes):
        return None
    if any(block[0].isspace() or _FAR.search(block) for block in added):
        return None
    return frozenset(name for block in added for name in _DECLARED.findall(block))


def _declared(block: str) -> frozenset[str]:
    """Return the names that a block beside functions declares, without those in argument lists and bodies."""
    head, opened, body = block.partition("{")
    outer = [_without(_BRACES, _without(_PARENTHESES, part)) for part in (head + opened, body)]
    return frozenset(name for part in outer for name in _DECLARED.findall(part)) - _KEYWORDS


def _without(what: str, text: str) -> str:
    """Replace what is in brackets, from the inner ones out, by a mark: `int f(int x) { … }` is `int f [ [`."""
    while (shorter := re.sub(what, " [", text)) != text:
        text = shorter
    return text


def _reached(text: Text, found: set[str]) -> frozenset[str] | None:
    """Return the further names through which code reaches what `found` names; None if it may do so without a name."""
    more = {name for name, texts in text.functions.items() if name not in found and _names(texts, found)}
    for block in (block for block in text.rest if _names([block], found)):
        if _FAR.search(block) or _has_special_members(block):
            return None
        more |= _declared(block) - found
    return None if _without_name(text, found | more) else frozenset(more)


def _without_name(text: Text, found: Iterable[str]) -> bool:
    """Return whether one of the functions in `found` is called without its name."""
    found = frozenset(found)
    if not found.isdisjoint(_RANGE):
        return True
    every = (item for name in found for item in text.functions.get(name, ()))
    return any(_UNNAMED.search(item.partition("{")[0]) for item in every)


def _has_special_members(block: str) -> bool:
    """Return whether a class has members that code calls without naming them, or a name that is not understood."""
    for found in _CLASS.finditer(_ATTRIBUTE.sub(" ", block)):
        name, body = _CLASS_NAME.match(found[1]), found.string[found.end() :]
        if not name or re.search(rf"~|\b{name[1]}\s*\(|{_RANGE_MEMBER}", body):
            return True
    return False


def affected(old: str, new: str) -> frozenset[str] | None:
    """Return the functions whose code differs, and those whose text names one of them; None for all."""
    before, after = read(old), read(new)
    introduced = _introduced(before.rest, after.rest)
    if introduced is None:
        return None
    every = before.functions.keys() | after.functions.keys()
    found = {name for name in every if before.functions.get(name) != after.functions.get(name)} | introduced
    if _without_name(before, found):
        return None
    while (more := _reached(after, found)) is not None:
        if not more:
            return None if _made_of_parts(old + "\n" + new, found) else frozenset(found)
        found |= more
    return None


def _made_of_parts(source: str, found: Iterable[str]) -> bool:
    """Return whether a macro may make one of the names by `##`: with `k##name`, all that begin with `k`."""
    plain = _COMMA.sub("", bare(source))
    pasted = [(macro[1] or "", text) for macro in _MACRO.finditer(plain) for text in _PASTED.findall(macro[2])]
    if sum(text.count("##") for _, text in pasted) != plain.count("##"):
        return True  # some are not understood
    patterns = [_pattern(arguments, text) for arguments, text in pasted]
    return any(pattern.fullmatch(name) for pattern in patterns for name in found)


def _pattern(arguments: str, pasted: str) -> re.Pattern[str]:
    """Return what the name matches that a macro with `arguments` makes of `pasted`."""
    names = {word.replace("...", "").strip() for word in arguments.split(",")} | {"__VA_ARGS__"}
    parts = re.split(r"\s*##\s*", pasted)
    return re.compile("".join(r"\w*" if part in names else re.escape(part) for part in parts))


def declared(text: Text) -> frozenset[str]:
    """Return the names that are declared beside functions, as variables are."""
    return frozenset[str]().union(*(_declared(block) for block in text.rest))


def _names(texts: Iterable[str], found: set[str]) -> bool:
    return any(not found.isdisjoint(re.findall(r"\w+", text)) for text in texts)
