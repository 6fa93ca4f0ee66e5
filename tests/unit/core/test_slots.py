"""Slots: who gets one, who waits for one, what is said when one is lost, and never two nodes that both have it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from cronstable.core.clock import Instant
from cronstable.core.lease_values import Standing
from cronstable.core.slots import (
    Adopt,
    Answer,
    AskToEnd,
    Entered,
    Kept,
    Lost,
    NoAnswer,
    Occupied,
    Patience,
    Regained,
    Rest,
    Slot,
    SlotAsk,
    Try,
    asked_to_end,
    cancel_record,
    enter,
    entering,
    leave,
    renewed,
)
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Observation, Seen, Unreadable, Vacant

TTL = 30.0
WALL = 1_800_000_000.0
FORBID, REPLACE = Patience.NONE, Patience.END_IT
ME, OTHER = Holder("node-a", "ta"), Holder("node-b", "tb")
MINE = Grant(ME, 7, "n1", TTL)


def at(boot: float) -> Instant:
    return Instant(WALL + boot, boot)


def record(expires: float | None = TTL, nonce: str = "x1", fence: int = 3) -> LeaseRecord:
    return LeaseRecord(OTHER, fence, nonce, TTL, None if expires is None else WALL + expires, mark=nonce)


class Door:
    """The store as a table of answers by time; each question takes no time, and a rest takes what it asks for."""

    def __init__(self, *answers: tuple[float, Observation | None], wrote: frozenset[str] = frozenset()) -> None:
        self.answers = answers
        self.asked: list[SlotAsk] = []
        self.boot = 0.0
        self.wrote = wrote

    def enter(self, policy: Patience, standing: Standing | None = None) -> Any:
        move = entering(policy, TTL, standing, self.wrote, at(0))
        ask = next(move)
        while True:
            self.asked.append(ask)
            observation = None
            match ask:
                case Rest(seconds):
                    self.boot += seconds
                case Try(over):
                    observation = self._now(over)
                case Adopt(grant):
                    observation = Held(grant)
                case AskToEnd():
                    pass
            try:
                ask = move.send(Answer(observation, self.boot, at(self.boot)))
            except StopIteration as end:
                entry, self.standing = end.value
                return entry

    def _now(self, over: Seen | None) -> Observation | None:
        found = [observation for since, observation in self.answers if since <= self.boot][-1]
        return Held(replace(MINE, fence=over.record.fence + 1)) if over is not None and found == over else found


def test_a_free_slot_is_entered_and_is_ours_for_its_ttl_from_before_the_question() -> None:
    assert Door((0, Held(MINE))).enter(FORBID) == Entered(MINE, TTL)


def test_forbid_gives_up_at_once_before_a_living_holder_and_names_it() -> None:
    door = Door((0, Seen(record())))
    assert door.enter(FORBID) == Occupied("node-b")
    assert door.boot == 0
    assert door.asked == [Try()]


def test_forbid_waits_for_a_holder_that_ran_out_and_takes_its_place_once_it_stood_still() -> None:
    door = Door((0, Seen(record(expires=-5))))
    entered = door.enter(FORBID)
    assert isinstance(entered, Entered)
    assert entered.grant.fence == 4
    assert TTL <= door.boot <= TTL + 1


def test_a_record_that_was_seen_long_ago_need_not_stand_still_once_more() -> None:
    dead = record(expires=-100)
    door = Door((0, Seen(dead)))
    assert isinstance(door.enter(FORBID, Standing(dead, -60.0)), Entered)
    assert door.boot == 0


def test_forbid_gives_up_when_the_holder_turns_out_to_live() -> None:
    door = Door((0, Seen(record(expires=-5))), (10, Seen(record(expires=40, nonce="x2"))))
    assert door.enter(FORBID) == Occupied("node-b")
    assert door.boot == 10
    assert door.standing == Standing(record(expires=40, nonce="x2"), 10.0)


def test_replace_asks_the_holder_of_this_very_fence_to_end_and_enters_when_it_has() -> None:
    door = Door((0, Seen(record())), (10, Seen(record(nonce="x2", expires=40))), (12, Held(MINE)))
    assert door.enter(REPLACE) == Entered(MINE, 12 + TTL)
    assert [ask for ask in door.asked if isinstance(ask, AskToEnd)] == [AskToEnd(3)]


def test_replace_asks_again_when_another_one_was_faster() -> None:
    door = Door((0, Seen(record())), (10, Seen(record(fence=4, nonce="y1", expires=40))), (12, Held(MINE)))
    assert isinstance(door.enter(REPLACE), Entered)
    assert [ask for ask in door.asked if isinstance(ask, AskToEnd)] == [AskToEnd(3), AskToEnd(4)]


def test_replace_gives_up_after_twice_the_ttl() -> None:
    answers = [(float(n), Seen(record(nonce=f"x{n}", expires=n + TTL))) for n in range(0, 200, 10)]
    door = Door(*answers)
    assert door.enter(REPLACE) == Occupied("node-b")
    assert 2 * TTL <= door.boot <= 2 * TTL + 1


@pytest.mark.parametrize("policy", [FORBID, REPLACE])
@pytest.mark.parametrize("observation", [None, Unreadable("torn")])
def test_a_store_without_an_answer_denies_nobody_and_grants_nothing(
    policy: Patience, observation: Observation | None
) -> None:
    assert Door((0, observation)).enter(policy) == NoAnswer()


def test_a_survivor_waits_for_the_slot_of_its_own_dead_daemon_and_asks_nobody_to_end() -> None:
    door = Door((0, Seen(record())))
    entered = door.enter(Patience.WAIT)
    assert isinstance(entered, Entered)
    assert TTL <= door.boot <= TTL + 2
    assert not any(isinstance(ask, AskToEnd) for ask in door.asked)


def test_a_slot_that_is_let_go_at_this_moment_is_tried_for_again() -> None:
    door = Door((0, Vacant(3)), (1, Held(MINE)))
    assert isinstance(door.enter(FORBID), Entered)
    assert door.boot == 1


def test_an_answer_that_was_lost_is_found_again_by_its_nonce_and_never_by_name_or_token() -> None:
    own = LeaseRecord(ME, 7, "n1", TTL, WALL + TTL)
    assert Door((0, Seen(own)), wrote=frozenset({"n1"})).enter(FORBID) == Entered(
        Grant(ME, 7, "n1", TTL, WALL + TTL), TTL
    )
    assert Door((0, Seen(own))).enter(FORBID) == Occupied("node-a")


# -- holding


def test_the_slot_is_let_go_with_the_last_local_run() -> None:
    slot = enter(Slot(), Entered(MINE, 30.0))
    slot = enter(slot, None)
    slot, released = leave(slot)
    assert (slot.refs, released) == (1, None)
    assert leave(slot) == (Slot(), MINE)


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    held, said = renewed(Slot(1, MINE, 30.0), Held(replace(MINE, nonce="n2")), TTL, 10.0, 12.0)
    assert (held.until, said) == (40.0, Kept())


def test_a_lost_slot_is_said_once_and_its_runs_go_on() -> None:
    slot, said = renewed(Slot(1, MINE, 30.0), Seen(record()), TTL, 10.0, 10.0)
    assert said == Lost("node-b")
    assert (slot.refs, slot.grant, slot.lost, slot.holder) == (1, None, True, "node-b")
    assert leave(slot)[1] is None


def test_silence_is_a_loss_only_when_the_ttl_is_over_and_an_answer_can_still_heal_it() -> None:
    slot = Slot(1, MINE, 30.0)
    for boot in (10.0, 20.0, 29.9):
        slot, said = renewed(slot, None, TTL, boot, boot)
        assert said == Kept()
    slot, said = renewed(slot, None, TTL, 30.0, 30.0)
    assert said == Lost(None)
    slot, said = renewed(slot, None, TTL, 40.0, 40.0)
    assert said == Kept()
    slot, said = renewed(slot, Held(MINE), TTL, 50.0, 50.0)
    assert (said, slot.lost, slot.until) == (Regained(), False, 80.0)


def test_a_vanished_slot_is_lost() -> None:
    assert renewed(Slot(1, MINE, 30.0), Vacant(9), TTL, 10.0, 10.0)[1] == Lost(None)


def test_only_the_holder_of_the_named_fence_is_asked_to_end() -> None:
    wanted = cancel_record(3, "node-a", WALL)
    assert asked_to_end(wanted, 3) == "node-a"
    assert asked_to_end(wanted, 4) is None
    assert asked_to_end(None, 3) is None
    assert asked_to_end({"kind": "other", "fence": 3}, 3) is None


# -- the model


@dataclass
class Lease:
    """A linearisable lease: what a state store keeps."""

    stands: LeaseRecord | None = None
    fence: int = 0
    writes: int = 0
    answers: int = 0

    def try_for(self, me: Holder, nonce: str, over: Seen | None, wall: float) -> Observation:
        if self.stands is not None and (over is None or over.record.mark != self.stands.mark):
            return Seen(self.stands)
        if self.stands is None and over is not None:
            return Vacant(self.fence)
        self.fence += 1
        return self._hold(Grant(me, self.fence, nonce, TTL), wall)

    def renew(self, grant: Grant, nonce: str, wall: float) -> Observation:
        if self.stands is None:
            return Vacant(self.fence)
        return self._hold(replace(grant, nonce=nonce), wall) if grant.owns(self.stands) else Seen(self.stands)

    def release(self, grant: Grant) -> None:
        if self.stands is not None and grant.owns(self.stands):
            self.stands = None

    def _hold(self, grant: Grant, wall: float) -> Held:
        self.writes += 1
        self.stands = LeaseRecord(grant.holder, grant.fence, grant.nonce, TTL, wall + TTL, f"m{self.writes}")
        return Held(grant)


@dataclass
class Node:
    """One daemon; its clocks are off by ``skew`` (wall) from those of the others."""

    name: str
    lease: Lease
    chance: Random
    skew: float
    boot: float = 0.0
    slot: Slot = field(default_factory=Slot)
    standing: Standing | None = None
    wrote: set[str] = field(default_factory=set)
    doing: Generator[None, None, None] | None = None

    @property
    def holds(self) -> bool:
        return self.slot.grant is not None and not self.slot.lost and self.boot < self.slot.until

    def step(self) -> None:
        if self.doing is None:
            self.doing = self._live()
        try:
            next(self.doing)
        except StopIteration:
            self.doing = None

    def die(self) -> None:
        self.slot, self.standing, self.doing, self.wrote = Slot(), None, None, set()

    def _nonce(self) -> str:
        nonce = f"{self.name}{self.chance.random()}"
        self.wrote.add(nonce)
        return nonce

    def _lossy(self, observation: Observation) -> Observation | None:
        return None if self.chance.random() < 0.1 else observation

    def _live(self) -> Generator[None, None, None]:
        if not self.slot.refs:
            yield from self._enter()
        elif self.slot.grant is not None and self.chance.random() < 0.7:
            sent, grant = self.boot, self.slot.grant
            found = self._lossy(self.lease.renew(grant, self._nonce(), WALL + self.skew + self.boot))
            if isinstance(found, Held) or found is None:
                yield
            self.slot, _ = renewed(self.slot, found, TTL, sent, self.boot)
        else:
            self.slot, grant_now = leave(self.slot)
            if grant_now is not None:
                self.lease.release(grant_now)
            yield

    def _enter(self) -> Generator[None, None, None]:
        policy = self.chance.choice(tuple(Patience))
        move = entering(policy, TTL, self.standing, self.wrote, self._now())
        ask = next(move)
        while True:
            sent, found = self.boot, None
            match ask:
                case Try(over):
                    me = Holder(self.name, self.name)
                    found = self._lossy(self.lease.try_for(me, self._nonce(), over, self._now().wall))
                case Adopt(grant):
                    found = self._lossy(self.lease.renew(grant, self._nonce(), self._now().wall))
                case Rest() | AskToEnd():
                    pass
            yield
            try:
                ask = move.send(Answer(found, sent, self._now()))
            except StopIteration as end:
                entry, self.standing = end.value
                if isinstance(entry, Entered):
                    self.slot = enter(self.slot, entry)
                return

    def _now(self) -> Instant:
        return Instant(WALL + self.skew + self.boot, self.boot)


def test_never_do_two_nodes_both_hold_a_slot_whatever_their_wall_clocks_say() -> None:
    entered = 0
    for seed in range(300):
        chance, lease = Random(seed), Lease()
        nodes = [Node(name, lease, chance, chance.choice((0.0, -300.0, 300.0))) for name in "abc"]
        for _ in range(150):
            match chance.randrange(8):
                case 0:
                    passed = chance.choice((1.0, 5.0, 11.0, 31.0))
                    for node in nodes:
                        node.boot += passed
                case 1 if chance.random() < 0.2:
                    chance.choice(nodes).die()
                case _:
                    chance.choice(nodes).step()
            holders = [node.name for node in nodes if node.holds]
            assert len(holders) <= 1, seed
            entered += len(holders)
    assert entered > 1000


def test_a_slot_of_a_dead_node_is_had_by_another_one_in_the_end() -> None:
    lease = Lease()
    chance = Random(1)
    dead, alive = (Node(name, lease, chance, 0.0) for name in "ab")
    assert isinstance(lease.try_for(Holder("a", "a"), "n", None, WALL), Held)
    del dead
    for _ in range(200):
        alive.boot += 1.0
        alive.step()
        if alive.holds:
            return
    pytest.fail("the slot was never free")
