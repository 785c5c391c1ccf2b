"""Port a folder of patches: any series, between any two trees."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from build.errors import UsageError
from build.porting import Action
from build.porting.engine import PatchState
from build.porting.quilt import load_folder
from build.porting.report import PortReport, report_of, to_json, to_markdown
from build.porting.session import Committed, Outcome, Session, render
from build.porting.trees import Tree, open_tree
from build.series.commits import Exported, write_series

#: States of patches that are not in a port's folder and should be.
STUCK = (PatchState.NEEDS_HUMAN, PatchState.UNREADABLE)
MARKDOWN, JSON = "PORT.md", "port.json"


@dataclass(frozen=True, slots=True)
class Request:
    """Patches to port, the two trees, and the folder for the result.

    Attributes:
        patches: folder of patches, with or without a `series` file.
        from_tree: the tree they are for: a repository, `PATH@REV` or a plain folder; `to_tree` the wanted one.
        out: folder for the ported patches and the reports; replaced as a whole.
    """

    patches: Path
    from_tree: str
    to_tree: str
    out: Path
    action: Action = Action.START

    @property
    def state(self) -> Path:
        return self.out.with_name(f"{self.out.name}.port")


def port_folder(request: Request) -> PortReport:
    """Port a folder of patches, write what could be ported, and return the report, which is in `out` as well.

    Raises:
        PatchError: no patch can be read; nothing is written.
        SourceError: a tree cannot be read.
        UsageError: `out` is not a port's folder, or there is no port to continue.
    """
    check_out(request.out)
    with tempfile.TemporaryDirectory(prefix="multiworld-trees-") as workplace:
        old = open_tree(request.from_tree, Path(workplace, "old"))
        new = open_tree(request.to_tree, Path(workplace, "new"))
        patches = load_folder(request.patches, old.entries)
        session = Session(patches, old, new, request.state)
        outcome = session.run(request.action)
        report = _report(request, old, new, outcome)
        write_series(request.out, [*_files(outcome), *reports(report)])
    if report.complete:
        session.close()
    return report


def check_out(out: Path) -> None:
    """Raise UsageError for a folder that holds anything but an earlier port."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / JSON).is_file())):
        raise UsageError(
            f"{out} exists and holds files that are not a port's", remedy="give another --out, or empty it"
        )


def reports(report: PortReport) -> list[Exported]:
    return [Exported(MARKDOWN, to_markdown(report)), Exported(JSON, to_json(report))]


def written(item: Committed) -> str:
    return item.port.patch.name if item.port.state is PatchState.PORTED else ""


def _report(request: Request, old: Tree, new: Tree, outcome: Outcome) -> PortReport:
    return PortReport(
        request.patches.name,
        old.label,
        new.label,
        tuple(report_of(item.port, written(item)) for item in outcome.committed),
        checkout=str(outcome.checkout or ""),
        edit=outcome.edit,
    )


def _files(outcome: Outcome) -> list[Exported]:
    """Return the ported patches with a `series` file; nothing if all patches need a human."""
    found = [Exported(written(item), render(outcome.git, item)) for item in outcome.committed if written(item)]
    if outcome.checkout and not found:
        return []
    ports = (item.port for item in outcome.committed if item.port.state in STUCK)
    open_ones = [f"# {port.patch.name} {port.state.value}: see {MARKDOWN}\n" for port in ports]
    lines = [*open_ones, *(f"{item.name}\n" for item in found)]
    return [*found, Exported("series", "".join(lines).encode())]
