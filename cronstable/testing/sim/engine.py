"""The event heap of a simulation, and fibers: generators that yield what they wait for.

An event loop's tasks are cancelled in an order that differs from run to run; here everything happens in the order of
(time, a seeded number, age), so that a seed replays byte for byte. Time is the world's own, in seconds from 0.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

from cronstable.core.clock import Instant
from cronstable.testing.sim.dice import GRID, Dice

T = TypeVar("T")


_MASK: Final = (1 << 64) - 1
SPINNING: Final = 100_000
"""Events at one instant that nothing but a loop without a wait explains."""


TICK: Final = 0.0005
"""Seconds. No timer is finer, so that a wait which rounds to nothing still lets time pass."""
QUIET: Final = 0.05
"""Seconds without an event: only then is it asked whether the stretch ahead can be skipped."""


def on_grid(seconds: float) -> float:
    """The next instant of the grid that is not sooner."""
    return math.ceil(seconds * GRID) / GRID


class Sort(Enum):
    """What an entry of the heap is, for whoever skips a stretch in which nothing happens.

    ``STEP``: something is under way. ``ALARM``: a fiber waits. ``HELD``: the store waits. ``FIXED``: it comes when it
    comes, whatever happens before.
    """

    STEP = "step"
    ALARM = "alarm"
    HELD = "held"
    FIXED = "fixed"


class Spinning(AssertionError):
    """Time stands still."""


class Signal:
    """Wakes every fiber that waits for it at that moment."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Fiber, int]] = []

    def add(self, fiber: Fiber, ticket: int) -> None:
        """Who waits."""
        if len(self._waiting) > 8:
            self._waiting = [(one, at) for one, at in self._waiting if not one.over and one.ticket == at]
        self._waiting.append((fiber, ticket))

    def set(self) -> None:
        """Wake them, each as an event of its own."""
        waiting, self._waiting = self._waiting, []
        for fiber, ticket in waiting:
            fiber.engine.soon(partial(fiber.resume, ticket, True))


@dataclass(frozen=True, slots=True)
class Sleep:
    """Until the node's boot clock shows ``until``, or ``signal`` is set (then True is sent in)."""

    until: float
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the store. A ``Reply`` or a ``Refusal`` is sent in; None when nothing came until ``by`` (boot).

    ``commit`` is what the store does, at one instant. ``watch``: seconds for which the store may hold the answer back
    until something changes.
    """

    operation: str
    commit: Callable[[], object]
    by: float
    watch: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The store's answer."""

    value: object


@dataclass(frozen=True, slots=True)
class Refusal:
    """The store could not be used."""

    detail: str


Effect: TypeAlias = Sleep | Ask
Steps: TypeAlias = Generator[Effect, object, T]


class Machine(Protocol):
    """The machine that a fiber runs on: a node."""

    @property
    def stopped(self) -> bool:
        """Nothing runs on it now."""
        ...

    def now(self) -> Instant:
        """Its clocks."""
        ...

    def later(self, boot: float) -> float:
        """World seconds until its boot clock shows ``boot``."""
        ...

    def postpone(self, action: Callable[[], None]) -> None:
        """Do this when it runs again."""
        ...


Row: TypeAlias = tuple[float, int, int, Sort, Callable[[], None]]
"""What happens at an instant: when, in which order of those at that instant, its age, what it is, what is done."""


class Engine:
    """What happens when. ``dice`` orders what happens at one instant.

    ``skip``: called when nothing is under way and nothing happens for a moment; it may ``leap`` over what follows, and
    returns before which instant it need not be asked again.
    """

    def __init__(self, dice: Dice) -> None:
        self.at = 0.0
        self.events = 0
        self.halted = False
        self.skip: Callable[[], float] | None = None
        self._order = dice.bits()
        self._heap: list[Row] = []
        self._age = 0
        self._ordinal = 0
        self._steps = 0
        self._fixed: list[float] = []

    def after(self, seconds: float, action: Callable[[], None], sort: Sort = Sort.STEP) -> None:
        """Do ``action`` then."""
        if seconds == math.inf:
            return
        ticks = math.ceil((self.at if seconds <= 0 else self.at + seconds) * GRID)
        self._age += 1
        self._ordinal += 1
        if sort is Sort.STEP:
            self._steps += 1
        elif sort is Sort.FIXED:
            heapq.heappush(self._fixed, ticks / GRID)
        # The order is of the instant and of what was done at this one alone: skipping what came before changes none.
        mixed = (ticks * 0x9E3779B97F4A7C15 + self._ordinal * 0xBF58476D1CE4E5B9 + self._order) & _MASK
        order = ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB & _MASK) >> 48
        heapq.heappush(self._heap, (ticks / GRID, order, self._age, sort, action))

    def soon(self, action: Callable[[], None]) -> None:
        """Do ``action`` at this instant, after what is being done."""
        self.after(0.0, action)

    def run(self, until: float) -> None:
        """Everything up to ``until``."""
        at_once, asked = 0, 0.0 if self.skip is not None else math.inf
        while self._heap and self._heap[0][0] <= until and not self.halted:
            if not self._steps and self.at >= asked and self._heap[0][0] > self.at + QUIET:
                assert self.skip is not None
                asked = max(self.skip(), self.at + QUIET)
                continue
            at, _, _, sort, action = heapq.heappop(self._heap)
            if at == self.at:
                at_once += 1
                if at_once > SPINNING:
                    raise Spinning(f"something is done again and again at t={at:.3f} and no time passes")
            else:
                self.at, self._ordinal, at_once = at, 0, 0
            if sort is Sort.STEP:
                self._steps -= 1
            self.events += 1
            action()
        if not self.halted:
            self.at = until

    def next_fixed(self) -> float:
        """The next instant at which something comes whatever happens before; infinite when nothing does."""
        while self._fixed and self._fixed[0] <= self.at:
            heapq.heappop(self._fixed)
        return self._fixed[0] if self._fixed else math.inf

    def leap(
        self, to: float, move: Callable[[float, Sort, Callable[[], None]], tuple[float, Callable[[], None]] | None]
    ) -> None:
        """Go to ``to`` at once. Nothing may be under way.

        ``move`` says of what waits (but for what is fixed) when it comes and what it does then; None: never.
        """
        rows: list[Row] = []
        for row in self._heap:
            at, order, age, sort, action = row
            if sort is Sort.FIXED:
                rows.append(row)
            elif (moved := move(at, sort, action)) is not None:
                rows.append((moved[0], order, age, sort, moved[1]))
        heapq.heapify(rows)
        self._heap = rows
        self.at, self._ordinal = to, 0

    def halt(self) -> None:
        """Nothing more happens."""
        self.halted = True


class Alarm:
    """Wakes a fiber when its node's boot clock shows ``until``, unless something else woke it before."""

    __slots__ = ("fiber", "ticket", "until", "value")

    def __init__(self, fiber: Fiber, ticket: int, until: float, value: object) -> None:
        self.fiber, self.ticket, self.until, self.value = fiber, ticket, until, value

    @property
    def stale(self) -> bool:
        """Something else came before."""
        return self.fiber.over or self.ticket != self.fiber.ticket

    def set(self) -> None:
        """See ``Engine.after``."""
        engine, machine = self.fiber.engine, self.fiber.machine
        engine.after(max(TICK, machine.later(self.until)), self, Sort.ALARM)

    def __call__(self) -> None:
        """It rings."""
        if self.stale:
            return
        machine = self.fiber.machine
        if machine.stopped:
            machine.postpone(self)
        elif machine.now().boot < self.until - 1e-6:
            # The clock was slowed or stood still meanwhile.
            self.set()
        else:
            self.fiber.resume(self.ticket, self.value)


class Fiber:
    """One task of one process. Nothing more happens in it once it was ended."""

    __slots__ = ("_send", "_steps", "engine", "machine", "over", "ticket")

    def __init__(
        self, engine: Engine, machine: Machine, steps: Steps[None], send: Callable[[Fiber, int, Ask], None]
    ) -> None:
        self.engine = engine
        self.machine = machine
        self._steps = steps
        self._send = send
        self.ticket = 0
        self.over = False
        engine.soon(lambda: self.resume(0, None))

    def end(self) -> None:
        """As when the process dies: no cleanup of its own."""
        self.over = True

    def cancel(self) -> None:
        """As when a task is cancelled: what it holds is given back. Not from within itself."""
        self.over = True
        self._steps.close()

    def resume(self, ticket: int, value: object) -> None:
        """What was waited for under ``ticket`` has come, unless something else came before."""
        if self.over or ticket != self.ticket:
            return
        if self.machine.stopped:
            self.machine.postpone(lambda: self.resume(ticket, value))
            return
        self.ticket += 1
        try:
            effect = self._steps.send(value)
        except StopIteration:
            self.over = True
            return
        if isinstance(effect, Sleep):
            if effect.signal is not None:
                effect.signal.add(self, self.ticket)
            Alarm(self, self.ticket, effect.until, False).set()
        else:
            self._send(self, self.ticket, effect)
            Alarm(self, self.ticket, effect.by, None).set()


class Lock:
    """One fiber at a time, in the order in which they came."""

    __slots__ = ("_held", "_queue")

    def __init__(self) -> None:
        self._held = False
        self._queue: deque[Signal] = deque()

    def take(self) -> Steps[None]:
        """Wait for it."""
        if self._held:
            turn = Signal()
            self._queue.append(turn)
            try:
                yield Sleep(math.inf, turn)
            except GeneratorExit:
                if turn in self._queue:
                    self._queue.remove(turn)
                else:
                    self.give()
                raise
        self._held = True

    def give(self) -> None:
        """Let the next one have it."""
        if self._queue:
            self._queue.popleft().set()
        else:
            self._held = False


def pause(machine: Machine, seconds: float, signal: Signal | None = None) -> Steps[bool]:
    """Wait; True when ``signal`` ended it."""
    return (yield Sleep(machine.now().boot + seconds, signal)) is True
