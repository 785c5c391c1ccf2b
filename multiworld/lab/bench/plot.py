"""The plot of a report: times of worlds over those of plain torch.distributed, by size."""

from __future__ import annotations

from pathlib import Path

from multiworld.conflict import INSTALL
from multiworld.errors import InvalidArgument
from multiworld.lab.bench.report import BenchReport, Comparison


def check(path: Path) -> None:
    """Before anything is measured, raise ``InvalidArgument`` unless a plot can be written to ``path``."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InvalidArgument(what="a plot needs matplotlib", remedy=INSTALL.format(extra="[plot]")) from None
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in known:
        raise InvalidArgument(
            what=f"{path.name} has no known ending", remedy=f"choose one of {', '.join(sorted(known))}"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(
            what=f"{path.absolute().parent} is not a folder", remedy="make the folder first, or choose another"
        )


def draw(report: BenchReport, path: Path) -> None:
    """Write a plot of the ratios with their intervals; raises as ``check``, or if there is nothing to plot."""
    check(path)
    from matplotlib.figure import Figure

    if not report.comparisons:
        raise InvalidArgument(what="the report has nothing to plot", cause="the part 'ratios' was not measured")
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(row.operation for row in report.comparisons if row.nbytes):
        _line(axes, name, [row for row in report.comparisons if row.operation == name])
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="time of a world / time of plain torch.distributed")
    axes.set_title(
        f"torch {report.facts['torch']}, medians of {report.facts['rounds']} interleaved rounds, 95 % intervals"
    )
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    partial = path.with_name(f"{path.stem}.part{path.suffix}")
    figure.savefig(partial)
    partial.replace(path)


def _line(axes: object, name: str, rows: list[Comparison]) -> None:
    middle = [row.ratio.value for row in rows]
    errors = [[row.ratio.value - row.ratio.low for row in rows], [row.ratio.high - row.ratio.value for row in rows]]
    style = "--" if "sync" in name else "-"
    axes.errorbar([row.nbytes for row in rows], middle, yerr=errors, label=name, marker="o", linestyle=style, capsize=3)  # type: ignore[attr-defined]
