"""The edits of a case: what its patch does, as in PyTorch's own history, and what an imagined upstream does."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from build.bench.corpus.model import Change, Line, place
from build.porting.lines import distinctive, indent

_WORD = re.compile(rb"[A-Za-z_]\w+")


def usable(lines: Sequence[Line], at: int, reach: int = 4) -> bool:
    """Whether a patch could change line `at`: it is code, with code around it."""
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


Kind = Callable[[Sequence[Line], int, bytes, random.Random], Change]
KINDS: tuple[Kind, ...] = (insertion, insertion, replacement, rewrite)
_LONG_WORD = re.compile(rb"[A-Za-z_]\w{3,}")
#: Lines kept free of unrelated edits around a hunk.
CALM = 9


def edited(line: Line, dice: random.Random) -> Line:
    """Return a line with one word changed, as a renamed variable or an added qualifier would."""
    words = list(_LONG_WORD.finditer(line.text))
    if not words:
        return Line(line.text.rstrip(b"\n") + b" // upstream\n", line.key)
    word = dice.choice(words)
    new = dice.choice([word[0] + b"_v2", b"new_" + word[0], b"detail::" + word[0]])
    return Line(line.text[: word.start()] + new + line.text[word.end() :], line.key)


def noise(lines: Sequence[Line], keys: set[int], dice: random.Random) -> list[Line]:
    """Return `lines` with edits far from the lines `keys`: this shifts everything behind them."""
    result = list(lines)
    for _ in range(dice.randint(2, 6)):
        calm = {n for key in keys for n in _around(result, key)}
        free = [n for n in range(1, len(result) - 1) if n not in calm and result[n].text.strip()]
        if not free:
            break
        at = dice.choice(free)
        blanks = indent(result[at].text)
        kind = dice.random()
        if kind < 0.45:
            count = dice.randint(1, 12)
            stamp = dice.randrange(10**6)
            fresh = [Line(blanks + b"upstream_%d_%d(); // added\n" % (stamp, n)) for n in range(count)]
            result[at:at] = fresh
        elif kind < 0.7:
            result[at] = edited(result[at], dice)
        else:
            end = min(at + dice.randint(1, 4), len(result) - 1)
            # A line that opens something at the top level stays: code does not fall into the function above.
            if not any(n in calm or _opens(result[n].text) for n in range(at, end)):
                del result[at:end]
    return result


def _around(lines: Sequence[Line], key: int) -> range:
    try:
        at = place(lines, key)
    except ValueError:
        return range(0)
    return range(at - CALM, at + CALM + 1)


def block(lines: Sequence[Line], at: int) -> tuple[int, int] | None:
    """Return the top-level definition around line `at` (start, end excluded), None if there is no clear one."""
    start = at
    while start > 0 and not _opens(lines[start].text):
        start -= 1
    end = at + 1
    while end < len(lines) and not _opens(lines[end].text):
        end += 1
    while end > start and not lines[end - 1].text.strip():
        end -= 1
    if not 12 <= end - start <= 120 or start == 0 or not distinctive(lines[start].text):
        return None
    return (start, end) if start + 4 < at < end - 4 else None


def _opens(text: bytes) -> bool:
    first = text[:1]
    return first.isalpha() and not text.startswith((b"public:", b"private:", b"protected:"))


def reindented(lines: Sequence[Line], start: int, end: int, blanks: bytes) -> list[Line]:
    outer = indent(lines[start].text)
    inner = [Line(blanks + line.text if line.text.strip() else line.text, line.key) for line in lines[start:end]]
    head, tail = Line(outer + b"if (upstream_feature_enabled()) {\n"), Line(outer + b"} // upstream feature\n")
    return [*lines[:start], head, *inner, tail, *lines[end:]]


def moved(lines: Sequence[Line], start: int, end: int, dice: random.Random) -> list[Line] | None:
    """Return `lines` with the block `start..end` before another top-level definition, far away."""
    rest = [*lines[:start], *lines[end:]]
    spots = [n for n in range(2, len(rest)) if _opens(rest[n].text) and not rest[n - 1].text.strip()]
    spots = [n for n in spots if abs(n - start) > max(60, end - start)]
    if not spots:
        return None
    at = dice.choice(spots)
    return [*rest[:at], *lines[start:end], Line(b"\n"), *rest[at:]]
