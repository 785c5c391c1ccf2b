"""Port a folder of patches: any series, between any two trees."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from build.errors import UsageError
from build.porting import Action
from build.porting.engine import PatchState
from build.porting.quilt import load_folder
from build.porting.report import PortReport, exported, report_of, reports
from build.porting.session import Outcome, Session
from build.porting.trees import open_tree
from build.series.commits import Exported, write_series
from build.series.manifest import JSON, MARKDOWN


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
        session = Session(load_folder(request.patches, old.entries), old, new, request.state)
        outcome = session.run(request.action)
        ports = [item.port for item in outcome.committed]
        names = [port.patch.name if port.state is PatchState.PORTED else "" for port in ports]
        report = report_of(outcome, request.patches.name, old.label, new.label, names)
        report = structs.replace(report, checkout=str(outcome.checkout or ""))
        write_series(request.out, [*_files(outcome, names), *reports(report)])
    if report.complete:
        session.close()
    return report


def check_out(out: Path) -> None:
    """Raise UsageError for a folder that holds anything but an earlier port."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / JSON).is_file())):
        raise UsageError(f"{out} exists and holds files of others", remedy="give another --out, or empty it")


def _files(outcome: Outcome, names: Sequence[str]) -> list[Exported]:
    """Return the ported patches with a `series` file; nothing if all patches need a human."""
    found = exported(outcome, names)
    if outcome.checkout and not found:
        return []
    ports = (item.port for item in outcome.committed)
    stuck = [port for port in ports if port.state in {PatchState.NEEDS_HUMAN, PatchState.UNREADABLE}]
    lines = [f"# {port.patch.name} {port.state.value}: see {MARKDOWN}\n" for port in stuck]
    lines += [f"{item.name}\n" for item in found]
    return [*found, Exported("series", "".join(lines).encode())]
