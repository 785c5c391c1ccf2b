"""The report of a port, as data; rendered for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Group
from rich.text import Text

from build.console import counted
from build.pages import render
from build.porting.engine import PatchState
from build.porting.session import Outcome
from build.porting.session import render as rendered
from build.record import encode
from build.series.manifest import JSON, MARKDOWN
from build.series.model import HunkVerdict, Method, Verdict
from build.series.show import LOOKS, legend, rows, verdict_table

#: The result of a probe without defects, and the patch names for which both wheels must give the same result.
PASSED = "ok"
SAME = ("unchanged", "baseline")
_STATE_STYLE = {PatchState.PORTED: "green", PatchState.UNNEEDED: "cyan"}


class PatchReport(msgspec.Struct, frozen=True):
    """One patch: what became of it, the file it was written to (empty if none), its verdicts."""

    name: str
    state: PatchState
    written: str
    verdicts: tuple[HunkVerdict, ...]
    notes: tuple[str, ...] = ()


class ProbeReport(msgspec.Struct, frozen=True):
    """One probe after a port.

    Attributes:
        name: the probe.
        patch: the patch whose defect it shows; `unchanged` or `baseline` where stock and patched must do the same.
        stock: what it did on the stock wheel; empty if it was not run there.
        patched: what it did on the patched wheels; where they differ, the result that is not `wanted`.
    """

    name: str
    patch: str
    stock: str
    patched: str

    @property
    def of_patch(self) -> bool:
        return self.patch not in SAME

    @property
    def fails_on_stock(self) -> bool:
        return self.of_patch and self.stock not in ("", PASSED)

    @property
    def wanted(self) -> str:
        """The result it must have on a patched wheel; if stock was not run, any result is accepted for `SAME`."""
        return PASSED if self.of_patch else self.stock or self.patched

    @property
    def passes_on_patched(self) -> bool:
        return self.patched == self.wanted


def not_needed(probes: Sequence[ProbeReport]) -> tuple[str, ...]:
    """Return the patches whose probes all passed on the stock wheel: the release may not need them."""
    patches = dict.fromkeys(probe.patch for probe in probes if probe.of_patch and probe.stock)
    needed = {probe.patch for probe in probes if probe.fails_on_stock}
    return tuple(patch for patch in patches if patch not in needed)


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
        return tuple(item for patch in self.patches for item in patch.verdicts)

    @property
    def unreadable(self) -> tuple[PatchReport, ...]:
        return tuple(patch for patch in self.patches if patch.state is PatchState.UNREADABLE)

    @property
    def complete(self) -> bool:
        """Return whether no patch waits for a person; those that cannot be read do not."""
        return all(patch.state is not PatchState.NEEDS_HUMAN for patch in self.patches)


def report_of(outcome: Outcome, series: str, old: str, new: str, names: Sequence[str]) -> PortReport:
    """Return the report of a port; `names` are the files that the patches were written to, empty for none."""
    ports = zip((item.port for item in outcome.committed), names, strict=True)
    patches = (PatchReport(port.patch.name, port.state, name, port.verdicts, port.notes) for port, name in ports)
    return PortReport(series, old, new, tuple(patches), edit=outcome.edit)


def exported(outcome: Outcome, names: Sequence[str]) -> dict[str, bytes]:
    """Return the ported patches to be written; see `report_of`."""
    pairs = zip(outcome.committed, names, strict=True)
    return {name: rendered(outcome.git, item) for item, name in pairs if name}


def reports(report: PortReport) -> dict[str, bytes]:
    return {MARKDOWN: to_markdown(report), JSON: encode(report)}


def summary(verdicts: Sequence[HunkVerdict]) -> str:
    decided = [item for item in verdicts if item.method is Method.HUMAN and not item.verdict.needs_human]
    counts = Counter(item.verdict for item in verdicts if item not in decided)
    parts = [f"{counts[word]} {word.value}" for word in Verdict if counts[word]]
    parts += [f"{len(decided)} decided by hand"] if decided else []
    return f"{counted(len(verdicts), 'hunk')}: {', '.join(parts)}" if parts else "no hunks"


def to_terminal(report: PortReport) -> Group:
    lines = Text()
    for patch in report.patches:
        lines.append(f"{patch.name}: ")
        lines.append(patch.state.value, style=_STATE_STYLE.get(patch.state, "bold red"))
        lines.append("".join(f"\n   note: {note}" for note in patch.notes) + "\n")
    lines.append("".join(f"skipped: {item}\n" for item in report.skipped))
    lines.append(summary(report.verdicts))
    table = verdict_table(report.verdicts, f"{report.series}: {report.old} → {report.new}")
    return Group(table, Text(legend(report.verdicts), style="dim"), lines)


def to_markdown(report: PortReport) -> bytes:
    seen = {item.verdict for item in report.verdicts}
    patches = dict.fromkeys(item.patch for item in report.probes)
    text = render(
        "port.md",
        report=report,
        summary=summary(report.verdicts),
        rows=rows,
        by_patch={name: [item for item in report.probes if item.patch == name] for name in patches},
        not_needed=not_needed(report.probes),
        seen={word: look for word, look in LOOKS.items() if word in seen},
    )
    return text.encode("utf-8", "replace")
