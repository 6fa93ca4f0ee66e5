"""The event heap, its fibers and the clocks of its nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cronstable.core.clock import Instant
from cronstable.testing.sim.clocks import NodeClock
from cronstable.testing.sim.dice import Dice
from cronstable.testing.sim.engine import Ask, Engine, Fiber, Lock, Signal, Sleep, Spinning, Steps, pause


class Machine:
    """One that runs, with true clocks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.stopped = False
        self.waiting: list[Callable[[], None]] = []

    def now(self) -> Instant:
        return Instant(self.engine.at, self.engine.at)

    def later(self, boot: float) -> float:
        return boot - self.engine.at

    def postpone(self, action: Callable[[], None]) -> None:
        self.waiting.append(action)


class Stage:
    def __init__(self) -> None:
        self.engine = Engine(Dice("stage"))
        self.machine = Machine(self.engine)
        self.said: list[tuple[float, str]] = []

    def say(self, text: str) -> None:
        self.said.append((round(self.engine.at, 2), text))

    def start(self, steps: Steps[None]) -> Fiber:
        return Fiber(self.engine, self.machine, steps, self._send)

    @staticmethod
    def _send(fiber: Fiber, ticket: int, ask: Ask) -> None:
        raise AssertionError("nobody asks here")


def test_a_sleep_ends_in_time_or_by_its_signal() -> None:
    stage, signal = Stage(), Signal()

    def sleeper(name: str, on: Signal | None) -> Steps[None]:
        woken = yield from pause(stage.machine, 5.0, on)
        stage.say(f"{name} {woken}")

    stage.start(sleeper("slept", None))
    stage.start(sleeper("woken", signal))
    stage.engine.after(2.0, signal.set)
    stage.engine.run(10.0)
    assert stage.said == [(2.0, "woken True"), (5.0, "slept False")]


def test_a_lock_goes_to_who_came_first_also_when_one_of_them_is_cancelled() -> None:
    stage, lock = Stage(), Lock()

    def holder(name: str, seconds: float) -> Steps[None]:
        yield from pause(stage.machine, seconds)
        yield from lock.take()
        try:
            stage.say(name)
            yield from pause(stage.machine, 3.0)
        finally:
            lock.give()

    for seconds, name in enumerate(("first", "second", "third")):
        fiber = stage.start(holder(name, float(seconds)))
        if name == "second":
            stage.engine.after(2.5, fiber.cancel)
    stage.engine.run(20.0)
    assert stage.said == [(0.0, "first"), (3.0, "third")]


def test_a_process_that_was_killed_does_nothing_more_and_one_that_was_stopped_does_it_later() -> None:
    stage = Stage()

    def talker(name: str) -> Steps[None]:
        for _ in range(3):
            yield from pause(stage.machine, 1.0)
            stage.say(name)

    killed = stage.start(talker("killed"))
    stage.engine.after(1.5, killed.end)
    stage.engine.run(1.9)
    stage.start(talker("stopped"))
    stage.machine.stopped = True
    stage.engine.run(10.0)
    assert stage.said == [(1.0, "killed")]
    stage.machine.stopped = False
    for action in stage.machine.waiting:
        action()
    stage.engine.run(20.0)
    assert [text for _, text in stage.said[1:]] == ["stopped"] * 3
    assert stage.said[1][0] >= 10.0


def test_what_goes_on_without_time_passing_is_an_error() -> None:
    engine = Engine(Dice("spin"))

    def again() -> None:
        engine.soon(again)

    again()
    with pytest.raises(Spinning, match="no time passes"):
        engine.run(1.0)


def test_a_timer_waits_for_a_clock_that_was_slowed() -> None:
    stage = Stage()
    clock = NodeClock(0.0, 0.0)
    stage.machine.now = lambda: clock.read(stage.engine.at)  # type: ignore[method-assign]
    stage.machine.later = lambda boot: clock.until(boot, stage.engine.at)  # type: ignore[method-assign]

    def sleeper() -> Steps[None]:
        yield Sleep(10.0)
        stage.say("awake")

    stage.start(sleeper())
    stage.engine.after(5.0, lambda: clock.set_rate(0.5, stage.engine.at))
    stage.engine.run(30.0)
    assert stage.said == [(15.0, "awake")]


def test_a_clock_steps_drifts_and_stands_still() -> None:
    clock = NodeClock(1000.0, 50.0)
    assert clock.read(10.0) == Instant(1010.0, 60.0)
    clock.step(-30.0)
    assert clock.read(10.0) == Instant(980.0, 60.0)
    clock.set_rate(2.0, 10.0)
    assert clock.read(15.0) == Instant(990.0, 70.0)
    assert clock.until(80.0, 15.0) == 5.0
    clock.freeze(True, 15.0)
    assert clock.read(100.0) == Instant(990.0, 70.0)
    clock.freeze(False, 100.0)
    clock.set_rate(1.0, 100.0)
    assert clock.read(101.0) == Instant(991.0, 71.0)
    assert clock.error(101.0) == pytest.approx(-110.0)


def test_the_dice_are_the_same_everywhere() -> None:
    assert [Dice("a").below(1000), Dice("b").below(1000)] == [Dice("a").below(1000), Dice("b").below(1000)]
    dice = Dice("a")
    assert sorted(dice.shuffled(range(10))) == list(range(10))
    assert all(2.0 <= dice.between(2.0, 3.0) < 3.0 for _ in range(100))
    assert len(dice.token(9)) == 18
