"""The errors of all-reduces by a switch."""

from __future__ import annotations

from typing import Any, ClassVar

from multiworld.errors import MultiWorldError


class SwitchMLError(MultiWorldError, RuntimeError):
    """Base of what can go wrong with the switch; ``world`` is the text ``"switchml"``."""

    def __init__(self, world: str | None = "switchml", what: str = "", **fields: Any) -> None:
        super().__init__(world, what, **fields)


class SwitchMLUnavailable(SwitchMLError):
    """The process group was not made: on some rank the client library is missing or did not start.

    Attributes:
        ranks: the ranks on which it is so, ascending.
    """

    ranks: tuple[int, ...] = ()
    likely_cause: ClassVar[str] = "the client library is not installed there, or its configuration is missing"
    what_to_do: ClassVar[str] = (
        "run 'python -m multiworld.switchml compile SWITCHML_HOME' on every host, and give every host a switchml.cfg; "
        "or set MULTIWORLD_SWITCHML_MISSING=gloo on all ranks to use Gloo alone"
    )


class SwitchJobFailed(SwitchMLError):
    """The client library gave up an all-reduce. The tensor's content is undefined, and the process group is at its end
    for what the switch does."""

    likely_cause: ClassVar[str] = "the context was stopped, or the switch or its controller failed"
    what_to_do: ClassVar[str] = (
        "start the job's processes again; MULTIWORLD_SWITCHML_FAILURE=gloo on all ranks repeats such an all-reduce on "
        "Gloo and goes on without the switch"
    )


class SwitchJobTimeout(SwitchJobFailed, TimeoutError):
    """An all-reduce was not done in time.

    Attributes:
        timeout: the time it had, in seconds.
    """

    timeout: float = 0.0
    likely_cause: ClassVar[str] = "a rank died or is slow, or packets to the switch are lost"

    # RuntimeError's, which comes first, refuses to make a TimeoutError; unpickling calls this one by name.
    def __new__(cls, *_: Any, **__: Any) -> SwitchJobTimeout:  # noqa: PYI034 - typing.Self is not in 3.10
        return TimeoutError.__new__(cls)


class SwitchMLClosed(SwitchMLError):
    """The process group was destroyed before the all-reduce was done."""

    likely_cause: ClassVar[str] = "the program did not wait for an asynchronous all-reduce"
    what_to_do: ClassVar[str] = "wait for all operations before destroy_process_group()"
