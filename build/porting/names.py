"""The names in lines of code: which are used, and which the lines declare themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Strings, comments and conditions of the preprocessor, in which a word is no name. An apostrophe that is not closed on
#: its line is left alone.
_TEXT = re.compile(
    rb"""^[ \t]*\#[ \t]*(?:if|el|endif|include|pragma|undef).*|//.*|/\*.*?\*/|(?:^|[ \t])\#[ \t].*|^[ \t]*\*[ \t].*"""
    rb"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""",
    re.MULTILINE,
)
#: What one of them needs: most lines have none.
_MARK = re.compile(rb"[#/*\"']")
NAME = re.compile(rb"(?<!\w)[A-Za-z_]\w+")
#: A name, or what no name is in: none of the latter begins with a letter.
_USED = re.compile(rb"(" + NAME.pattern + rb")|" + _TEXT.pattern, re.MULTILINE)
#: Words of the languages, and names of everyone's: none of them is renamed.
WORDS = frozenset(
    b"""and as assert async auto await bool break case catch char class const continue def default del delete do double
    elif else endif enum except extern False false finally float for from global goto if import in inline int int64_t
    is lambda long namespace new None nonlocal not NULL nullptr operator or pass private protected public raise return
    self short signed size_t sizeof ssize_t static std struct super switch template this throw TRUE True true try
    typedef typename uint32_t uint64_t uint8_t union unsigned using virtual void volatile while with yield""".split()
)
#: Names of numbers and characters in C and GLib: another type is no rename.
_NUMBERS = re.compile(
    rb"(?:g?s?u?(?:int|char|short|long|size)|[us])(?:8|16|32|64|max|ptr)?(?:_t)?|g(?:boolean|double|float|pointer)"
)
#: Words before a name that is used and not declared.
_BEFORE_USE = (
    rb"(?<!\breturn)(?<!\belse)(?<!\bcase)(?<!\bgoto)(?<!\bthrow)(?<!\bnew)(?<!\bdelete)(?<!\bin)(?<!\bnot)(?<!\band)"
    rb"(?<!\bor)(?<!\byield)(?<!\bawait)(?<!\bassert)(?<!\braise)(?<!\bdel)(?<!\bif)(?<!\belif)(?<!\bwhile)(?<!\bis)"
)
#: First words of statements that declare nothing.
_STATEMENT = (
    rb"(?:and|assert|await|case|co_await|co_return|co_yield|del|delete|elif|else|goto|if|in|new|not|or|raise|return|throw"
    rb"|while|yield)\b"
)
#: It first asks for a blank or the like: of most bytes no word before them is compared.
_DECLARED = re.compile(
    rb"(?=[ \t*&])(?<=[\w>])"
    rb"(?:(?=[ \t])" + _BEFORE_USE + rb"[ \t]+[*&]*|[ \t]*[*&]+[ \t]*)([A-Za-z_]\w+)[ \t]*(?=[;,=)\[:]|$)"
    rb"|^[ \t]*(?!" + _STATEMENT + rb")(?:[A-Za-z_][\w:<>]*[ \t*&]+){1,4}([A-Za-z_]\w+)[ \t]*[({]"
    rb"|\b(?:def|class|as|import|for|struct|enum|union|define)[ \t]+([A-Za-z_]\w+)"
    rb"|^[ \t]*([A-Za-z_]\w+)[ \t]*=(?!=)[^;\n]*$",
    re.MULTILINE,
)


#: Lines that only make names known; what needs the names is further down.
_IMPORT = re.compile(rb"\s*(#\s*include\b|import\b|from\s+\S+\s+import\b|using\s|find_package\s*\()")


#: Bytes that names are made of.
_OF_NAMES = frozenset(bytes([byte]) for byte in range(128) if chr(byte).isalnum() or byte == ord("_"))


#: Pairs of bytes that are inside a name.
NAMED = frozenset(one + other for one in _OF_NAMES for other in _OF_NAMES)


def imports_only(lines: Iterable[bytes]) -> bool:
    """Whether lines do nothing but make names known."""
    return all(_IMPORT.match(line) or not line.strip() for line in lines)


def everyones(name: bytes) -> bool:
    """Whether a name is a word of a language, or that of a type which everyone uses."""
    return name in WORDS or _NUMBERS.fullmatch(name) is not None


def code(lines: Iterable[bytes]) -> bytes:
    """Return lines without strings and comments."""
    text = b"".join(lines)
    return _TEXT.sub(b" ", text) if _MARK.search(text) else text


def used(lines: Iterable[bytes]) -> set[bytes]:
    return set(_USED.findall(b"".join(lines))) - WORDS - {b""}


def has_word(data: bytes, name: bytes) -> bool:
    """Whether a file has a name as a whole word, wherever that is."""
    return name in data and next(places(data, name), None) is not None


def places(data: bytes, name: bytes) -> Iterator[int]:
    """Yield where a file has a name as a whole word."""
    at = data.find(name)
    while at >= 0:
        end = at + len(name)
        if data[at - 1 : at] not in _OF_NAMES and data[end : end + 1] not in _OF_NAMES:
            yield at
        at = data.find(name, max(end, at + 1))


def declared(lines: Iterable[bytes]) -> set[bytes]:
    """Return the names that lines declare, as far as one can tell without the rest of the file."""
    return {name for match in _DECLARED.finditer(code(lines)) for name in match.groups() if name}


def shape(line: bytes) -> tuple[bytes, ...]:
    """Return the tokens of a line with a blank for each name: lines that differ in names have the same shape."""
    return tuple([b"" if name else other for name, other in _TOKEN.findall(code([line]))])


def names(line: bytes) -> list[bytes]:
    return [name for name, _ in _TOKEN.findall(code([line])) if name]


_TOKEN = re.compile(rb"([A-Za-z_]\w*)|(\w+|[^\w\s])")
