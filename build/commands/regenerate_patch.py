"""`regenerate-patch`: port a series to a release, or any folder of patches between any two trees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from build import paths
from build.console import console, note, step
from build.errors import NeedsHumanError, PatchError, UsageError
from build.porting import Action

# Imported where they are used: the command's help does not wait for the engine.
if TYPE_CHECKING:
    from build.porting.between_releases import Request
    from build.porting.report import PortReport
    from build.series.model import HunkVerdict


def regenerate_patch(
    wanted: Annotated[str, typer.Argument(metavar="RELEASE", help="the PyTorch release to port to")] = "",
    origin: Annotated[str, typer.Option("--from", help="release to start from, default the nearest")] = "",
    series: Annotated[str, typer.Option(help="which series")] = "nccl",
    source: Annotated[str, typer.Option(help="tree of RELEASE: PATH, PATH@REV; default found")] = "",
    from_source: Annotated[str, typer.Option(help="tree of the release to start from, likewise")] = "",
    patches: Annotated[Path | None, typer.Option(help="a folder of patches instead of a series")] = None,
    from_tree: Annotated[str, typer.Option(help="tree the folder's patches are for: PATH, PATH@REV")] = "",
    to_tree: Annotated[str, typer.Option(help="tree they are wanted for")] = "",
    out: Annotated[Path | None, typer.Option(help="folder for the ported patches")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="take up the edited checkout")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="with --continue: leave the open hunks out")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="give the waiting port up")] = False,
    again: Annotated[bool, typer.Option("--again", help="port although RELEASE has its patches")] = False,
    build: Annotated[bool, typer.Option("--build", help="then build RELEASE and run its probes")] = False,
) -> None:
    """Port patches hunk by hunk; the report gives the reason for each. Exit status 0: ported, 20: needs a human."""
    action = _action(go_on=go_on, drop=drop, abort=abort)
    if patches is not None:
        _folder(patches, from_tree, to_tree, out, action)
        return
    if not wanted:
        remedy = "give a RELEASE, or --patches DIR --from-tree A --to-tree B --out DIR"
        raise UsageError("a release or a folder of patches is missing", remedy=remedy)
    from build.porting import between_releases

    request = between_releases.Request(wanted, series, origin, from_source, source, action, again)
    with paths.locked(request.state, f"the port of {series} to {wanted}"):
        if action is Action.ABORT:
            between_releases.give_up(request.folder, wanted, request.state)
            step(f"the port of {series} to {wanted} is given up")
            return
        report = between_releases.port_release(request)
        _show(report, request.folder / wanted, request.state, f"regenerate-patch {wanted} --series {series}")
        if build:  # under the lock: it writes the reports again
            _build(report, request, Path(source) if source else None)


def _action(*, go_on: bool, drop: bool, abort: bool) -> Action:
    if abort and (go_on or drop):
        raise UsageError("--abort and --continue exclude each other")
    if drop and not go_on:
        raise UsageError("--drop goes with --continue")
    if abort:
        return Action.ABORT
    if drop:
        return Action.DROP
    return Action.CONTINUE if go_on else Action.START


def _folder(patches: Path, from_tree: str, to_tree: str, out: Path | None, action: Action) -> None:
    from build.porting import between_trees
    from build.porting.session import discard

    if out is None:
        raise UsageError("--patches needs --out", remedy="give the folder for the ported patches")
    request = between_trees.Request(patches, from_tree, to_tree, out.absolute(), action)
    with paths.locked(request.state, f"the port to {out}", leave=False):
        if action is Action.ABORT:
            discard(request.state)
            step("the port is given up")
            return
        if not from_tree or not to_tree:
            raise UsageError("--patches needs --from-tree and --to-tree")
        _show(between_trees.port_folder(request), request.out, request.state, "the same command")


def _show(report: PortReport, out: Path, state: Path, again: str) -> None:
    """Print a report; an error with its own exit status if hunks are left, or patches are missing or unreadable."""
    from build.porting.report import to_terminal
    from build.series.manifest import JSON, MARKDOWN
    from build.series.show import rows

    console.print(to_terminal(report))
    step(f"report: {out / MARKDOWN} and {JSON}")
    if not report.complete:
        stuck = [item for item in report.verdicts if item.verdict.needs_human]
        raise NeedsHumanError(
            f"hunks of {report.series} need a human: {', '.join(report.edit)}",
            cause="\n".join(_line(*row) for row in rows(stuck)),
            remedy=f"edit {', '.join(report.edit)} in {state / 'checkout'} (conflicts are marked as diff3 does),\n"
            f"then {again} --continue; --continue --drop leaves the hunks out, --abort gives up",
        )
    if report.unreadable:
        what = f"{len(report.unreadable)} of {len(report.patches)} patches cannot be read; the others are ported"
        notes = "\n".join(note for patch in report.unreadable for note in patch.notes)
        raise PatchError(what, cause=notes, remedy="get these again, or correct the lines, and run the same command")
    if report.skipped:
        what = f"{report.series} is not complete: {'; '.join(report.skipped)}"
        raise NeedsHumanError(what, remedy=f"write the missing patches into {out} and enter them in the manifest")


def _line(item: HunkVerdict, hunks: str) -> str:
    where = f"hunks {hunks}" if "-" in hunks[1:] else f"hunk {hunks}"
    return f"{item.patch}: {item.path}{f' {where}' if item.hunk else ''}: {item.evidence}"


def _build(report: PortReport, request: Request, source: Path | None) -> None:
    """Build what was ported and show the probes' results; ToolError if the build or a probe failed."""
    from build.porting.prove import prove

    found, failure = prove(report, request.folder / request.release, source)
    failing = sum(probe.fails_on_stock for probe in found.probes)
    step(f"{len(found.probes)} probes: {failing} show their defect on the stock wheel")
    for probe in found.probes:
        if not probe.passes_on_patched:
            note(f"{probe.name} on the patched wheels: {probe.patched or 'no result'}, wanted {probe.wanted}")
    if failure is not None:
        raise failure
    step(f"{request.series} for {request.release} is built and probed: raise `verified` in its manifest")
