"""`bench verify`: time of checking every claim about the wheels of a build, building each again."""

from __future__ import annotations

from pathlib import Path

from build.bench.figures import Figure, of_samples
from build.bench.overlay import built, child
from build.console import step

#: What the project promises for two cores, downloads excluded.
SECONDS = 120.0


def measure(release: str, dist: Path, source: Path | None) -> list[Figure]:
    """Verify both wheels of a build once, each in a process of its own, start of Python included."""
    made, figures = built(release, dist), list[Figure]()
    code = "import sys; from build.cli import run; sys.exit(run())"
    more = ["--source", str(source)] if source else []
    for name, item in (("patched", made.patched), ("overlay", made.overlay)):
        step(f"verifying {item.name}")
        taken = child(code, "verify", str(dist / release / item.name), *more)
        figures.append(of_samples(f"verify the {name} wheel", [taken.seconds], SECONDS, "s"))
        # Compiling uses both cores.
        figures.append(of_samples("processor time of that", [taken.cpu], 2 * SECONDS, "s"))
    return figures
