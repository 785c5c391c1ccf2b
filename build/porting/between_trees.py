"""Port a folder of patches: any series, between any two trees."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from build.errors import PatchError, UsageError
from build.porting import Action
from build.porting.engine import PatchState
from build.porting.report import PortReport, exported, report_of, reports
from build.porting.session import Outcome, Session
from build.porting.trees import open_tree
from build.series.commits import write_series
from build.series.manifest import JSON, MARKDOWN
from build.series.model import ChangeKind, PatchFile
from build.series.patchfile import parse_raw, restrip
from build.series.reader import strip


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
        write_series(request.out, _files(outcome, names) | reports(report))
    if report.complete:
        session.close()
    return report


def check_out(out: Path) -> None:
    """Raise UsageError for a folder that holds anything but an earlier port."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / JSON).is_file())):
        raise UsageError(f"{out} holds files that are not a port's", remedy="give another --out, or empty it")


def _files(outcome: Outcome, names: Sequence[str]) -> dict[str, bytes]:
    """Return the ported patches with a `series` file; nothing if all patches need a human."""
    found = exported(outcome, names)
    if outcome.checkout and not found:
        return {}
    ports = (item.port for item in outcome.committed)
    stuck = [port for port in ports if port.state in {PatchState.NEEDS_HUMAN, PatchState.UNREADABLE}]
    lines = [f"# {port.patch.name} {port.state.value}: see {MARKDOWN}\n" for port in stuck]
    lines += [f"{name}\n" for name in found]
    return found | {"series": "".join(lines).encode()}


#: Leading folders that are tried.
DEPTHS = range(6)
_SUFFIXES = (".patch", ".diff")
_OPTION = re.compile(r"-p(\d+)")


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of a `series` file; `fault` says why its patch cannot be read."""

    name: str
    strip: int | None = None
    fault: str = ""


def load_folder(folder: Path, tree: Container[str]) -> tuple[PatchFile, ...]:
    """Read the patches of a folder in the order of its `series` file (quilt), else by name.

    `tree` has the paths of the tree that the patches are for. It decides the strip level. A patch that is malformed or
    unsafe has no changes and says why (`PatchFile.fault`).

    Raises:
        PatchError: a listed file is missing, or no patch can be read.
        UsageError: the folder does not exist or has no patches.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", remedy="give the folder that holds the patches")
    listed = read_series(folder) or [Listed(path.name) for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    if not listed:
        raise UsageError(f"{folder} holds no patches", cause="neither a series file nor *.patch or *.diff")
    found: list[PatchFile] = []
    known: set[str] = set()
    for item in listed:
        data = _data(folder, item)
        try:
            patch = _parsed(data, item, tree, known)
        except PatchError as error:
            patch = PatchFile(item.name, data, b"", (), fault=": ".join(filter(None, (error.what, error.cause))))
        known |= patch.paths
        found.append(patch)
    if all(patch.fault for patch in found):
        raise PatchError("\n".join(patch.fault for patch in found), remedy="get the patches again, or correct them")
    return tuple(found)


def read_series(folder: Path) -> list[Listed]:
    """Read a folder's `series` file, empty if there is none."""
    path = folder / "series"
    if not path.is_file():
        return []
    listed = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        options = [_OPTION.fullmatch(word) for word in words[1:]]
        fault = ""
        if len(words) > 2 or None in options:
            fault = f"series:{number}: cannot read {line.strip()!r}: only -pN may follow a name"
        level = next((int(match[1]) for match in options if match), None)
        listed.append(Listed(words[0], level, fault))
    return listed


def _data(folder: Path, item: Listed) -> bytes:
    path = folder / item.name
    if ".." in Path(item.name).parts or path.is_absolute() != folder.is_absolute():
        raise PatchError(f"series names {item.name!r}, which is outside {folder}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise PatchError(f"cannot read {path}: {error.strerror}", cause="the series file names it") from None


def _parsed(data: bytes, item: Listed, tree: Container[str], known: Container[str]) -> PatchFile:
    if item.fault:
        raise PatchError(item.fault)
    patch = parse_raw(data, item.name)
    return restrip(patch, detect_strip(patch, tree, known) if item.strip is None else item.strip)


def detect_strip(patch: PatchFile, tree: Container[str], known: Container[str] = frozenset()) -> int:
    """Return the strip level at which most of a patch's files exist in `tree`, or in `known` from earlier patches.

    The default is 1, as for git and quilt. `patch` comes from `parse_raw`.
    """
    scores = dict.fromkeys(DEPTHS, 0)
    for depth in DEPTHS:
        for change in patch.changes:
            moved = change.kind in {ChangeKind.RENAMED, ChangeKind.COPIED}
            for raw in change.raw:
                try:
                    path = strip(raw, max(depth - 1, 0) if moved else depth) if raw else ""
                except ValueError:
                    continue
                scores[depth] += path in tree or path in known
    best = max(scores.values())
    return 1 if scores[1] == best else min(depth for depth, hits in scores.items() if hits == best)
