"""The greeting: both sides of it against each other, against recorded lines, against older ones and against rubbish."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.config import NetworkSettings
from multiworld.transport.greeting import MAX_GREETING_BYTES, PROTOCOL, GreetingError, Hello, Reason, Role, parsed
from multiworld.transport.handshake import Acceptor, Dialler, greet

SECRET = b"correct horse battery staple"
HELLO = Hello(Role.LANE, "w", 1, 1, 0, "c0ffee")
STORE = Hello(Role.STORE)


def run(dialler: Dialler, acceptor: Acceptor, cut: int = MAX_GREETING_BYTES) -> tuple[Hello, list[bytes]]:
    """Let the two speak, ``cut`` bytes at a time, until the acceptor knows who it is; what was said, line by line."""
    said = [dialler.begin()]
    while True:
        for turn in (acceptor.take(said[-1][at : at + cut]) for at in range(0, len(said[-1]), cut)):
            if turn.hello is not None:
                said.append(acceptor.accept())
                assert _fed(dialler.take, said[-1], cut) == b""
                assert dialler.done
                return turn.hello, said
            if turn.send:
                said.append(turn.send)
        said.append(_fed(dialler.take, said[-1], cut))


def _fed(take: Callable[[bytes], bytes], data: bytes, cut: int) -> bytes:
    return b"".join(take(data[at : at + cut]) for at in range(0, len(data), cut))


def refused(reason: Reason, call: Callable[..., Any], *args: Any) -> GreetingError:
    with pytest.raises(GreetingError) as caught:
        call(*args)
    assert caught.value.reason is reason, caught.value
    return caught.value


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize("cut", [1, 7, MAX_GREETING_BYTES])
@pytest.mark.parametrize("hello", [HELLO, STORE], ids=["member", "store"])
def test_both_sides_agree_on_who_dials_and_why(secret: bytes | None, cut: int, hello: Hello) -> None:
    came, said = run(Dialler(hello, secret), Acceptor(secret), cut)
    assert came == hello
    assert len(said) == (2 if secret is None else 4)  # as many round trips as ever, and one more with a secret
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 and line[:1] == b"{" for line in said)
    assert not any(SECRET in line or SECRET.hex().encode() in line for line in said)


def test_what_follows_the_greeting_is_kept_for_others() -> None:
    dialler, acceptor = Dialler(HELLO, None), Acceptor(None)
    acceptor.take(dialler.begin())
    dialler.take(acceptor.accept() + b"R and more")
    assert dialler.done
    assert dialler.rest == b"R and more"


@pytest.mark.parametrize(
    ("theirs", "ours", "of_dialler", "of_acceptor"),
    [
        (SECRET, None, "has a secret, this process has none", "has no secret, this process has one"),
        (None, SECRET, "has no secret, this process has one", "has a secret, this process has none"),
        (b"other", SECRET, "has another secret than this process", "has another secret than this process"),
    ],
    ids=["dialler only", "acceptor only", "different"],
)
def test_secrets_that_do_not_fit_are_named_on_both_sides(
    theirs: bytes | None, ours: bytes | None, of_dialler: str, of_acceptor: str
) -> None:
    dialler, acceptor = Dialler(HELLO, theirs), Acceptor(ours)
    here = refused(Reason.SECRET, run, dialler, acceptor)
    there = refused(Reason.SECRET, dialler.take, here.answer)
    assert (here.what, there.what) == (of_dialler, of_acceptor)
    assert here.hello == HELLO
    assert "MULTIWORLD_SECRET" in here.cause
    for error in (here, there):
        assert not any(known in f"{error!r} {error} {error.answer!r}" for known in ("horse", "other'"))


@pytest.mark.parametrize("name", ["world", "generation", "role", "from", "to", "incarnation", "nonce"])
def test_every_field_of_the_hello_is_proven(name: str) -> None:
    """Somebody on the way changes one field: the proof does not fit any more."""
    dialler, acceptor = Dialler(HELLO, SECRET), Acceptor(SECRET)
    fields = json.loads(dialler.begin())
    changed = {"role": "control", "world": "v", "incarnation": "beef", "nonce": "0" * 32}.get(name, 7)
    challenge = acceptor.take(json.dumps({**fields, name: changed}).encode() + b"\n").send
    refused(Reason.SECRET, acceptor.take, dialler.take(challenge))


def test_a_recorded_greeting_is_worth_nothing_with_a_secret() -> None:
    _, said = run(Dialler(HELLO, SECRET), Acceptor(SECRET))
    again = Acceptor(SECRET)
    assert again.take(said[0]).send != said[1]
    refused(Reason.SECRET, again.take, said[2])


def test_recorded_answers_are_worth_nothing_with_a_secret() -> None:
    _, said = run(Dialler(HELLO, SECRET), Acceptor(SECRET))
    dialler = Dialler(HELLO, SECRET)
    dialler.take(said[1])
    refused(Reason.SECRET, dialler.take, said[3])
    assert not dialler.done


def test_a_proof_sent_back_proves_nothing() -> None:
    """A member without a secret answers with what it is sent, in either direction."""
    dialler = Dialler(HELLO, SECRET)
    nonce = json.loads(dialler.begin())["nonce"]
    proof = json.loads(dialler.take(_said(multiworld=PROTOCOL, challenge=nonce)))["proof"]
    refused(Reason.SECRET, dialler.take, _said(multiworld=PROTOCOL, ok=True, proof=proof))
    acceptor, other = Acceptor(SECRET), Acceptor(SECRET)
    challenge = acceptor.take(Dialler(HELLO, SECRET).begin()).send
    assert json.loads(other.take(Dialler(HELLO, SECRET).begin()).send) != json.loads(challenge)
    refused(Reason.SECRET, acceptor.take, other.accept())


def test_the_proofs_are_what_the_protocol_says() -> None:
    """Written out once more: each side has its own label, and covers every line before its own."""
    _, (hello, challenge, dialled, accepted) = run(Dialler(HELLO, SECRET), Acceptor(SECRET))
    lines = [line.rstrip(b"\n") for line in (hello, challenge, dialled)]
    for label, covered, said in ((b"dialler", lines[:2], dialled), (b"acceptor", lines, accepted)):
        text = b"multiworld greeting 2, " + label + b"\n" + b"\n".join(covered)
        assert json.loads(said)["proof"] == hmac.new(SECRET, text, "sha256").hexdigest()


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_who_says_more_before_it_is_answered_is_no_peer(secret: bytes | None) -> None:
    refused(Reason.GARBAGE, Acceptor(secret).take, Dialler(HELLO, secret).begin() + b"{}\n")
    acceptor = Acceptor(None)
    acceptor.take(Dialler(HELLO, None).begin())
    refused(Reason.GARBAGE, acceptor.take, b"{}\n")


def test_who_skips_the_proof_is_no_peer() -> None:
    for said in (_said(multiworld=PROTOCOL, ok=True), _said(multiworld=PROTOCOL, ok=True, proof="0" * 64)):
        refused(Reason.SECRET, Dialler(HELLO, SECRET).take, said)
    refused(Reason.SECRET, Dialler(HELLO, None).take, _said(multiworld=PROTOCOL, challenge="0" * 32))
    refused(Reason.GARBAGE, Dialler(HELLO, SECRET).take, _said(multiworld=PROTOCOL, challenge="short"))


def test_an_old_dialler_is_told_in_its_own_words() -> None:
    old = {"world": "w", "generation": 1, "role": "lane", "from": 1, "to": 0, "incarnation": "c0ffee"}
    for said in (old, {k: v for k, v in old.items() if k != "from"} | {"role": "probe"}):
        error = refused(Reason.VERSION, Acceptor(SECRET).take, _said(**said))
        assert error.what == f"speaks protocol 1, this process {PROTOCOL}: install the same multiworld on all members"
        answer = json.loads(error.answer)  # as protocol 1 reads it: ok and why
        assert answer["ok"] is False
        assert (
            answer["why"] == f"speaks protocol {PROTOCOL}, this process 1: install the same multiworld on all members"
        )
        assert error.hello is not None
        assert error.hello.incarnation == "c0ffee"


def test_an_old_or_newer_acceptor_is_named() -> None:
    error = refused(Reason.VERSION, Dialler(HELLO, None).take, _said(ok=True))
    assert f"speaks protocol 1, this process {PROTOCOL}" in error.what
    error = refused(Reason.VERSION, Dialler(HELLO, None).take, _said(multiworld=PROTOCOL + 1, ok=True))
    assert f"speaks protocol {PROTOCOL + 1}, this process {PROTOCOL}" in error.what
    newer = refused(Reason.VERSION, Acceptor(None).take, _said(multiworld=PROTOCOL + 1, role="lane", hat="red"))
    told = refused(Reason.VERSION, Dialler(HELLO, None).take, newer.answer)
    assert f"speaks protocol {PROTOCOL}" in told.what


def test_an_old_member_that_is_not_who_we_look_for_is_none_of_our_concern() -> None:
    """Protocol 1 does not look at versions: its no is about the member, whose port it may have by chance."""
    error = refused(Reason.REFUSED, Dialler(HELLO, None).take, _said(ok=False, why="not that member"))
    assert error.what == "not that member"
    assert not error.lasting


def _said(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"7",
        b'"w"',
        b"[]",
        b"[" * 4000,
        b'{"a":' * 800,
        b'{"a": [1]}',
        b'{"a": {}}',
        b'{"a": null}',
        b'{"a": 1.5}',
        b'{"a": 1e9}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": 1,}',
        b"{,}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"\xff": 1}',
        b'{"a": "\x00"}',
        b"\x00" * 9,
        b'{"a": "\\x"}',
        b"{" + b",".join(b'"%d": 1' % n for n in range(99)) + b"}",
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": 1} {"b": 2}',
    ],
)
def test_only_flat_objects_are_greetings(line: bytes) -> None:
    assert refused(Reason.GARBAGE, parsed, line).answer == b""
    refused(Reason.GARBAGE, Acceptor(None).take, line + b"\n")
    refused(Reason.GARBAGE, Dialler(HELLO, None).take, line + b"\n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "king"},
        {"role": 1},
        {"world": 1},
        {"generation": "1"},
        {"generation": True},
        {"generation": -1},
        {"from": "1"},
        {"from": -2},
        {"to": False},
        {"incarnation": 5},
    ],
    ids=str,
)
def test_a_hello_has_the_right_fields(wrong: dict[str, Any]) -> None:
    fields = {"multiworld": PROTOCOL, **HELLO.fields()}
    assert Acceptor(None).take(_said(**fields)).hello == HELLO
    refused(Reason.GARBAGE, Acceptor(None).take, _said(**{**fields, **wrong}))
    for name in HELLO.fields():
        if name != "role":  # without one it is of another protocol, or none
            refused(Reason.GARBAGE, Acceptor(None).take, _said(**{k: v for k, v in fields.items() if k != name}))


flat = st.dictionaries(
    st.sampled_from(["multiworld", "ok", "why", "reason", "role", "world", "challenge", "proof", "nonce"]) | st.text(),
    st.sampled_from([PROTOCOL, 1, True, False, "lane", "0" * 32, "secret"]) | st.text() | st.integers(),
    max_size=12,
)
line = flat.map(lambda fields: json.dumps(fields).encode() + b"\n") | st.binary(max_size=5000)


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(line, max_size=4), secret=st.sampled_from([None, SECRET]))
def test_whatever_comes_the_only_error_is_the_typed_one(pieces: list[bytes], secret: bytes | None) -> None:
    for side in (Acceptor(secret), Dialler(HELLO, secret)):
        try:
            for piece in pieces:
                side.take(piece)
        except GreetingError as error:
            assert len(error.answer) <= MAX_GREETING_BYTES  # noqa: PT017 - that it is raised is not wanted always
        if isinstance(side, Dialler):
            assert not (side.done and secret)


@settings(max_examples=200, deadline=None)
@given(fields=flat)
def test_what_is_flat_is_read_as_json_reads_it(fields: dict[str, Any]) -> None:
    told = json.dumps(fields).encode()
    try:
        assert parsed(told) == fields
    except GreetingError:  # a long number, a long line
        assert len(told) > MAX_GREETING_BYTES or any(type(v) is int and abs(v) >= 10**17 for v in fields.values())


def test_a_line_that_does_not_end_is_given_up() -> None:
    acceptor = Acceptor(None)
    for _ in range(MAX_GREETING_BYTES - 1):
        assert acceptor.take(b"{").send == b""
    refused(Reason.GARBAGE, acceptor.take, b"{")


def test_the_worst_line_costs_milliseconds() -> None:
    """Time linear in the length: nothing in the pattern can be tried in two ways."""
    parts = (
        b'{"a":"' + b"\\\\" * 2040,
        b'{"a"' + b" " * 4080,
        b'{"a":1,' * 580,
        b'{"":1' + b',"":1' * 800,
        b'"' * 4090,
    )
    started = time.process_time()
    for part in parts:
        refused(Reason.GARBAGE, parsed, part[:MAX_GREETING_BYTES])
    assert time.process_time() - started < 0.5


# over a socket


def acceptor_thread(sock: socket.socket, answer: Callable[[socket.socket], None]) -> threading.Thread:
    thread = threading.Thread(target=answer, args=(sock,), daemon=True)
    thread.start()
    return thread


def accepts(secret: bytes | None, after: bytes) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        acceptor = Acceptor(secret)
        while True:
            turn = acceptor.take(sock.recv(99))
            if turn.hello is not None:
                sock.sendall(acceptor.accept() + after)
                return
            sock.sendall(turn.send)

    return answer


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_nothing_that_follows_is_read(secret: bytes | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = acceptor_thread(theirs, accepts(secret, b"R\nand more"))
        ours.settimeout(4.5)
        greet(ours, HELLO, NetworkSettings(secret), 5.0)
        thread.join(5)
        assert ours.gettimeout() == 4.5
        assert ours.recv(99) == b"R\nand more"


def _drips(sock: socket.socket) -> None:
    try:
        while True:
            sock.sendall(b" ")
            time.sleep(0.05)
    except OSError:
        pass


def test_who_drips_does_not_stretch_the_time() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            thread = acceptor_thread(theirs, _drips)
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                greet(ours, HELLO, NetworkSettings(), 0.5)
            assert 0.4 < time.monotonic() - started < 3.0
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"", Reason.HUNG_UP), (b"x" * 9000, Reason.GARBAGE), (b"SSH-2.0-OpenSSH_9.2\r\n", Reason.GARBAGE)],
    ids=["hangs up", "endless", "other protocol"],
)
def test_who_is_no_peer_is_a_typed_error(answer: bytes, reason: Reason) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        refused(reason, greet, ours, HELLO, NetworkSettings(SECRET), 5.0)
        theirs.close()


def test_the_secret_is_not_printed() -> None:
    network = NetworkSettings(SECRET)
    assert "horse" not in f"{network!r} {network}"
