"""``python -m multiworld.switchml``: compile the shim, or run a program whose ``gloo`` groups use the switch."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from multiworld.errors import MultiWorldError
from multiworld.switchml.backend import install
from multiworld.switchml.compiling import ClientLibrary, compile_shim
from multiworld.switchml.settings import current


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m multiworld.switchml", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile", help="compile the shim against an installed client library")
    compiling.add_argument("home", type=Path, metavar="SWITCHML_HOME", help="has include/switchml and lib")
    backend = compiling.add_mutually_exclusive_group()
    for name in ("dpdk", "rdma"):
        backend.add_argument(f"--{name}", dest="backend", action="store_const", const=name, default="")
    card = compiling.add_mutually_exclusive_group()
    for name in ("mlx5", "mlx4"):
        card.add_argument(f"--{name}", dest="card", action="store_const", const=name, default="")
    for name in ("dpdk", "grpc"):
        compiling.add_argument(f"--{name}-home", type=Path, metavar=f"{name.upper()}_HOME")
    compiling.add_argument("--output", type=Path, help="the shim; default: where the backend looks for it")
    running = commands.add_parser("run", help="run a program, unmodified")
    running.add_argument("program")
    running.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _run(given: argparse.Namespace) -> None:
    """Run the program as Python itself would, with its own arguments and its folder on the path."""
    install()
    sys.argv = [given.program, *given.arguments]
    sys.path[0] = str(Path(given.program).absolute().parent)
    runpy.run_path(given.program, run_name="__main__")


def main(argv: list[str] | None = None) -> int:
    """Run one command; 1 if it cannot do what was asked for."""
    given = _parser().parse_args(argv)
    if given.command == "run":
        _run(given)
        return 0
    try:
        client = ClientLibrary(given.home.absolute(), given.backend, given.card, given.dpdk_home, given.grpc_home)
        target = given.output or current().library
        compile_shim(client, target)
        sys.stdout.write(f"{target}\n")
    except MultiWorldError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
