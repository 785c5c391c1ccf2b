"""``m8d-post-setup``: pymultiworld's command that patched PyTorch's files. Here nothing is patched: it checks and
says so."""

from __future__ import annotations

import importlib
import sys

from multiworld.version import VERSION


def check() -> list[str]:
    """Return what is wrong with the installation, one line each; empty if nothing is."""
    try:
        dist = importlib.import_module("torch.distributed")
    except ImportError as error:
        return [f"torch cannot be imported: {error}. Install it: multiworld does not choose a torch for you."]
    problems = []
    if not dist.is_available():
        problems.append("this torch is built without torch.distributed. Install another build.")
    elif getattr(dist, "_worlds", None) is not None:
        problems.append("this torch was patched by pymultiworld. It works, but a clean install of torch is safer.")
    return problems


def main() -> int:
    problems = check()
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - the command's output
    if not problems:
        torch = importlib.import_module("torch")
        print(f"multiworld {VERSION} on torch {torch.__version__}: nothing to patch, ready to use.")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
