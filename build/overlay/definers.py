"""The units of a tree that seem to define a symbol, by their texts."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

#: Where the host units of all libraries live.
_SEARCH = ("torch/csrc", "aten/src/ATen", "c10")
#: Units that are compiled in search of one hidden symbol before giving up.
_MOST_TRIED = 6


def scoped_name(demangled: str) -> tuple[str, str]:
    """Return the enclosing class or namespace and the name of a demangled function or variable."""
    plain = re.sub(r"\[abi:\w+\]|\(.*$", "", demangled.replace("(anonymous namespace)::", ""))
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    scope, _, name = plain.split()[-1].rpartition("::")
    return scope.rpartition("::")[2], name


class Definers:
    """The texts of a tree's host units, read once: there are 40 MB of them."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        units = [path for root in _SEARCH for path in sorted((self._tree / root).rglob("*.cpp"))]
        return {str(path.relative_to(self._tree)): path.read_bytes() for path in units if "test" not in path.parts}

    def of(self, demangled: str) -> list[str]:
        """Return the units whose text seems to define a symbol, most likely first.

        First those with the body of a function of its name, then those with its qualified name, then those with a
        variable of its name, then those that only declare or call such a function.
        """
        scope, name = (re.escape(part).encode() for part in scoped_name(demangled))
        # No \b: it needs a letter, and `~Holder` begins with none, as `operator==` ends with none.
        whole = rb"(?<!\w)" + name + rb"(?!\w)"
        # In one line: over several, a table of numbers takes minutes.
        unqualified = rb"^(?:extern\s+\"C\"\s)?[\w:<>,&*~ \t]*" + whole + rb"\s*\("
        body = re.compile(unqualified + rb"[^;{}]*\)[^;{}]*\{", re.M)
        qualified = re.compile(rb"\b" + scope + rb"(<[^<>]*>)?::\s*" + whole + rb"\s*[({=;]")
        variable = re.compile(rb"^(?!.*\bextern\b)[\w:<>,&* \t]*" + whole + rb"\s*(=[^=]|\{|;)", re.M)
        mention = re.compile(unqualified, re.M)
        literal, word = scoped_name(demangled)[1].encode(), re.compile(whole)
        texts = {path: text for path, text in self._texts.items() if literal in text and word.search(text)}
        ranks = {
            path: tuple(pattern.search(text) is None for pattern in (body, qualified, variable, mention))
            for path, text in texts.items()
        }
        fit = (path for path in sorted(ranks, key=lambda path: (ranks[path], path)) if not all(ranks[path]))
        return list(fit)[:_MOST_TRIED]
