"""Compile the shim against an installed client library."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from multiworld.errors import InvalidArgument
from multiworld.switchml.errors import SwitchMLUnavailable

SOURCE = Path(__file__).with_name("shim.cpp")
_SECONDS = 600.0
_CARDS = {"": [], "mlx5": ["-libverbs", "-lmlx5", "-lmnl"], "mlx4": ["-libverbs", "-lmlx4", "-lmnl"]}


@dataclass(frozen=True)
class ClientLibrary:
    """Where the client library is, and what it was built with: the variables of its Makefile.

    Args:
        home: ``SWITCHML_HOME``, with ``include/switchml`` and ``lib``.
        backend: ``"dpdk"`` or ``"rdma"`` if it was built with it; empty for the dummy backend alone.
        card: with ``dpdk``, ``"mlx5"`` or ``"mlx4"``.
        dpdk_home: ``DPDK_HOME``; needed with ``dpdk``.
        grpc_home: ``GRPC_HOME``; needed with ``dpdk`` and ``rdma``.
    """

    home: Path
    backend: str = ""
    card: str = ""
    dpdk_home: Path | None = None
    grpc_home: Path | None = None

    def __post_init__(self) -> None:
        no_card = self.card not in _CARDS or (self.card and self.backend != "dpdk")
        if self.backend not in {"", "dpdk", "rdma"} or no_card:
            raise InvalidArgument(what=f"a client library with {self.backend} {self.card} does not exist")
        _require("SWITCHML_HOME", self.home, "include/switchml/context.h")
        if self.backend == "dpdk":
            _require("DPDK_HOME", self.dpdk_home, "lib")
        if self.backend:
            _require("GRPC_HOME", self.grpc_home, "lib/pkgconfig")


def _require(name: str, path: Path | None, part: str) -> None:
    if path is None or not (path / part).exists():
        what = f"{name}: {path} has no {part}" if path else f"{name} is not given"
        raise InvalidArgument(what=what, remedy="give the folder where it is installed")


def compile_shim(client: ClientLibrary, target: Path) -> None:
    """Compile and link the shim into ``target``, which is replaced in one step.

    Raises:
        SwitchMLUnavailable: there is no compiler, or it failed; its message is the cause.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix=".switchml-", dir=target.parent) as folder:
        made = Path(folder, target.name)
        # -z defs: a library that is missing on the link line is an error now, not when the shim is loaded.
        flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wl,-z,defs", f"-I{client.home / 'include'}"]
        _run([*compiler, *flags, *_glog(compiler, Path(folder)), "-o", str(made), str(SOURCE), *_libraries(client)])
        made.replace(target)


def _compiler() -> list[str]:
    own = shlex.split(os.environ.get("CXX", ""))
    found = next(([name] for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if command := own or found:
        return command
    raise SwitchMLUnavailable(what="there is no C++ compiler", remedy="install g++ or clang, or set CXX")


def _libraries(client: ClientLibrary) -> list[str]:
    own = [f"-L{client.home / 'lib'}", "-lswitchml-client", "-lpthread", "-lglog", "-lboost_program_options"]
    if client.backend == "dpdk":
        # All of it: DPDK's drivers register themselves, and nothing refers to them.
        whole = [f"-L{client.dpdk_home}/lib", "-Wl,--whole-archive", "-ldpdk", "-Wl,--no-whole-archive"]
        own = [*whole, *own, "-ldl", "-lnuma", *_CARDS[client.card]]
    elif client.backend == "rdma":
        own += ["-libverbs", "-lhugetlbfs"]
    return [*own, *_grpc(client)] if client.backend else own


def _glog(compiler: list[str], folder: Path) -> list[str]:
    """The macro for releases of glog with the function; see its use in ``shim.cpp``."""
    probe = folder / "probe.cpp"
    probe.write_text("#include <glog/logging.h>\nbool initialized = google::IsGoogleLoggingInitialized();\n")
    try:
        _run([*compiler, "-std=c++17", "-fsyntax-only", str(probe)])
    except SwitchMLUnavailable:
        return []
    return ["-DGLOG_SAYS_WHETHER_IT_IS_INITIALIZED"]


def _grpc(client: ClientLibrary) -> list[str]:
    found = f"{client.grpc_home}/lib/pkgconfig"
    flags = shlex.split(_run(["pkg-config", "--libs", "protobuf", "grpc++"], PKG_CONFIG_PATH=found))
    folders = [flag[2:] for flag in flags if flag.startswith("-L")]
    return [*flags, *(part for folder in folders for part in ("-Xlinker", "-rpath", "-Xlinker", folder))]


def _run(command: list[str], **variables: str) -> str:
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SwitchMLUnavailable(what=f"{command[0]} cannot be run: {error}", cause="it is not installed") from None
    if done.returncode:
        remedy = "give the options that the client library was built with, and install what the linker misses"
        what, cause = f"{shlex.join(command)} failed", done.stderr.strip()[-2000:]
        raise SwitchMLUnavailable(what=what, cause=cause, remedy=remedy)
    return done.stdout
