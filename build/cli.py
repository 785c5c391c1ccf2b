"""The command line of the tooling, `python -m build …`; the nox sessions call it."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import typer

import build.commands
from build.console import err_console, log
from build.errors import ToolError
from build.process import kill_all

EXIT_INTERRUPTED = 130


def _app() -> typer.Typer:
    """Collect the commands: every module of `build.commands` registers its own."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    for module in pkgutil.iter_modules(build.commands.__path__):
        importlib.import_module(f"build.commands.{module.name}").register(app)
    return app


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name, default those of this process.

    Returns:
        The exit status: 0, the `exit_code` of the error, or 130 after Ctrl-C.
    """
    try:
        status = _app()(argv, standalone_mode=False)
    except ToolError as error:
        log.error("%s", error)
        err_console.print(f"[bold red]error:[/] {type(error).__name__}", end=": ")
        err_console.print(str(error), markup=False)
        return error.exit_code
    except typer.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        kill_all()
        err_console.print("interrupted; nothing half-written is left, the next run goes on from here")
        return EXIT_INTERRUPTED
    except subprocess.TimeoutExpired as error:
        err_console.print(
            f"[bold red]error:[/] a command did not end in {error.timeout:.0f} s: {error.cmd[0]}"
        )
        return 1
    except Exception as error:
        # Usage errors come from the argument parser and know how to show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
