"""`lint-patches`: check every series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build import releases, sources
from build.console import console, step, table
from build.errors import PatchError, UsageError
from build.git import split_revision
from build.series import manifest as manifests
from build.series.lint import Finding, FindSource, Source, lint_series
from build.sources.acquire import cached_folder
from build.sources.tree import TreePurpose


def lint_patches(
    series: Annotated[list[str] | None, typer.Argument(help="series to check, default all")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="RELEASE=PATH: where a release's sources are; may be repeated")
    ] = None,
) -> None:
    """Check manifests, coverage and patch files; with sources at hand, apply and export each series again."""
    folders = manifests.folders()
    for name in series or []:
        manifests.folder(name)
    find = _finder(source or [])
    findings: list[Finding] = []
    for name, folder in folders.items():
        if not series or name in series:
            report = lint_series(folder, find)
            step(f"series {name}: {report.files} patches read, {len(report.findings)} findings")
            shown = table("", "release", "applied with zero fuzz, exported to the same bytes")
            for release in report.applied:
                bad = any(f"/{release}" in item.where for item in report.findings)
                shown.add_row(release, "[red]no[/]" if bad else "[green]yes[/]")
            for release in report.not_applied:
                shown.add_row(release, "[dim]not checked: no sources at hand (or findings before)[/]")
            console.print(shown)
            findings += report.findings
    if findings:
        lines = "\n".join(f"{item.where}: {item.what}" for item in findings)
        raise PatchError(f"{len(findings)} findings in the patch series", cause=lines, remedy="correct these files")


def _finder(given: list[str]) -> FindSource:
    named: dict[str, str] = {}
    for item in given:
        release, sign, path = item.partition("=")
        if not sign:
            raise UsageError(f"--source {item!r} is not RELEASE=PATH")
        named[release] = path

    def find(release: str) -> Source | None:
        if release not in releases.load():  # not built here: only what the user names
            path, revision = split_revision(named.get(release, ""))
            return (path, revision or f"v{release}") if release in named else None
        entry = releases.get(release)
        if release in named:
            tree = sources.acquire(entry, Path(named[release]))
            return tree.repo, tree.base
        cached = cached_folder(entry, TreePurpose.OVERLAY)
        return (cached, "HEAD") if cached else None

    return find
