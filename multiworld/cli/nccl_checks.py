"""The findings of ``multiworld doctor`` about NCCL: the driver and why, what torch survives, the environment."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist

from multiworld.backends import choice, nccl
from multiworld.backends.nccl_environment import NEEDED, Needed, group_kind, group_version
from multiworld.errors import INSTALL


class Verdict(str, enum.Enum):
    """Of one check."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; ``remedy`` is empty if there is nothing to do."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judged(name: str, good: bool, found: str, remedy: str, otherwise: Verdict = Verdict.FAIL) -> Check:
    """A check that is OK if ``good``, else ``otherwise`` with its remedy."""
    return Check(name, Verdict.OK, found) if good else Check(name, otherwise, found, remedy)


_BINDINGS = INSTALL.format(extra="[nccl]")
#: What an unpatched torch does in CleanUpOnly mode, as measured by the probes in ``gpuless``.
_CLASSIC = (
    "a failed coalesced collective ends the process",
    "a failed send, recv, gather, scatter or all_to_all leaves NCCL's group open, and other worlds stall",
    "wait() on an aborted operation returns as if it had succeeded",
    "a CUDA error in the watchdog, an abort that fails or hangs, and dumps on a timeout end the process",
)
_NCCL2 = (
    "if an abort hangs, the world's next call never answers",
    "if a CUDA call hangs the watchdog, nothing is aborted",
    "if a launch hangs, nothing is aborted, and an allocation can freeze the process",
)
#: Names that releases up to 2.1 had, and later ones read where the name with TORCH_ is not set.
_OLD_NAMES = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")


@dataclass(frozen=True, slots=True)
class Setup:
    """The surroundings of a world on NCCL.

    Attributes:
        why_not: why ``backend="nccl"`` cannot be used; None if it can.
        no_bindings: why NVIDIA's bindings are not used, so that it takes the driver ``torch-nccl``; None if it takes
            ``nccl``.
        group: the class of torch's own group.
        patches: the patched wheel or the overlay that is in effect; empty for stock torch.
        overlay: the state of an overlay that is installed and not loaded; empty otherwise.
    """

    why_not: str | None
    no_bindings: str | None
    group: str
    patches: str
    overlay: str
    torch: str


def nccl_checks() -> list[Check]:
    """All checks; two where this torch has no NCCL, since nothing else could matter."""
    if not dist.is_nccl_available():
        nothing = "nothing, if you have no GPUs"
        return [Check("nccl", Verdict.NOTE, "not in this torch", nothing), patches(_setup())]
    setup = _setup()
    return [driver(setup), patches(setup), faults(setup), *facts(setup), host_id(os.environ), old_names(os.environ)]


def facts(setup: Setup) -> list[Check]:
    """Look at what of NCCL is on this machine, and at the environment; makes no CUDA context."""
    variables = [needed_variable(one, setup, os.environ) for one in NEEDED]
    return [_bindings(), _group(), _devices(), *variables, _module_loading(), _peer_to_peer()]


def _setup() -> Setup:
    name = getattr(group_kind(), "__name__", "")
    return Setup(choice.unavailable("nccl"), nccl.unavailable(), name, *_patches(), torch.__version__)


def _patches() -> tuple[str, str]:
    """Return the patches in effect, and the state of an overlay that is not loaded."""
    if ".mw" in torch.__version__:
        return "the patched wheel", ""
    try:
        state = str(import_module("multiworld_torch_overlay").state())
    except ModuleNotFoundError:
        return "", ""
    return ("the overlay", "") if state == "loaded" else ("", state)


def driver(setup: Setup) -> Check:
    """Say which driver ``backend="nccl"`` takes, and why."""
    if setup.no_bindings is None:
        found = "backend='nccl' takes the driver nccl: NVIDIA's bindings are installed"
    else:
        found = f"backend='nccl' takes the driver torch-nccl: {setup.no_bindings}"
    if setup.why_not is not None:
        return Check(
            "nccl", Verdict.NOTE, f"{found}. No world can use it: {setup.why_not}", "nothing, if you have no GPUs"
        )
    return judged("nccl", setup.no_bindings is None or bool(setup.patches), found, _BINDINGS, Verdict.NOTE)


def patches(setup: Setup) -> Check:
    """Say whether torch is stock, patched, or has an overlay that is loaded."""
    if setup.patches:
        return Check("NCCL patches", Verdict.OK, f"{setup.patches} is in effect: torch {setup.torch}")
    if setup.overlay:
        remedy = "install the overlay that was built for this torch, or unset MULTIWORLD_TORCH_OVERLAY"
        return Check(
            "NCCL patches", Verdict.NOTE, f"an overlay is installed and not in effect: {setup.overlay}", remedy
        )
    remedy = (
        "nothing for Gloo and for the driver nccl; the driver torch-nccl needs the patched wheel or the overlay, where "
        "the release has one"
    )
    return Check("NCCL patches", Verdict.NOTE, f"none: stock torch {setup.torch}", remedy)


def faults(setup: Setup) -> Check:
    """Say which faults torch's own group does not survive here; they concern the driver torch-nccl."""
    name = "faults of torch's group"
    if setup.patches and setup.group != "ProcessGroupNCCL2":
        return Check(name, Verdict.OK, f"{setup.group} with {setup.patches} survives all that docs/nccl.md lists")
    known = _NCCL2 if setup.group == "ProcessGroupNCCL2" else _CLASSIC
    found = f"{setup.group} of this torch does not survive: {'; '.join(known)}"
    if setup.no_bindings is None:
        return Check(name, Verdict.OK, f"{found}. The driver nccl does not use it")
    return Check(
        name,
        Verdict.NOTE,
        found,
        f"{_BINDINGS}; or install the patched wheel or the overlay, where the release has one",
    )


def _bindings() -> Check:
    why = nccl.unavailable()
    if why is not None:
        return Check("nccl4py", Verdict.NOTE, why, f"{_BINDINGS}: backend='nccl' then needs no patched wheel")
    version = int(nccl.bindings().get_version())
    found = f"NCCL {nccl.printed(version)}, {'with' if version >= nccl.REVOKES_FROM else 'without'} revoke"
    return Check("nccl4py", Verdict.OK, f"{found}: backend='nccl' uses it")


def _group() -> Check:
    good = group_kind() is not None
    found = f"{group_version()}, torch {torch.__version__}" if good else "this torch is built without NCCL"
    return judged("torch-nccl", good, found, "install a CUDA build of torch", Verdict.NOTE)


def _devices() -> Check:
    count = torch.cuda.device_count()
    found = "1 CUDA device" if count == 1 else f"{count} CUDA devices"
    return judged("CUDA devices", count > 0, found, "nothing, if this machine has no GPU", Verdict.NOTE)


def needed_variable(one: Needed, setup: Setup, environment: Mapping[str, str]) -> Check:
    """Check a variable that torch's group needs; a value that would be refused at the first group fails."""
    name, given = one.found(environment)
    if given is None:
        return Check(one.name, Verdict.OK, "not set" if one.may_be_unset else "not set; backend='torch-nccl' sets it")
    said = given if name == one.name else f"{given}, by its old name {name}"
    remedy = f"unset {name} or set it to {one.value}: {one.why}"
    serious = setup.no_bindings is not None and setup.why_not is None
    return judged(one.name, given == one.value, said, remedy, Verdict.FAIL if serious else Verdict.NOTE)


def _module_loading() -> Check:
    given = os.environ.get("CUDA_MODULE_LOADING", "")
    remedy = "set it to EAGER: a kernel's first use loads its module, which waits for a transfer whose peer has died"
    return judged("CUDA_MODULE_LOADING", given.upper() == "EAGER", given or "not set (LAZY)", remedy, Verdict.NOTE)


def _peer_to_peer() -> Check:
    note = "if members of one host crash each other when a world breaks, NCCL_P2P_DISABLE=1 is the last resort"
    return Check("NCCL_P2P_DISABLE", Verdict.OK, os.environ.get("NCCL_P2P_DISABLE", "") or f"not set; {note}")


def host_id(environment: Mapping[str, str]) -> Check:
    """Say whether ranks of one world can share a device."""
    given = environment.get("NCCL_HOSTID")
    if given:
        found = f"{given}: give each process another one, or NCCL refuses two ranks on one device"
    else:
        found = "not set: NCCL refuses two ranks of a world on one device, unless each process sets another one"
    return Check("NCCL_HOSTID", Verdict.OK, found)


def old_names(environment: Mapping[str, str]) -> Check:
    """Say whether a variable is set under its old name, alone or together with another value of the new one."""
    name = "old names of variables"
    found = [old for old in _OLD_NAMES if old in environment]
    if not found:
        return Check(name, Verdict.OK, "none is set")
    pairs = [f"{old}={environment[old]} (TORCH_{old}: {environment.get(f'TORCH_{old}', 'not set')})" for old in found]
    remedy = f"unset {', '.join(found)}: torch reads an old name where the new one is not set"
    return Check(name, Verdict.NOTE, ", ".join(pairs), remedy)
