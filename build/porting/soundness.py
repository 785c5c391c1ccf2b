"""Check that a ported file can still be read, closes what it opens, and defines and calls as the patch meant it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from build.porting import brackets
from build.porting.alignment import Alignment
from build.porting.calls import judged
from build.porting.definitions import repeated
from build.porting.grammar import (
    Language,
    Span,
    UnreadableError,
    compiles,
    form,
    forms,
    language_of,
    languages_of,
    parse_like,
    read,
    require_readable,
)
from build.porting.groups import Edit, Placed, apply_edits
from build.porting.hunks import HunkResult
from build.porting.preprocessor import variants
from build.porting.reparse import Like

#: Largest file in bytes in which definitions and calls are compared: they take more time than the syntax.
LARGEST = 1 << 20
#: Most hunks of a file that are tried one by one when the result is not sound.
MOST = 16


@dataclass(frozen=True, slots=True)
class Change:
    """A file before and after some edits, which are lines of `before`."""

    before: bytes
    after: bytes
    old: tuple[Span, ...]
    new: tuple[Span, ...]


def change(lines: Sequence[bytes], edits: Sequence[Edit]) -> Change:
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    new, shift = [], 0
    for edit in ordered:
        new.append(Span(edit.start + shift, edit.start + shift + len(edit.lines)))
        shift += len(edit.lines) - (edit.end - edit.start)
    old = tuple(Span(edit.start, edit.end) for edit in ordered)
    return Change(b"".join(lines), b"".join(apply_edits(lines, ordered)), old, tuple(new))


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        faults: what is wrong in the file after the edits and was not before; what the patch does in its own tree as
            well is none.
        unread: why the grammar could not tell, empty if it could.
        broken: the file does not parse, or its brackets do not match; what else is wrong was not looked for.
    """

    faults: tuple[str, ...] = ()
    unread: str = ""
    broken: bool = False

    @property
    def badness(self) -> tuple[bool, int]:
        return self.broken, len(self.faults)


def check(path: str, port: Change, own: Change) -> Checked:
    """Check the edits of a file of the new tree (`port`); `own` are the same hunks in the tree that they are for."""
    try:
        language = language_of(path, port.before)
        if language is None or port.before == port.after:
            return Checked()
        return _check(language, port, own)
    except UnreadableError as error:
        return Checked(unread=f"not read as code: {error}")


def lost(path: str, before: bytes, after: bytes) -> str:
    """Return why a file that could be read is one that cannot be, in words; empty if it can, or could not before."""
    language = next(iter(languages_of(path)), None)
    try:
        if language is None or before == after:
            return ""
        if language is Language.PYTHON:
            return "" if compiles(before) or not (why := compiles(after)) else f"it is not valid Python: {why}"
        numbers = range(min(forms(language, before), forms(language, after)))
        sound = [number for number in numbers if not read(language, form(language, before, number)).errors]
        errors = [read(language, form(language, after, number)).errors for number in sound]
    except UnreadableError:
        return ""
    found = next((spans[0] for spans in errors if spans), None)
    return f"it does not parse as {language.value}: {_lines(found)}" if found else ""


def review(
    path: str, alignment: Alignment, located: Sequence[Placed | None], results: Sequence[HunkResult]
) -> tuple[dict[int, str], str]:
    """Return the hunks (by index) that would break the file, each with the reason, and what could not be read.

    Those are the hunks without which less is wrong; if no single one is, all.
    """
    placed = [number for number, result in enumerate(results) if result.edits]
    if not path or not placed or alignment.base == alignment.ours:
        return {}, ""
    own = change(alignment.base, [Edit(g.start, g.end, g.added) for item in located if item for g in item.groups])

    def without(*left_out: int) -> Checked:
        edits = [edit for number in placed if number not in left_out for edit in results[number].edits]
        return check(path, change(alignment.ours, edits), own)

    whole = without()
    if not whole.faults:
        return {}, whole.unread
    alone = placed if len(placed) <= MOST else []
    guilty = [number for number in alone if without(number).badness < whole.badness]
    reason = "; ".join(whole.faults)
    return {
        number: "; ".join(part for part in (reason, results[number].evidence) if part) for number in guilty or placed
    }, whole.unread


def _check(language: Language, port: Change, own: Change) -> Checked:
    if language is Language.PYTHON and not compiles(port.before):
        if why := _compiled(port, own):
            return Checked((f"the result is not valid Python: {why}",), broken=True)
        return Checked(_meaning(language, port, own))
    why = brackets.changed(port.before, port.after) if language.braces else ""
    if why and why != brackets.changed(own.before, own.after):
        return Checked((f"the result has {why}",), broken=True)
    made = _made(language, port)
    if made.errors and not _excused(language, own):
        return Checked((f"the result does not parse as {language.value}: {_lines(made.errors[0])}",), broken=True)
    note = f"the {language.value} grammar cannot read {_lines(made.unread[0])} of it" if made.unread else ""
    return Checked(_meaning(language, port, own), note)


def _compiled(port: Change, own: Change) -> str:
    why = compiles(port.after)
    return "" if why and not compiles(own.before) and compiles(own.after) else why


@dataclass(frozen=True, slots=True)
class _Syntax:
    """Errors that a change made, and those from before, around it, for which one cannot tell."""

    errors: tuple[Span, ...]
    unread: tuple[Span, ...]


def _made(language: Language, change: Change) -> _Syntax:
    errors: list[Span] = []
    unread: list[Span] = []
    for number in _forms(language, change):
        after = read(language, form(language, change.after, number))
        if not after.errors:
            continue
        before = read(language, _before(language, change, number))
        if not before.errors:
            errors += after.errors
            continue
        for place, (was, now) in enumerate(zip(change.old, change.new, strict=True)):
            around = before.around(was)
            known = before.broken(around)
            unread += known
            if not known:
                moved = now.start - was.start
                whole = Span(min(around.start + moved, now.start), max(_moved(change, place, around.end), now.end))
                errors += after.broken(after.around(whole))
    return _Syntax(tuple(errors), tuple(unread))


def _before(language: Language, change: Change, number: int) -> bytes:
    """Return a form of the file before the edits; it is parsed by the tree of that after them, if that is kept."""
    was, now = (form(language, data, number) for data in (change.before, change.after))
    spans = ([(span.start, span.end) for span in side] for side in (change.new, change.old))
    parse_like(language, was, Like(now, *spans))
    return was


def _moved(change: Change, place: int, line: int) -> int:
    """Return where a line behind the edit `place` went."""
    passed = [n for n in range(place, len(change.old)) if change.old[n].end <= line]
    return line + (change.new[passed[-1]].end - change.old[passed[-1]].end if passed else 0)


@lru_cache(maxsize=8)
def _forms(language: Language, change: Change) -> range:
    """Return which forms of a file a grammar is given: in C and C++ only those variants that show the edits."""
    require_readable(change.before, change.after)
    if all(_first_shows(language, *side) for side in ((change.after, change.new), (change.before, change.old))):
        return range(1)
    return range(max(forms(language, data) for data in (change.before, change.after)))


def _first_shows(language: Language, data: bytes, spans: Sequence[Span]) -> bool:
    lines = _shown(data, spans)
    return not lines or forms(language, data) == 1 or _shown(variants(data)[0].plain, spans) == lines


def _shown(code: bytes, spans: Sequence[Span]) -> int:
    """Return how many lines of code `spans` have; directives do not count."""
    lines = code.split(b"\n")
    return sum(
        bool(line.strip()) and not line.lstrip().startswith(b"#")
        for span in spans
        for line in lines[span.start : span.end]
    )


def _excused(language: Language, own: Change) -> bool:
    """Whether the grammar cannot read the patch in its own tree either: it may use a macro."""
    if _made(language, own).errors:
        return True
    readings = [read(language, form(language, own.after, number)) for number in _forms(language, own)]
    return any(reading.broken(reading.around(span)) for reading in readings for span in own.new)


def _lines(span: Span) -> str:
    return f"line {span.start + 1}" if span.end - span.start < 2 else f"lines {span.start + 1} to {span.end}"


def _meaning(language: Language, port: Change, own: Change) -> tuple[str, ...]:
    """Return what is defined twice, and which calls have a wrong number of arguments."""
    if max(map(len, (port.after, own.after))) > LARGEST:
        return ()
    doubled = _doubled(language, port)
    called = _called(language, port)
    if doubled:
        doubled = {name: count for name, count in doubled.items() if name not in _doubled(language, own)}
    if any(called.values()):
        fits = {name for name, why in _called(language, own).items() if not why}
        called = {name: why for name, why in called.items() if name in fits}
    return (
        *(f"{name} would be there {count} times" for name, count in doubled.items()),
        *(why for why in called.values() if why),
    )


def _doubled(language: Language, change: Change) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in _forms(language, change):
        now = repeated(language, form(language, change.after, number), change.new)
        known = repeated(language, _before(language, change, number), change.old) if now else {}
        found |= {name: count for name, count in now.items() if count > known.get(name, 1)}
    return found


def _called(language: Language, change: Change) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in _forms(language, change):
        for name, why in judged(language, form(language, change.after, number), change.new).items():
            found[name] = found.get(name, "") or why
    return found
