"""What one thread frees while another one reads it: a log prefix, and events of a thread that has ended."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import fake
from breakage import answer
from world import DEVICE, TorchObject, World, wrapped

_DESCRIPTION = "described"
#: `ProcessGroupNCCL::logPrefix() const`, with the old and the new ABI of strings.
_NAMES = "_ZNK4c10d16ProcessGroupNCCL9logPrefixEv", "_ZNK4c10d16ProcessGroupNCCL9logPrefixB5cxx11Ev"


def log_prefix(operation: str) -> tuple[str, dict[str, object]]:
    """Take a reference to the prefix, as the watchdog does for each line, and make a communicator.

    Args:
        operation: what makes it; "eager" for the connection that `device_id=` asks for.
    """
    threads = _threads()
    world = World()
    threads = _threads() - threads
    wrapped(world.group)._set_group_desc(_DESCRIPTION)
    prefix = _log_prefix(world.group)
    held = prefix()
    before = _text(held)
    if operation == "eager":
        world.group.eager_connect_single_device(DEVICE)
    else:
        world.run(operation)
    detail = {"threads": threads, "before": before[1], "after": _text(prefix())[1]}
    if not threads or _DESCRIPTION not in str(detail["after"]):
        return "BROKEN", detail
    # Another text in the string that is held: the old one was freed.
    return ("OK" if _text(held) == before else "DATA_RACE"), detail


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _log_prefix(group: TorchObject) -> Callable[[], int]:
    """Return a call of the method: the address of the string to which it returns a reference."""
    # The library whose method this process calls: the overlay, where there is one, instead of torch's.
    words = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = {Path(word).name: word for word in words}
    library = ctypes.CDLL(mapped.get("libtorch_mw.so", mapped["libtorch_cuda.so"]))
    method = next(getattr(library, name) for name in _NAMES if hasattr(library, name))
    method.restype = ctypes.c_void_p
    method.argtypes = (ctypes.c_void_p,)
    this = ctypes.c_void_p.from_address(id(group) + object.__basicsize__).value  # pybind11's pointer to the instance
    return lambda: int(method(this))


def _text(string: int) -> tuple[int | None, str]:
    """Return where the characters of a `std::string` are, and the characters; alike in both ABIs."""
    data = ctypes.c_void_p.from_address(string).value
    return data, ctypes.string_at(data or 0).decode()


_M_PERTURB = -6  # of mallopt(3)


def event_cache() -> tuple[str, dict[str, object]]:
    """Enqueue an operation in a thread, let the thread end, then the operation.

    Freed memory is overwritten, so that its use shows each time.
    """
    world = World()
    world.run("all_reduce")
    ctypes.CDLL(None).mallopt(_M_PERTURB, 0x5A)
    fake.inject("ncclAllReduce", fake.HOLD)
    thread = threading.Thread(target=world.start, args=("all_reduce",))
    thread.start()
    thread.join()
    fake.lift("ncclAllReduce")
    cleaned_up = answer(wrapped(world.group)._wait_for_pending_works)
    return {"returned": "OK", "no answer": "STALLED"}.get(cleaned_up, "BROKEN"), {"cleaned up": cleaned_up}
