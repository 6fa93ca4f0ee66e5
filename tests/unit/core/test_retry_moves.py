"""One owner of an attempt through all of it: three nodes on one store, in every order that chance finds (S6).

The model knows no gate: each node would start whatever it may. What keeps an attempt from being started twice is the
records and the lock alone, with stalls, crashes at every step, lost answers and writes that land late.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from cronstable.core.retry import RetryPolicy
from cronstable.core.retry_moves import (
    ASK_WITHIN,
    LOCK_TTL,
    Answered,
    Ask,
    Lock,
    Locked,
    Look,
    Tail,
    Taken,
    Unlock,
    Write,
    Written,
    claim,
    let_go,
    take,
    take_alone,
)
from cronstable.core.retry_records import (
    OVERDUE,
    Claim,
    Facts,
    Handoff,
    Leave,
    Pending,
    Place,
    Rearm,
    RetryRecord,
    Settled,
    Settling,
    at_boot,
    in_scan,
)

START = 1_800_000_000.0
LAST = 3
FACTS = Facts("digest", enabled=True, reboot=False, policy=RetryPolicy(LAST))
PLACE = Place(1, "run0", 1_799_999_940, "digest", START, START - 10)
MINE = Pending(PLACE, "node-a", "a1", START - 10)
LAUNCHED = Settled(Settling.LAUNCHED, "node-a", "a2", START, 1, "run0")
OVER = Settled(Settling.SUPERSEDED_BY_RUN, "node-b", "b2", START, 1, "run0")
HANDOFF = Handoff(PLACE, "node-a", "a3", START)
THEIRS = replace(MINE, host="node-b", token="b1", claimed_from="node-a")


def play(move: Generator[Ask, Answered, Any], *answers: Answered) -> tuple[list[Ask], Any]:
    """Answer a move step by step; what it asked, and what came out."""
    asked = [next(move)]
    for answer in answers:
        try:
            asked.append(move.send(answer))
        except StopIteration as end:
            return asked, end.value
    pytest.fail(f"the move still asks: {asked[-1]}")


TAKES: list[tuple[tuple[Answered, ...], bool, Taken]] = [
    ((Locked.YES, Tail((MINE,)), Written.YES, None), True, Taken.GO),
    ((Locked.BUSY,), False, Taken.LATER),
    ((Locked.UNKNOWN,), True, Taken.LATER),
    ((Locked.UNKNOWN, Tail((MINE,)), Written.YES), False, Taken.GO),
    ((Locked.UNKNOWN, Tail((MINE, THEIRS))), False, Taken.GONE),
    ((Locked.YES, None, None), True, Taken.LATER),
    ((Locked.YES, None, None), False, Taken.GO),
    ((Locked.YES, Tail((MINE, THEIRS)), None), False, Taken.GONE),
    ((Locked.YES, Tail(()), None), False, Taken.GONE),
    ((Locked.YES, Tail((MINE,)), Written.NOT_SENT, None), False, Taken.LATER),
    ((Locked.YES, Tail((MINE,)), Written.UNKNOWN, None), True, Taken.LATER),
    ((Locked.YES, Tail((MINE,)), Written.UNKNOWN, None), False, Taken.GO),
]


@pytest.mark.parametrize(("answers", "fail_closed", "expected"), TAKES)
def test_an_attempt_is_taken_only_from_a_store_that_says_it_is_ours(
    answers: tuple[Answered, ...], fail_closed: bool, expected: Taken
) -> None:
    asked, taken = play(take(MINE, LAUNCHED, tries=(), landed=True, fail_closed=fail_closed), *answers)
    assert taken is expected
    assert (Unlock() in asked) == (answers[0] is Locked.YES)


def test_what_the_store_never_acknowledged_is_ours_unless_somebody_else_wrote_after_it() -> None:
    def taken(*records: RetryRecord) -> Taken:
        move = take(MINE, LAUNCHED, tries=(), landed=False, fail_closed=False)
        answers = (Locked.YES, Tail(records), Written.YES, None)
        ours = THEIRS not in records
        found = play(move, *(answers if ours else (*answers[:2], None)))[1]
        assert isinstance(found, Taken)
        return found

    assert taken() is Taken.GO
    assert taken(MINE) is Taken.GO
    assert taken(MINE, THEIRS) is Taken.GONE


@pytest.mark.parametrize(
    ("written", "fail_closed", "expected"),
    [
        (Written.YES, True, Taken.GO),
        (Written.UNKNOWN, True, Taken.LATER),
        (Written.UNKNOWN, False, Taken.GO),
    ],
)
def test_where_no_other_node_looks_an_attempt_needs_no_lock(
    written: Written, fail_closed: bool, expected: Taken
) -> None:
    asked, taken = play(take_alone(LAUNCHED, fail_closed=fail_closed), written)
    assert (asked, taken) == ([Write(LAUNCHED, locked=False)], expected)


def test_a_claim_lands_only_on_the_record_that_was_seen() -> None:
    assert play(claim(MINE, THEIRS, OVER), Locked.YES, Tail((MINE,)), Written.YES, None)[1] is Written.YES
    assert play(claim(MINE, THEIRS, OVER), Locked.YES, Tail((MINE, LAUNCHED)), None)[1] is None
    assert play(claim(MINE, THEIRS, OVER), Locked.YES, None, None)[1] is None
    assert play(claim(MINE, THEIRS, OVER), Locked.BUSY)[1] is None
    assert play(claim(MINE, THEIRS, OVER), Locked.UNKNOWN)[1] is None


def test_an_attempt_that_was_launched_is_not_brought_back_by_a_record_that_lands_late() -> None:
    asked, written = play(claim(MINE, THEIRS, OVER), Locked.YES, Tail((LAUNCHED, MINE)), Written.YES, None)
    assert (asked[2], written) == (Write(OVER), None)
    move = take(MINE, replace(LAUNCHED, token="a9"), tries=(), landed=False, fail_closed=False)
    assert play(move, Locked.YES, Tail((LAUNCHED, MINE)), None)[1] is Taken.GONE
    again = replace(MINE, token="a8", voids=("a2",))
    assert play(claim(again, THEIRS, OVER), Locked.YES, Tail((MINE, LAUNCHED, again)), Written.YES, None)[1] is (
        Written.YES
    )
    other = replace(LAUNCHED, first_run_id="another")
    assert play(claim(MINE, THEIRS, OVER), Locked.YES, Tail((other, MINE)), Written.YES, None)[1] is Written.YES


def test_an_attempt_is_given_away_only_by_its_owner() -> None:
    assert play(let_go(MINE, HANDOFF, ()), Locked.YES, Tail((MINE,)), Written.YES, None)[1] is Written.YES
    assert play(let_go(MINE, HANDOFF, ()), Locked.YES, Tail((MINE, THEIRS)), None)[1] is None
    assert play(let_go(MINE, HANDOFF, ()), Locked.UNKNOWN)[1] is None


# -- the model --------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """A stream and a lock. ``flying``: sent and not yet landed, with the latest instant at which they may."""

    now: float = START
    records: list[RetryRecord] = field(default_factory=list)
    flying: list[tuple[float, RetryRecord]] = field(default_factory=list)
    owner: object = None
    until: float = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for one in [one for one in self.flying if one[0] <= self.now]:
            self.land(one)

    def land(self, one: tuple[float, RetryRecord]) -> None:
        self.flying.remove(one)
        self.records.append(one[1])


@dataclass
class World:
    fail_closed: bool
    loses_answers: bool = False
    store: Store = field(default_factory=Store)
    launches: list[tuple[int, str]] = field(default_factory=list)
    lost: bool = False
    """A node died between taking an attempt and arming the next one: nobody can know (a claim without a start)."""
    serial: int = 0

    def token(self) -> str:
        self.serial += 1
        return f"t{self.serial}"


@dataclass
class Node:
    """One daemon: what it remembers, and the move it is in the middle of."""

    world: World
    name: str
    choose: Any
    mine: Pending | None = None
    due: float = 0.0
    landed: bool = True
    tries: tuple[Settled, ...] = ()
    unsure: Pending | None = None
    doing: Generator[None, None, None] | None = None
    taken: bool = False

    def step(self) -> None:
        """Go on by one question to the store."""
        if self.doing is None:
            self.doing = self._next()
        try:
            next(self.doing)
        except StopIteration:
            self.doing = None

    def crash(self) -> None:
        """Everything in memory is gone; what was sent may land still."""
        self.world.lost |= self.taken
        self.mine, self.tries, self.unsure, self.doing, self.taken = None, (), None, None, False
        self.doing = self._boot()

    def _drive(self, move: Generator[Ask, Answered, Any]) -> Generator[None, None, Any]:
        store, me = self.world.store, object()
        answer: Answered = None
        until = 0.0
        try:
            ask = next(move)
            while True:
                sent = store.now
                match ask:
                    case Lock():
                        free = store.owner is None or store.now >= store.until
                        if free:
                            store.owner, store.until = me, store.now + LOCK_TTL
                        yield
                        until, answer = sent + LOCK_TTL, Locked.YES if free else Locked.BUSY
                        if self.world.loses_answers and self.choose(5) == 0:
                            answer = Locked.UNKNOWN
                    case Look():
                        answer = Tail(tuple(store.records))
                        yield
                        if self.world.loses_answers and self.choose(5) == 0:
                            answer = None
                    case Write(record, locked):
                        if locked and store.now + ASK_WITHIN > until:
                            answer = Written.NOT_SENT
                        else:
                            answer = yield from self._write(record)
                    case Unlock():
                        if store.owner is me:
                            store.owner = None
                        answer = None
                        yield
                ask = move.send(answer)
        except StopIteration as end:
            return end.value

    def _write(self, record: RetryRecord) -> Generator[None, None, Written]:
        """A call that hangs is given up on, and may take effect long after."""
        store = self.world.store
        hangs = self.world.loses_answers and self.choose(5) == 0
        until = store.now + ASK_WITHIN
        one = (until + (60 if hangs else 0), record)
        store.flying.append(one)
        while one in store.flying and store.now < until:
            yield
            if not hangs and self.choose(2) and one in store.flying:
                store.land(one)
        lost = self.world.loses_answers and self.choose(4) == 0
        return Written.UNKNOWN if lost or one in store.flying else Written.YES

    def _boot(self) -> Generator[None, None, None]:
        store = self.world.store
        newest = store.records[-1] if store.records else None
        yield
        match at_boot(newest, FACTS, host=self.name, boot_id=None, now=store.now):
            case Rearm(pending, delay):
                self.mine, self.landed, self.due = pending, True, store.now + delay
            case _:
                pass

    def _next(self) -> Generator[None, None, None]:
        if self.mine is None:
            yield from self._scan()
        elif self.world.store.now >= self.due:
            yield from (self._give(self.mine) if self.choose(6) == 0 else self._take(self.mine))
        else:
            yield

    def _take(self, mine: Pending) -> Generator[None, None, None]:
        world, store = self.world, self.world.store
        launched = Settled(Settling.LAUNCHED, self.name, world.token(), store.now, mine.place.attempt, "run0")
        self.taken = True
        taken = yield from self._drive(
            take(mine, launched, tries=self.tries, landed=self.landed, fail_closed=world.fail_closed)
        )
        self.tries = (*self.tries, launched)
        match taken:
            case Taken.GO if self.choose(6) == 0:
                # Something keeps it from starting after all: it waits once more, and that is written down.
                again = replace(mine, token=world.token(), voids=(*mine.voids, *(one.token for one in self.tries)))
                self.mine, self.tries, self.due = again, (), store.now + 1
                self.landed = (yield from self._write(again)) is Written.YES
                self.taken = False
            case Taken.GO:
                yield
                world.launches.append((mine.place.attempt, self.name))
                yield from self._fail(mine)
            case Taken.GONE:
                self.mine, self.tries = None, ()
            case Taken.LATER:
                # What may have landed will be found again, and by this process alone.
                self.due = store.now + 1
        self.taken = self.taken and self.mine is not None and bool(self.tries)

    def _fail(self, mine: Pending) -> Generator[None, None, None]:
        """The attempt failed, as they all do here: arm the next one."""
        world, store = self.world, self.world.store
        yield
        self.mine, self.tries = None, ()
        if mine.place.attempt < LAST:
            place = replace(mine.place, attempt=mine.place.attempt + 1, not_before=store.now + 5, armed_at=store.now)
            armed = Pending(place, self.name, world.token(), store.now)
            self.mine, self.due = armed, place.not_before
            self.landed = (yield from self._write(armed)) is Written.YES
        self.taken = False

    def _scan(self) -> Generator[None, None, None]:
        world, store = self.world, self.world.store
        newest = store.records[-1] if store.records else None
        yield
        found = in_scan(newest, FACTS, unsure=self.unsure, grace=OVERDUE, now=store.now)
        if newest is None or not isinstance(found, Claim):
            assert isinstance(found, Leave)
            return
        record = Pending(found.place, self.name, world.token(), store.now, claimed_from=found.claimed_from)
        over = Settled(Settling.SUPERSEDED_BY_RUN, self.name, world.token(), store.now)
        match (yield from self._drive(claim(newest, record, over))):
            case Written.YES:
                self.mine, self.landed, self.due, self.tries = record, True, store.now, ()
            case Written.UNKNOWN:
                self.unsure = record

    def _give(self, mine: Pending) -> Generator[None, None, None]:
        world, store = self.world, self.world.store
        handoff = Handoff(mine.place, self.name, world.token(), store.now)
        yield from self._drive(let_go(mine, handoff, self.tries))
        self.mine, self.tries, self.taken = None, (), False


def attempts(world: World) -> list[int]:
    return [attempt for attempt, _ in world.launches]


def model(chance: Random, world: World) -> list[Node]:
    """Let three nodes go on in random order, with stalls and crashes; each may be in the middle of anything."""
    nodes = [Node(world, f"node-{letter}", chance.randrange) for letter in "abc"]
    armed = Pending(PLACE, "node-a", world.token(), START - 10)
    nodes[0].mine, nodes[0].due = armed, PLACE.not_before
    world.store.records.append(armed)
    world.store.advance(chance.choice((0.0, OVERDUE)))
    for _ in range(120):
        match chance.randrange(12):
            case 0 if chance.randrange(4) == 0:
                nodes[chance.randrange(3)].crash()
            case 0 | 1 | 2:
                world.store.advance(chance.choice((1.0, 5.0, 10.0, 21.0, 31.0)))
            case _:
                # Not one at a time for all: a node that stands still in the middle is what everything is about.
                node = nodes[chance.randrange(3)]
                for _ in range(chance.choice((1, 1, 2, 6))):
                    node.step()
        assert len(set(attempts(world))) == len(world.launches), world.launches
    return nodes


RUNS = 200 * int(os.environ.get("CRONSTABLE_ENDURANCE_ROUNDS", "2"))


@pytest.mark.parametrize("fail_closed", [True, False])
def test_no_attempt_is_launched_twice_and_none_is_lost_while_a_node_lives(fail_closed: bool) -> None:
    whole = 0
    for seed in range(RUNS):
        chance = Random(seed)
        world = World(fail_closed)
        nodes = model(chance, world)
        survivor = nodes[chance.randrange(3)]
        for node in nodes:
            if node is not survivor:
                world.lost |= node.taken
        for _ in range(250):
            survivor.step()
            world.store.advance(1.0)
        done = attempts(world)
        assert len(set(done)) == len(done), seed
        # In the end the newest record leaves nothing to do; all attempts were made unless one died in somebody's hands.
        assert not isinstance(world.store.records[-1], Pending | Handoff), seed
        assert world.lost or sorted(done) == [1, 2, 3], seed
        whole += not world.lost
    assert whole > RUNS / 5


def test_a_store_that_loses_answers_never_doubles_an_attempt_where_the_policy_is_to_wait() -> None:
    for seed in range(RUNS):
        world = World(fail_closed=True, loses_answers=True)
        model(Random(seed), world)
        assert len(set(attempts(world))) == len(world.launches), seed
