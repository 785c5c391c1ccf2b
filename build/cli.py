"""The command line of the tooling, `python -m build …`; the nox sessions call it."""

from __future__ import annotations

import errno
import gc
import importlib
import itertools
import pkgutil
import subprocess
import sys
from collections.abc import Callable

import typer
from typer.core import TyperCommand, TyperOption

import build.commands
from build import signals
from build.console import err_console, log
from build.errors import EnvironmentUnfitError, ToolError, UsageError
from build.process import kill_all

EXIT_INTERRUPTED = 130
#: Errors that are the machine's fault, with what to do about each.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free disk space there, or name another folder"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "make it writable for you, or name another folder"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENOTEMPTY),
        "remove what is there, which is not what it should be, and run again",
    ),
    errno.EIO: "the disk cannot be read: name a folder on another one",
    errno.EROFS: "name a folder on a file system that can be written",
}


class Command(TyperCommand):
    """A command that refuses an option given twice, of which the first value would be lost without a word."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        words = list(itertools.takewhile(lambda word: word != "--", args))
        for option in self.params:
            once = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if once and sum(word.partition("=")[0] in option.opts for word in words) > 1:
                raise UsageError(f"{option.opts[0]} is given twice", remedy="give it once")
        return super().parse_args(ctx, args)


def _interrupted() -> int:
    kill_all()
    err_console.print("interrupted; nothing half-written is left, the next run goes on from here")
    return EXIT_INTERRUPTED


def _report(error: ToolError) -> int:
    log.error("%s", error)
    err_console.print(f"[bold red]error:[/] {type(error).__name__}", end=": ")
    err_console.print(str(error), markup=False)
    return error.exit_code


def _app(first: str) -> typer.Typer:
    """Return the command line; if `first`, the first word, is a command, only that one is imported: some take long."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(lambda: None)  # keeps the names of the commands also where there is one
    names = [module.name for module in pkgutil.iter_modules(build.commands.__path__)]
    wanted = first.replace("-", "_")
    for name in [wanted] if wanted in names else names:
        app.command(cls=Command)(getattr(importlib.import_module(f"build.commands.{name}"), name))
    if not gc.isenabled():  # `python -m build` turns it off until then: what is loaded stays
        gc.freeze()
        gc.enable()
    return app


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit status: 0, the `exit_code` of the error, or 130 after Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _app(words[0] if words else ""), words)


def guarded(make: Callable[[], typer.Typer], argv: list[str] | None = None) -> int:
    """Run a command line that `make` returns; what users and machines do wrong is a message and an exit status."""
    try:
        status = make()(argv, standalone_mode=False)
    except ToolError as error:
        return _report(error)
    except typer.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except subprocess.TimeoutExpired as error:
        err_console.print(f"[bold red]error:[/] a command did not end in {error.timeout:.0f} s: {error.cmd[0]}")
        return 1
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        where = f": {error.filename}" if error.filename else ""
        return _report(EnvironmentUnfitError(f"{error.strerror}{where}", remedy=_REMEDIES[error.errno]))
    except Exception as error:
        # Usage errors come from the argument parser and know how to show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
    # Newer versions of typer turn a KeyboardInterrupt into this status.
    return _interrupted() if status == EXIT_INTERRUPTED else status if isinstance(status, int) else 0


def only(command: Callable[..., None]) -> Callable[[], typer.Typer]:
    """Return what makes the command line of a program with one command, for `guarded`."""

    def make() -> typer.Typer:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(cls=Command)(command)
        return app

    return make


def run(command: Callable[[], int] | None = None) -> int:
    """Run a command line, default `main`, with the signals of the tooling: what ends it removes what it has begun."""
    signals.handle()
    try:
        return (command or main)()
    finally:
        signals.ignore()
