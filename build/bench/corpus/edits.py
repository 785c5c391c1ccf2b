"""What patches do: the kinds of edits seen in PyTorch's own history, each with a word of its own."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from build.bench.corpus.model import Change, Line
from build.porting.lines import distinctive, indent

_WORD = re.compile(rb"[A-Za-z_]\w+")


def usable(lines: Sequence[Line], at: int, reach: int = 4) -> bool:
    """Tell whether a patch could be about line `at`: code, with code around it."""
    near = lines[max(0, at - reach) : at + reach + 1]
    text = lines[at].text
    if len(near) < 2 * reach + 1 or not distinctive(text) or text.lstrip().startswith((b"#", b"//", b"*")):
        return False
    return sum(distinctive(line.text) for line in near) >= 3


def insertion(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    blanks = indent(lines[at + 1].text) if lines[at + 1].text.strip() else indent(lines[at].text)
    bodies = [
        [b"check_state(%s, other_%s);" % (mark, mark)],
        [b"if (%s_enabled()) {" % mark, b"  report_%s(status);" % mark, b"}"],
        [b"auto result_%s = compute(%s);" % (mark, mark), b"record(result_%s);" % mark],
        [b"try_%s();" % mark, b"// keeps %s alive" % mark, b"hold(%s);" % mark, b"finish_%s();" % mark],
    ]
    body = dice.choice(bodies)
    added = tuple(Line(blanks + text + b"\n") for text in body)
    return Change(lines[at].key, lines[at + 1].key, (), added, mark)


def replacement(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    """Change a word of line `at`, perhaps adding a line as well."""
    words = list(_WORD.finditer(lines[at].text))
    word = dice.choice(words)
    text = lines[at].text[: word.start()] + mark + b"_" + lines[at].text[word.start() :]
    added = [Line(text)]
    if dice.random() < 0.4:
        added.append(Line(indent(lines[at].text) + b"note_%s();\n" % mark))
    return Change(lines[at - 1].key, lines[at + 1].key, (lines[at].key,), tuple(added), mark)


def rewrite(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    count = dice.randint(2, 3)
    blanks = indent(lines[at].text)
    body = (b"guarded_call(%s, [&] {" % mark, b"  return run_%s();" % mark, b"}); // " + mark)
    added = tuple(Line(blanks + text + b"\n") for text in body)
    keys = tuple(line.key for line in lines[at : at + count])
    return Change(lines[at - 1].key, lines[at + count].key, keys, added, mark)


KINDS: tuple[Callable[[Sequence[Line], int, bytes, random.Random], Change], ...] = (
    insertion,
    insertion,
    replacement,
    rewrite,
)
