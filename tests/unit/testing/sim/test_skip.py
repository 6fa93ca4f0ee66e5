"""A stretch in which nothing happens is left out, and what follows is the same, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core import lease
from cronstable.core.clock import Instant
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, Job, JobOptions, Json
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Cut,
    Event,
    Failed,
    LeaseState,
    LeaseTiming,
    Observe,
    Ready,
    Release,
    Renew,
    Resign,
    Stop,
    initial,
)
from cronstable.core.schedule import Schedule
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Seen, Vacant
from cronstable.testing.sim import ALL_KINDS, FLAVOURS, Moment, Result, Setup, simulate
from cronstable.testing.sim.dice import GRID, Dice
from cronstable.testing.sim.engine import Ask, Engine, Fiber, Sleep, Steps
from cronstable.testing.sim.node import Node
from cronstable.testing.sim.skip import later
from cronstable.testing.sim.world import World

MARK = "nothing happens for"
RETRY: dict[str, Json] = {"onFailure": {"retry": {"maximumRetries": 2, "initialDelay": 30}}}


def _job(name: str, schedule: str, options: JobOptions) -> Job:
    return Job(name, "true", Schedule.parse(schedule, job_name=name, zone=UTC), options)


@pytest.fixture(scope="module")
def quiet() -> Callable[..., Setup]:
    """A cluster with little to do, and a fault every few minutes."""
    jobs = (
        _job("quarter", "*/15 * * * *", JobOptions(concurrency_policy=ConcurrencyPolicy.FORBID)),
        _job("hour", "7 * * * *", JobOptions(raw=RETRY)),
        _job("prefer", "*/20 * * * *", JobOptions(cluster_policy=ClusterPolicy.PREFER_LEADER)),
        _job("every", "11 * * * *", JobOptions(cluster_policy=ClusterPolicy.EVERY_NODE)),
    )

    def make(seed: int, **more: object) -> Setup:
        given = {"backend": "filesystem", "seconds": 2400.0, "kinds": ALL_KINDS, "every": 400.0, **more}
        return Setup(jobs, seed=str(seed), **given)  # type: ignore[arg-type]

    return make


def told(result: Result) -> list[str]:
    """The log without what was left out."""
    return [line for line in result.log if MARK not in line]


@pytest.mark.parametrize("backend", sorted(FLAVOURS))
def test_what_follows_a_stretch_that_was_left_out_is_the_same(
    backend: str, seeds: int, quiet: Callable[..., Setup]
) -> None:
    skipped = 0.0
    for seed in range(max(2, seeds // 8)):
        setup = quiet(seed, backend=backend, nodes=(3, 2)[seed % 2], ttl=(15.0, 6.0, 10.0)[seed % 3])
        short, whole = simulate(setup), simulate(replace(setup, skip_idle=False))
        assert told(short) == list(whole.log), f"seed {seed}"
        assert short.violations == whole.violations == ()
        assert replace(short.counts, skipped_seconds=0.0) == whole.counts
        assert short.events < whole.events
        skipped += short.counts.skipped_seconds / setup.seconds
    assert skipped > 0.3


def test_the_same_seed_leaves_out_the_same(quiet: Callable[..., Setup]) -> None:
    one, other = simulate(quiet(1)), simulate(quiet(1))
    assert one.digest == other.digest
    assert any(MARK in line for line in one.log)


def test_nothing_happens_in_what_is_left_out(quiet: Callable[..., Setup]) -> None:
    result = simulate(quiet(3, every=60.0, seconds=2400.0))
    moments = [float(line.split()[0]) for line in result.log if MARK not in line]
    stretches = [(float(line.split()[0]), float(line.split()[-2])) for line in result.log if MARK in line]
    assert len(stretches) > 5
    assert [seconds for _, seconds in stretches if seconds < 4.0] == []
    assert [at for at in moments for since, seconds in stretches if since < at <= since + seconds] == []


@pytest.mark.parametrize("backend", sorted(FLAVOURS))
def test_what_chance_makes_of_a_renewal_is_known_before_it_leaves(backend: str, quiet: Callable[..., Setup]) -> None:
    world = World(quiet(1, backend=backend, nodes=4, seconds=400.0, kinds=(), skip_idle=False))
    network, engine, tick = world.network, world.engine, 1 / GRID
    said: list[float] = []

    def expect(leader: Node, others: list[Node], is_done: bool) -> None:
        lease = leader.process.lease if leader.process is not None else None
        assert lease is not None
        done = lease.state.in_flight is None and all(network.is_watching(other) for other in others)
        assert done is is_done, f"t={engine.at:.6f}"

    def note(node: Node, moment: Moment) -> None:
        others = [other for other in world.nodes if other is not node]
        if moment is Moment.RENEWING and all(network.is_watching(other) for other in others):
            seen = network.seen_at(engine.at, node, others)
            if seen >= engine.at + world.flavour.timing.renew_every:
                # The next one leaves before all have seen this one: nothing is said about that.
                return
            said.append(seen)
            engine.fix(seen - engine.at - tick, partial(expect, node, others, False))
            engine.fix(seen - engine.at + tick, partial(expect, node, others, True))

    world.moment = note  # type: ignore[method-assign]
    assert world.run().violations == ()
    assert len(said) > 50


def test_who_waits_longest_is_not_who_comes_first() -> None:
    """The order at one instant is of the instant and of who waits, not of what came before."""

    def order(before: int) -> list[int]:
        came: list[int] = []
        engine = Engine(Dice("order"))
        machine = Waiter(engine)
        fibers = [Fiber(engine, machine, machine.sleep(number, came), machine.send) for number in range(20)]
        for _ in range(before):
            engine.after(1.0, machine.nothing)
        engine.run(100.0)
        assert all(fiber.over for fiber in fibers)
        return came

    assert order(0) == order(7)
    assert sorted(order(0)) == list(range(20)) != order(0)


class Waiter:
    """A machine that runs, with true clocks. On it some begin to wait later than others, and all for the same."""

    stopped = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def now(self) -> Instant:
        return Instant(self.engine.at, self.engine.at)

    def later(self, boot: float) -> float:
        return boot - self.engine.at

    def postpone(self, action: Callable[[], None]) -> None:
        raise AssertionError("this one never stands still")

    def send(self, fiber: Fiber, ticket: int, ask: Ask) -> None:
        raise AssertionError("nobody asks here")

    def nothing(self) -> None:
        """Something that is done meanwhile."""

    def sleep(self, number: int, came: list[int]) -> Steps[None]:
        yield Sleep(float(number % 3))
        yield Sleep(50.0)
        came.append(number)


# -- the lease does not tell one hour from another --------------------------------------------------------------------

ME, OTHER = Holder("a", "ta"), Holder("b", "tb")
START = Instant(1_767_225_600.0, 1000.0)


def _move(event: Event, by: float) -> Event:
    if not isinstance(event, Answered):
        return event
    match event.observation:
        case Held(grant):
            at = None if grant.expires_at is None else grant.expires_at + by
            return Answered(Held(replace(grant, expires_at=at)))
        case Seen(record):
            at = None if record.expires_at is None else record.expires_at + by
            return Answered(Seen(replace(record, expires_at=at)))
        case _:
            return event


def _answer(draw: Callable[[st.SearchStrategy[str]], str], state: LeaseState, wall: float) -> Event:
    assert state.in_flight is not None
    request = state.in_flight.request
    expires = {"none": None, "ahead": wall + 15.0, "past": wall - 1.0}[draw(st.sampled_from(["none", "ahead", "past"]))]
    kind = draw(st.sampled_from(["held", "seen", "seen", "vacant", "failed", "cut"]))
    if kind == "failed":
        return Failed("lost")
    if isinstance(request, Release):
        return Answered(None)
    if kind == "held" and isinstance(request, Acquire | Renew):
        fence = request.grant.fence if isinstance(request, Renew) else (state.fence or 0) + 1
        return Answered(Held(Grant(state.me, fence, request.nonce, 15.0, expires)))
    if kind == "cut" and isinstance(request, Observe):
        return Cut()
    if kind == "vacant":
        return Answered(Vacant(7 if draw(st.sampled_from(["7", "none"])) == "7" else None))
    mark = draw(st.sampled_from(["", "m1", "m2"]))
    return Answered(Seen(LeaseRecord(OTHER, int(draw(st.sampled_from("129"))), "n", 15.0, expires, mark)))


@given(st.data(), st.booleans(), st.integers(1, 2**30))
def test_a_lease_that_is_later_goes_on_as_much_later(data: st.DataObject, expires_itself: bool, whole: int) -> None:
    """Whatever comes: the state that is ``by`` later does ``by`` later what the other one does."""
    by = whole / 1024
    state = initial(ME, LeaseTiming.for_ttl(15.0), expires_itself=expires_itself)
    moved, passed = later(state, by), 0.0
    for number in range(data.draw(st.integers(1, 12))):
        passed += data.draw(st.integers(0, 40)) / 4
        now = Instant(START.wall + passed, START.boot + passed)
        event: Event
        if state.in_flight is not None:
            event = _answer(data.draw, state, now.wall)
        else:
            kind = data.draw(st.sampled_from(["ready", "ready", "ready", "ready", "stop", "resign"]))
            ready = Ready(f"n{number}", "t", data.draw(st.sampled_from([0.0, 0.5])))
            event = Stop() if kind == "stop" else Resign(60.0) if kind == "resign" else ready
        state, commands = lease.step(state, event, now)
        moved, others = lease.step(moved, _move(event, by), Instant(now.wall + by, now.boot + by))
        assert moved == later(state, by)
        assert [type(command) for command in others] == [type(command) for command in commands]
