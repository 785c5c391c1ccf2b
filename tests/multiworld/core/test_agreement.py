"""The agreement on who goes on, with all its steps in any order: deaths, sleepers and cuts between any two of them.

Members are the real generators, on a store that lets others act before each of its operations. Only the connections
are a model: they are made once all of a roster are there, and cannot be made to who is dead, asleep or cut off.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from multiworld.config import WorldConfig
from multiworld.errors import MultiWorldError, StaleGeneration, TooFewMembers
from multiworld.liveness.neighbour import Presence
from multiworld.process.join_threads import JoinJob, JoinThreads, Pause, Steps
from multiworld.rendezvous import agreement
from multiworld.rendezvous.agreement import Roll
from multiworld.rendezvous.joining import Meeting, Rendezvous
from multiworld.rendezvous.ledger import Claim, Ledger
from multiworld.rendezvous.reassembly import Reassembly
from multiworld.rendezvous.renewal import HeldLanes
from multiworld.rendezvous.wiring import Wires
from multiworld.transport.lines import Lines

RUNS = 60
MOST_STEPS = 2000
#: of the store, between two pauses of all members: some hundred at most, unless a loop goes on without a pause
MOST_OPERATIONS = 20_000


class Killed(BaseException):
    """The process was killed in the middle of an operation of the store."""


class GivenUp(BaseException):
    """The caller of it does not wait any more, and calls it again."""


class Stage:
    """Members that act in an order by chance, and the store between them."""

    def __init__(self, seed: int, size: int, guests: int = 0, min_size: int = 1) -> None:
        self.chance = random.Random(seed)
        self.values: dict[str, str] = {}
        self.acting: list[Actor] = []
        self.here: set[tuple[int, str]] = set()
        self.candidates: dict[int, list[str]] = {}
        self.rosters: dict[int, tuple[str, ...]] = {}
        self.written: dict[str, str] = {}
        self.operations = 0
        self.ledger = Ledger(self, "w")
        claims = [_claim(f"{number:02}") for number in range(size + guests)]
        self.ledger.advance(0)
        self.ledger.agree_size(1, size)
        for rank, claim in enumerate(claims[:size]):
            self.ledger.claim(1, rank, claim)
        self.ledger.seal(1)
        members, invited = tuple(claims[:size]), tuple(claims[size:])
        rolls = [Roll(1, members, invited, min_size=min_size)] * size + [Roll(1, members)] * guests
        if guests:
            self.ledger.invite(1, invited)
        self.actors = [Actor(self, claim.identity, roll) for claim, roll in zip(claims, rolls, strict=True)]

    # a store

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        self.interrupt()
        held = self.values.get(key)
        if held is None and expected:
            return expected
        if held is None or held == expected:
            self.values[key] = held = desired
            if key == f"multiworld/w/{self.values.get('multiworld/w/generation')}/roster":
                assert self.written.setdefault(key, desired) == desired, "a roster was written twice"
        self.interrupt()
        return held

    def delete_key(self, key: str) -> bool:
        self.interrupt()
        return self.values.pop(key, None) is not None

    # chance

    def interrupt(self) -> None:
        """Before and after an operation: the one who acts dies, or another one acts."""
        self.operations += 1
        assert self.operations < MOST_OPERATIONS, "members go round and round"
        if not self.acting:
            return
        if self.acting[-1].dies(self.chance):
            raise Killed
        if self.acting[-1].gives_up(self.chance):
            raise GivenUp
        if len(self.acting) < 4 and self.chance.random() < 0.3:
            self.act()

    def act(self) -> None:
        able = [actor for actor in self.actors if actor not in self.acting and actor.able()]
        if able:
            self.chance.choice(able).step()

    def play(self) -> None:
        """Let all act until nobody can; then those who sleep wake up."""
        for _ in range(MOST_STEPS):
            if not any(actor.able() for actor in self.actors):
                sleepers = [actor for actor in self.actors if actor.asleep]
                if not sleepers:
                    return
                self.chance.choice(sleepers).asleep = False
            self.act()
        raise AssertionError("it does not end")


def _claim(identity: str) -> Claim:
    return Claim("", "127.0.0.1", 1, "", 1, 1, "gloo", identity=identity)


class Actor:
    """One member; ``side`` tells which others it can reach."""

    def __init__(self, stage: Stage, identity: str, roll: Roll) -> None:
        self.stage, self.identity, self.side = stage, identity, 0
        self.met: Meeting | None = None
        self.error: MultiWorldError | None = None
        self.dead = self.asleep = False
        self.risk = self.impatience = 0.0
        self.roll = roll
        self.steps: Iterator[Pause] = Played(self, roll).run()

    def able(self) -> bool:
        return not (self.dead or self.asleep or self.met or self.error)

    def dies(self, chance: random.Random) -> bool:
        return chance.random() < self.risk

    def gives_up(self, chance: random.Random) -> bool:
        return chance.random() < self.impatience

    def sees(self, claim: Claim) -> bool:
        other = next(actor for actor in self.stage.actors if actor.identity == claim.identity)
        return not (other.dead or other.asleep) and other.side == self.side

    def step(self) -> None:
        self.stage.acting.append(self)
        try:
            next(self.steps)
        except StopIteration as end:
            self.met = end.value
        except MultiWorldError as error:
            self.error = error
        except Killed:
            self.dead = True
        except GivenUp:
            self.impatience /= 2
            self.steps = Played(self, self.roll).run()
        finally:
            self.stage.acting.pop()


class Played(Reassembly):
    """The real agreement of an actor; its connections are a model."""

    def __init__(self, actor: Actor, roll: Roll) -> None:
        self._actor = actor
        silent = dict.fromkeys(("expect", "forget", "complaint"), _nothing)
        endpoint: Any = SimpleNamespace(address="127.0.0.1", port=1, local="", **silent)
        source: Any = SimpleNamespace(address="127.0.0.1", where="the model", complaint=lambda _: None)
        config = WorldConfig("w", -1, 0, join_timeout=1e9, identity=actor.identity)
        job: Any = JoinJob(JoinThreads(), _nothing)
        super().__init__(roll, job, lambda *_: endpoint, lambda _: [], config, source, since=0.0)

    def _ledger_with(self, deadline: Any) -> Ledger:  # noqa: ARG002
        return self._actor.stage.ledger

    def _alive(self, generation: int, rank: int, claim: Claim) -> bool:  # noqa: ARG002
        return claim.identity != self._actor.identity  # an earlier claim of ours is not valid any more

    def _go_by(self, roll: Roll) -> None:
        super()._go_by(roll)
        seen = lambda claim, ask: Presence.HERE if self._actor.sees(claim) else Presence.STILL  # noqa: ARG005, E731
        self._agreement._presence, self._agreement._patience = seen, 0.0

    def _wire(self, generation: int, rank: int, claims: tuple[Claim, ...], *_: Any) -> Steps[Wires]:
        here, ours = self._actor.stage.here, claims[rank]
        candidates = [claim.identity for claim in self._candidates]
        assert self._actor.stage.candidates.setdefault(generation, candidates) == candidates, "places differ"
        roster = tuple(claim.incarnation for claim in claims)
        assert self._actor.stage.rosters.setdefault(generation, roster) == roster, "two parts of one generation go on"
        while True:
            if all(map(self._actor.sees, claims)):
                here.add((generation, ours.incarnation))  # what it says then comes to all
                self._actor.impatience = 0.0  # later the others would be in, and notice that it leaves
            if all((generation, claim.incarnation) in here for claim in claims):
                return Wires({}, HeldLanes(), Lines(), b"", {}, _nothing)  # type: ignore[arg-type]
            if not all(map(self._actor.sees, claims)) or self._ledger.generation() != generation:
                self._move_on(generation)
            yield Pause(0.0)


def _nothing(*_: Any) -> None:
    """Do nothing."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "FIRST_PROBE", 0.0)
    monkeypatch.setattr(agreement, "PROBE_SECONDS", 0.0)


def _check(stage: Stage) -> None:
    """One part goes on, with one roster in the old order; everybody else has an error of its own."""
    met = [actor for actor in stage.actors if actor.met]
    rosters = {(a.met.generation, tuple(c.identity for c in a.met.claims)) for a in met if a.met}
    whole = 0
    for generation, roster in rosters:
        assert list(roster) == sorted(roster)
        # Where some have gone on already, the rest notices when the connections end.
        whole += all(a.dead or (a.met and a.met.generation == generation) for a in stage.actors if a.identity in roster)
    assert whole <= 1
    assert len({generation for generation, _ in rosters}) == len(rosters)
    for actor in met:
        assert actor.met is not None
        assert actor.met.claims[actor.met.config.rank].identity == actor.identity
    for actor in stage.actors:
        assert actor.dead or actor.met or isinstance(actor.error, StaleGeneration | TooFewMembers), actor.error


@pytest.mark.parametrize("guests", [0, 2])
def test_no_two_parts_go_on_whoever_dies_or_sleeps(guests: int) -> None:
    deaths = shrunk = refused = 0
    for seed in range(RUNS):
        stage = Stage(seed, 5, guests)
        for actor in stage.chance.sample(stage.actors, 2):
            actor.risk = 0.05
        stage.chance.choice(stage.actors).asleep = seed % 3 == 0
        stage.chance.choice(stage.actors).impatience = 0.1 * (seed % 2)
        stage.play()
        _check(stage)
        deaths += sum(actor.dead for actor in stage.actors)
        shrunk += any(actor.met and len(actor.met.claims) < 5 + guests for actor in stage.actors)
        refused += sum(isinstance(actor.error, StaleGeneration) for actor in stage.actors)
    assert min(deaths, shrunk, refused) > RUNS / 10


def test_of_two_sides_that_do_not_see_each_other_one_goes_on() -> None:
    winners = set()
    for seed in range(RUNS):
        stage = Stage(seed, 5)
        for actor in stage.actors:
            actor.side = int(actor.identity) % 2
        stage.play()
        _check(stage)
        sides = {actor.side for actor in stage.actors if actor.met}
        assert len(sides) == 1
        winners |= sides
        losers = [actor for actor in stage.actors if actor.side not in sides]
        assert all(isinstance(actor.error, StaleGeneration) for actor in losers)
    assert winners == {0, 1}


def test_too_few_is_too_few_for_all() -> None:
    for seed in range(RUNS // 3):
        stage = Stage(seed, 4, min_size=3)
        for actor in stage.actors[:2]:
            actor.dead = True
        stage.play()
        assert [type(actor.error) for actor in stage.actors[2:]] == [TooFewMembers] * 2


def test_it_is_the_real_one() -> None:
    """What the model leaves out is little."""
    assert set(vars(Played)) & (set(vars(Reassembly)) | set(vars(Rendezvous))) <= {
        "__doc__",
        "__init__",
        "__module__",
        "_alive",
        "_go_by",
        "_ledger_with",
        "_wire",
    }
