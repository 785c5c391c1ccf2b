"""Settings of worlds, as frozen data; no torch here."""

from __future__ import annotations

import enum
import operator
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

from multiworld.errors import InvalidArgument

#: A healthy operation takes milliseconds to seconds, and gateways give up a request after about a minute: a call that
#: takes longer is useless. Training steps with slow members may need more, a server that waits for work math.inf.
DEFAULT_OP_TIMEOUT = 60.0
DEFAULT_JOIN_TIMEOUT = 30.0
#: what the cancellation of a collective does: it breaks the world, or the collective goes on without its caller
OnCancel = Literal["break", "finish"]
DEFAULT_MAX_MESSAGE_BYTES = 1 << 34


def is_duration(value: object) -> bool:
    """Tell whether ``value`` is a number of seconds above 0; infinity is."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def whole_number(value: Any) -> int | None:
    """``value`` as an int; None if it is no whole number.

    Args:
        value: an int, or what can stand for one, such as NumPy's integers. bool and tensors are refused: ``True`` as a
            rank is a mistake, and a tensor would have to be computed first.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or hasattr(type(value), "__torch_function__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # such as an array of more than one element
        return None


def printed(host: str, port: int) -> str:
    """``host:port`` for people and addresses, ``[host]:port`` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WorldState(enum.Enum):
    """The place of a world in its life: it serves operations, it broke, or it was left."""

    ACTIVE = "active"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The times after which a world notices that a peer is silent. All in seconds.

    A peer answers pings from a native thread of its process, so that a held GIL or a long model load is no silence; a
    stopped, frozen or cut-off process is. Each member pings the next three in the order of ranks, and a member that
    notices a silence reports it to all. A silent peer on the same machine is given up to ten times ``lost_after`` while
    there is evidence that it is starved: the thread that answers wants to run. The end of a connection is noticed at
    once, whatever is set here.

    Args:
        interval: time between pings to each peer process.
        suspect_after: silence after which ``PeerSuspected`` is published.
        lost_after: silence after which the peer is lost and the world breaks.
    """

    interval: float = 0.2
    suspect_after: float = 0.45
    lost_after: float = 0.8

    def __post_init__(self) -> None:
        given = self.interval, self.suspect_after, self.lost_after
        if not all(map(is_duration, given)) or not self.interval < self.suspect_after <= self.lost_after:
            raise InvalidArgument(
                what=f"Heartbeat({', '.join(map(repr, given))}) is not valid",
                remedy="pass seconds: 0 < interval < suspect_after <= lost_after",
            )


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Settings of all connections of a ``MultiWorld``; made by ``network_settings``.

    Args:
        secret: the same for all members; None lets every process that reaches our ports greet. Never printed.
        ports: that our listeners may have; None: the kernel chooses.
        interfaces: names of interfaces or networks in CIDR notation, the first that fits is where peers reach us;
            empty: the way to the store decides.
        same_host: whether data goes to members on this host by other ways than TCP.
    """

    secret: bytes | None = field(default=None, repr=False)
    ports: range | None = None
    interfaces: tuple[str, ...] = ()
    same_host: bool = True


@dataclass(frozen=True, slots=True)
class TcpStoreAddress:
    """A TCP store at ``host:port``.

    Args:
        host: address to connect to; where the store is hosted here, it listens on this address only.
        port: TCP port; 0 only for ``MultiWorld.serve_store``, which returns the address with the real one.
        hosted: True to host it in this process, False to connect only, None (default): rank 0 hosts it.
    """

    host: str
    port: int
    hosted: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or type(self.port) is not int or self.hosted not in (True, False, None):
            raise InvalidArgument(
                what=f"TcpStoreAddress({self.host!r}, {self.port!r}, {self.hosted!r}) is not valid",
                remedy="pass host as text, port as an int, hosted as a bool or None",
            )

    def __str__(self) -> str:
        return f"tcp://{printed(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class FileStorePath:
    """A store in a file that every member can write to.

    Args:
        path: the file; it is made if missing and left there.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise InvalidArgument(what=f"FileStorePath({self.path!r}) is not valid", remedy="pass the path as text")

    def __str__(self) -> str:
        return f"file://{self.path}"


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Everything about one membership of one world that is known before it is joined.

    Args:
        name: the world's name, the same on every member.
        rank: ours, from 0 to ``size`` - 1.
        size: number of members.
        backend: ``"gloo"``, ``"nccl"`` or ``"torch-nccl"``.
        device: torch device in text, such as ``"cpu"`` or ``"cuda:0"``.
        address: local address to bind to and to be reached at; None: derived from the store's.
        op_timeout: seconds an operation may take unless it is given ``timeout=``; ``math.inf`` sets no deadline.
        join_timeout: seconds that joining may take.
        heartbeat: how silence is noticed.
        max_message_bytes: largest message of unknown size (``recv_tensor``, objects) that is accepted, in bytes.
        network: secret, ports and interfaces.
        on_cancel: ``"break"`` or ``"finish"``, see ``MultiWorld.join``.
        identity: ours in all generations, see ``World.members``.
    """

    name: str
    rank: int
    size: int
    backend: str = "gloo"
    device: str = "cpu"
    address: str | None = None
    op_timeout: float = DEFAULT_OP_TIMEOUT
    join_timeout: float = DEFAULT_JOIN_TIMEOUT
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    network: NetworkSettings = field(default_factory=NetworkSettings)
    on_cancel: OnCancel = "break"
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
