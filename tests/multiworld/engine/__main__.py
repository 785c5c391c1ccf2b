"""Run the compiled core under the address and undefined-behaviour sanitizers: ``python -m tests.multiworld.engine``.

First the schedules of ``model.py``, which compare it with the Python engine; then threads on two whole engines, under
the thread sanitizer as well; then launchers on functions in the place of CUDA's and NCCL's, alone and below engines,
likewise; then the fuzzer, where clang is there.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.multiworld.engine.compiled import SOURCES, compile_core
from tests.multiworld.engine.model import play

SANITIZED = ("-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
#: `moody_kernel.h` stands between the engine and these.
MOODY = [f"-Wl,--wrap={call}" for call in ("sendmsg", "send", "recvmsg", "epoll_wait")]
#: Python and torch do not free all that they have at their end.
CHECKS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def play_sanitized(folder: Path, schedules: int) -> None:
    """Compile the core with sanitizers, and run the schedules in a Python that has their library loaded."""
    library = compile_core(
        "driver.cc", folder / "core.so", "g++", *SANITIZED, "-fsanitize=address,undefined", "-fPIC", "-shared"
    )
    command = [sys.executable, "-m", "tests.multiworld.engine", "--library", str(library)]
    env = {**os.environ, **CHECKS, "LD_PRELOAD": " ".join(map(_path_of, ("libasan.so", "libstdc++.so")))}
    subprocess.run([*command, "--schedules", str(schedules)], check=True, env=env)


def sources_of(*parts: str) -> list[str]:
    """The sources of these parts of the engine."""
    return [str(path) for part in parts for path in sorted(SOURCES.glob(f"{part}/*.cc"))]


def stress(folder: Path, driver: str, parts: tuple[str, ...], sanitizers: str) -> None:
    """Run a program in which threads are at work on these parts of the engine, under these sanitizers."""
    made = folder / "stress"
    sources = [*MOODY, *sources_of(*parts)]
    compile_core(driver, made, "g++", *SANITIZED, f"-fsanitize={sanitizers}", "-pthread", *sources)
    subprocess.run([str(made)], check=True, timeout=1200)


def fuzz(folder: Path, source: str, seconds: int, *parts: str) -> None:
    """Fuzz the core, or a lane; what is found stays in the current folder."""
    # The inputs have no magic numbers to find: tracing comparisons only costs time.
    fast = ("-O2", "-fno-sanitize-coverage=trace-cmp")
    command = ("clang++", *SANITIZED, *fast, "-fsanitize=fuzzer,address,undefined", "-pthread", *parts)
    fuzzer = compile_core(source, folder / source.removesuffix(".cc"), *command)
    corpus = folder / f"corpus of {source}"
    corpus.mkdir()
    options = ["-max_len=800", "-len_control=0", "-entropic=0", "-verbosity=0", "-print_final_stats=1"]
    subprocess.run([str(fuzzer), f"-max_total_time={seconds}", *options, str(corpus)], check=True)


def main() -> None:
    """Exit with the status of a sanitizer, or an ``AssertionError``, for a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz (default: %(default)s)")
    parser.add_argument("--schedules", type=int, default=240, help="how many schedules (default: %(default)s)")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        play(ctypes.CDLL(options.library), options.schedules)
        print(f"{options.schedules} schedules: the core does what the Python engine does", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        play_sanitized(Path(folder), options.schedules)
        for sanitizers in ("thread", "address,undefined"):
            stress(Path(folder), "stress.cc", ("lanes", "mover", "launch"), sanitizers)
            stress(Path(folder), "stress_launch.cc", ("launch",), sanitizers)
            stress(Path(folder), "stress_transfers.cc", ("lanes", "mover", "launch"), sanitizers)
        if shutil.which("clang++"):
            fuzz(Path(folder), "fuzz_core.cc", options.seconds, "-Wl,--wrap=aligned_alloc")
            fuzz(Path(folder), "fuzz_lane.cc", options.seconds, *sources_of("lanes", "mover", "launch"))
        else:
            print("NOT FUZZED: there is no clang++ here", file=sys.stderr)


def _path_of(library: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={library}"], check=True, capture_output=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


if __name__ == "__main__":
    main()
