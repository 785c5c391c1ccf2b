"""`bench import`: what `import torch` costs with either form, relative to stock, in fresh processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from build import official, releases
from build.console import progress, step
from build.wheeltest.environments import Form, environment
from docs.bench.figures import Figure, of_ratios
from docs.bench.overlay import Cost, Subject, cost

LIMIT = 1.05
#: The private memory of the process. Pages of libraries do not count: they depend on the state of the page cache.
_PROGRAM = """
import torch
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("RssAnon")))
"""
#: Rounds that are not measured: they fill the page cache and write the bytecode.
WARM_UP = 2


def _import(python: Path) -> Cost:
    """Import torch in a fresh process that sees none of this one's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return cost([python, "-c", _PROGRAM], env=kept, cwd=Path("/"))


_MEASURES: dict[str, Callable[[Cost], float]] = {
    "time": lambda taken: taken.seconds,
    "processor time": lambda taken: taken.cpu,
    "private memory": lambda taken: float(taken.output),
}


def _rounds(pythons: dict[Form, Path], rounds: int) -> dict[Form, list[Cost]]:
    """Import with each form in turn; every round begins with another one."""
    costs: dict[Form, list[Cost]] = {form: [] for form in pythons}
    order = list(pythons)
    with progress() as bar:
        task = bar.add_task("import torch", total=rounds + WARM_UP, unit="rounds")
        for index in range(rounds + WARM_UP):
            turn = index % len(order)
            for form in order[turn:] + order[:turn]:
                taken = _import(pythons[form])
                if index >= WARM_UP:
                    costs[form].append(taken)
            bar.advance(task)
    return costs


def figures(costs: dict[Form, list[Cost]]) -> list[Figure]:
    """Return time, processor time and memory of both forms as multiples of stock's."""
    found = []
    stock = costs[Form.STOCK]
    for form in (Form.PATCHED, Form.OVERLAY):
        for what, of in _MEASURES.items():
            ours, theirs = ([of(item) for item in taken] for taken in (costs[form], stock))
            found.append(of_ratios(f"import torch, {form.value}: {what} relative to stock", ours, theirs, LIMIT))
    return found


def measure(subject: Subject) -> list[Figure]:
    """Measure `import torch` with each form."""
    made = subject.made
    stock = official.fetch_wheel(releases.get(subject.release), made.python)
    wheels = {
        Form.STOCK: [stock],
        Form.PATCHED: [subject.folder / made.patched.name],
        Form.OVERLAY: [stock, subject.folder / made.overlay.name],
    }
    with ExitStack() as stack:
        pythons = {form: stack.enter_context(environment(form, made.python, wheels[form])) for form in wheels}
        step(f"importing torch in {subject.rounds} rounds")
        return figures(_rounds(pythons, subject.rounds))
