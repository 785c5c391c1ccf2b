"""What a port did, as data; rendered for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Group
from rich.text import Text

from build.porting.engine import PatchPort, PatchState
from build.series.show import LEGEND, STYLES, legend, verdict_table
from build.series.verdicts import HunkVerdict, Method, Verdict

_STATE_STYLE = {PatchState.PORTED: "green", PatchState.UNNEEDED: "cyan", PatchState.NEEDS_HUMAN: "bold red"}


class PatchReport(msgspec.Struct, frozen=True):
    """One patch: what became of it, the file it was written to (empty if none), its verdicts."""

    name: str
    state: PatchState
    written: str
    verdicts: tuple[HunkVerdict, ...]
    notes: tuple[str, ...] = ()


class ProbeReport(msgspec.Struct, frozen=True):
    """One probe after a port: whether it still fails on the stock wheel, and passes on the patched one."""

    name: str
    fails_on_stock: bool
    passes_on_patched: bool


class PortReport(msgspec.Struct, frozen=True):
    """A port.

    Attributes:
        series: what was ported, a series or a folder.
        old: the tree the patches were for; `new` the tree they are for now.
        patches: one per patch.
        skipped: patches that were not tried, each with the reason.
        checkout: where a person has to edit; empty if nowhere.
        edit: the files to edit there.
        probes: what the probes said, when the port was built.
    """

    series: str
    old: str
    new: str
    patches: tuple[PatchReport, ...]
    skipped: tuple[str, ...] = ()
    checkout: str = ""
    edit: tuple[str, ...] = ()
    probes: tuple[ProbeReport, ...] = ()

    @property
    def verdicts(self) -> tuple[HunkVerdict, ...]:
        """All verdicts."""
        return tuple(item for patch in self.patches for item in patch.verdicts)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to a human."""
        return all(patch.state is not PatchState.NEEDS_HUMAN for patch in self.patches)


def report_of(port: PatchPort, written: str) -> PatchReport:
    """Return the report of one patch."""
    return PatchReport(port.patch.name, port.state, written, port.verdicts, port.notes)


def to_json(report: PortReport) -> bytes:
    """Return the report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def from_json(data: bytes) -> PortReport:
    """Read a report back.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(data, type=PortReport)


def summary(verdicts: Sequence[HunkVerdict]) -> str:
    """Return the counts, e.g. `12 hunks: 8 clean, 4 offset`."""
    decided = [item for item in verdicts if item.method is Method.HUMAN and not item.verdict.needs_human]
    counts = Counter(item.verdict for item in verdicts if item not in decided)
    parts = [f"{counts[word]} {word.value}" for word in Verdict if counts[word]]
    parts += [f"{len(decided)} decided by hand"] if decided else []
    noun = "hunk" if len(verdicts) == 1 else "hunks"
    return f"{len(verdicts)} {noun}: {', '.join(parts)}" if parts else "no hunks"


def to_terminal(report: PortReport) -> Group:
    """Return the report as a table with its legend and the patches' states."""
    lines = Text()
    for patch in report.patches:
        lines.append(f"{patch.name}: ")
        lines.append(patch.state.value, style=_STATE_STYLE[patch.state])
        lines.append("".join(f"\n   note: {note}" for note in patch.notes) + "\n")
    lines.append("".join(f"skipped: {item}\n" for item in report.skipped))
    lines.append(summary(report.verdicts))
    table = verdict_table(report.verdicts, f"{report.series}: {report.old} → {report.new}")
    return Group(table, Text(legend(report.verdicts), style="dim"), lines)


def to_markdown(report: PortReport) -> bytes:
    """Return the report as Markdown."""
    out = [f"# {report.series}: {report.old} → {report.new}", "", summary(report.verdicts) + ".", ""]
    out += ["| patch | state | file |", "|---|---|---|"]
    out += [f"| `{p.name}` | {p.state.value} | {f'`{p.written}`' if p.written else ''} |" for p in report.patches]
    out += [f"- not tried: {item}" for item in report.skipped]
    for patch in report.patches:
        out += ["", f"## {patch.name}", ""]
        out += [f"Note: {note}" for note in patch.notes]
        out += ["| file | hunk | line | verdict | carried by | evidence |", "|---|---|---|---|---|---|"]
        out += [_row(item) for item in patch.verdicts]
    if report.probes:
        out += ["", "## Probes", "", "| probe | stock wheel | patched wheel |", "|---|---|---|"]
        out += [
            f"| {p.name} | {_stock(p)} | {'passes' if p.passes_on_patched else '**fails**'} |" for p in report.probes
        ]
    if report.edit:
        out += ["", "## To edit", "", *(f"- `{path}`" for path in report.edit)]
    seen = {item.verdict for item in report.verdicts}
    out += ["", "Legend: " + "; ".join(f"*{w.value}*: {LEGEND[w]}" for w in STYLES if w in seen) + "."]
    return ("\n".join(out) + "\n").encode("utf-8", "replace")


def _stock(probe: ProbeReport) -> str:
    return "fails, so the patch is needed" if probe.fails_on_stock else "**passes: the defect is gone upstream**"


def _row(item: HunkVerdict) -> str:
    path = f"`{item.path}`" + (f" → `{item.new_path}`" if item.new_path else "")
    word = f"**{item.verdict.value}**" if item.verdict.needs_human else item.verdict.value
    word += f" {item.offset:+d}" if item.offset else ""
    evidence = item.evidence.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
    return f"| {path} | {item.hunk or '-'} | {item.line or '-'} | {word} | {item.method.value} | {evidence} |"
