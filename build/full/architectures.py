"""GPU architectures: which CUDA toolkits know each, and which ones the official wheels are compiled for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from packaging.version import Version

from build.errors import UsageError


@dataclass(frozen=True, slots=True)
class Architecture:
    """A compute capability, e.g. `9.0a`, GPUs that have it, the first CUDA toolkit for it, the first without."""

    capability: str
    gpus: str
    first: str
    dropped: str = ""

    def known_to(self, cuda: str) -> bool:
        return Version(self.first) <= Version(cuda) and not (self.dropped and Version(cuda) >= Version(self.dropped))


#: CUDA's release notes; for 13.0 compared with `nvcc --list-gpu-arch`.
TABLE = (
    Architecture("3.7", "K80", "6.5", "12.0"),
    Architecture("5.0", "GTX 750, M10", "6.5", "13.0"),
    Architecture("5.2", "GTX 980, M60", "6.5", "13.0"),
    Architecture("5.3", "Jetson TX1", "7.0", "13.0"),
    Architecture("6.0", "P100", "8.0", "13.0"),
    Architecture("6.1", "GTX 1080, P40", "8.0", "13.0"),
    Architecture("6.2", "Jetson TX2", "8.0", "13.0"),
    Architecture("7.0", "V100", "9.0", "13.0"),
    Architecture("7.2", "Jetson Xavier", "9.2", "13.0"),
    Architecture("7.5", "RTX 2080, T4", "10.0"),
    Architecture("8.0", "A100", "11.0"),
    Architecture("8.6", "RTX 3090, A10", "11.1"),
    Architecture("8.7", "Jetson Orin", "11.4"),
    Architecture("8.8", "embedded", "13.0"),
    Architecture("8.9", "RTX 4090, L4", "11.8"),
    Architecture("9.0", "H100", "11.8"),
    Architecture("9.0a", "H100, instructions of Hopper only", "12.0"),
    Architecture("10.0", "B200", "12.8"),
    Architecture("10.0a", "B200, instructions of this chip only", "12.8"),
    Architecture("10.3", "B300", "12.9"),
    Architecture("11.0", "Jetson Thor", "13.0"),
    Architecture("12.0", "RTX 5090", "12.8"),
    Architecture("12.0a", "RTX 5090, instructions of this chip only", "12.8"),
    Architecture("12.1", "DGX Spark", "12.9"),
)
#: What the official wheels for each CUDA version are compiled for: upstream's `.ci/manywheel/build_cuda.sh`. A version
#: that the table lacks takes the next lower one.
OFFICIAL = {
    "11.7": "3.7;5.0;6.0;7.0;7.5;8.0;8.6",
    "12.1": "5.0;6.0;7.0;7.5;8.0;8.6;9.0",
    "12.4": "5.0;6.0;7.0;7.5;8.0;8.6;9.0",
    "12.6": "5.0;6.0;7.0;7.5;8.0;8.6;9.0",
    "12.8": "7.0;7.5;8.0;8.6;9.0;10.0;12.0",
    "12.9": "7.0;7.5;8.0;8.6;9.0;10.0;12.0+PTX",
    "13.0": "7.5;8.0;8.6;9.0;10.0;12.0+PTX",
}


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture to compile for; with `ptx` also the portable form, which later GPUs compile when they load it."""

    architecture: Architecture
    ptx: bool = False

    def __str__(self) -> str:
        return self.architecture.capability + ("+PTX" if self.ptx else "")


#: What is compiled for, in the order given.
Targets: TypeAlias = tuple[Target, ...]


def official(cuda: str) -> str:
    """Return the list that official wheels for a CUDA version are compiled for."""
    older = [known for known in OFFICIAL if Version(known) <= Version(cuda)]
    return OFFICIAL[max(older or OFFICIAL, key=Version)]


def parse(text: str, cuda: str) -> Targets:
    """Read a list such as `8.0;9.0+PTX`, with `;`, `,` or blanks between.

    Args:
        cuda: the CUDA version that compiles, e.g. `12.4`.

    Raises:
        UsageError: an architecture is not known, or that CUDA version does not compile for it.
    """
    words = [word for word in re.split(r"[;,\s]+", text) if word]
    every = {item.capability: item for item in TABLE}
    known = {item.capability: item for item in TABLE if item.known_to(cuda)}
    refused = [word for word in words if word.removesuffix("+PTX") not in known]
    if not words or refused:
        what = f"CUDA {cuda} does not compile for {', '.join(refused) or 'an empty list'}"
        cause = "\n".join(_why(word, every) for word in refused) or "no architecture was named"
        remedy = "it knows " + ", ".join(f"{item.capability} ({item.gpus})" for item in known.values())
        raise UsageError(what, cause=cause, remedy=remedy)
    return tuple(dict.fromkeys(Target(known[word.removesuffix("+PTX")], word.endswith("+PTX")) for word in words))


def _why(word: str, every: Mapping[str, Architecture]) -> str:
    named = every.get(word.removesuffix("+PTX"))
    if named is None:
        return f"{word} is no architecture that this project knows (build/full/architectures.py)"
    gone = f", and CUDA {named.dropped} dropped it" if named.dropped else ""
    return f"{word} ({named.gpus}) needs CUDA {named.first} or newer{gone}"
