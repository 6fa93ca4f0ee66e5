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


# Not frozen: making one then costs a third, and one is made for every wait.
@dataclass(slots=True, eq=False)
class Sleep:
    """Until the node's boot clock shows ``until``, or ``signal`` is set (then True is sent in)."""

    until: float
    signal: Signal | None = None


@dataclass(slots=True, eq=False)
class Ask:
    """One request to the store. A ``Reply`` or a ``Refusal`` is sent in; None when nothing came until ``by`` (boot).

    ``commit`` is what the store does, at one instant. ``watch``: seconds for which the store may hold the answer back
    until something changes.
    """

    operation: str
    commit: Callable[[], object]
    by: float
    watch: float = 0.0


@dataclass(slots=True, eq=False)
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


class Waiting(Protocol):
    """What an ``ALARM`` or a ``HELD`` entry does. ``number``: of the fiber that waits."""

    @property
    def number(self) -> int:
        """See above."""
        ...

    @property
    def stale(self) -> bool:
        """Something else came before: it does nothing any more."""
        ...

    def __call__(self) -> None:
        """The wait is over."""
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
        self._fibers = 0
        self._fixed: list[Row] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do ``action`` then: it is under way until it is done."""
        if seconds != math.inf:
            self._steps += 1
            self._ordinal += 1
            self._put(math.ceil((self.at + max(0.0, seconds)) * GRID), self._ordinal, action, Sort.STEP)

    def fix(self, seconds: float, action: Callable[[], None]) -> None:
        """Do ``action`` then, whatever happens before."""
        self._ordinal += 1
        self._put(math.ceil((self.at + max(0.0, seconds)) * GRID), self._ordinal, action, Sort.FIXED)

    def hold(self, seconds: float, action: Waiting, sort: Sort = Sort.HELD) -> None:
        """Do ``action`` then, unless it is stale by then: who waits for something has mostly got it before.

        ``sort``: ``HELD`` or ``ALARM``.
        """
        if seconds != math.inf:
            self._put(math.ceil((self.at + seconds) * GRID), -action.number, action, sort)

    def _put(self, ticks: int, which: int, action: Callable[[], None], sort: Sort) -> None:
        self._age += 1
        row = (ticks / GRID, self._order_of(ticks, which), self._age, sort, action)
        # What is fixed is kept apart: a month has hundreds of it, and all else comes and goes within seconds.
        heapq.heappush(self._fixed if sort is Sort.FIXED else self._heap, row)

    def _order_of(self, ticks: int, which: int) -> int:
        """In which order something is done among all at its instant.

        ``which``: what it is of what was begun at one instant, or of those who wait: nothing that came before tells, so
        that leaving it out changes nothing.
        """
        mixed = (ticks * 0x9E3779B97F4A7C15 + which * 0xBF58476D1CE4E5B9 + self._order) & _MASK
        return ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB & _MASK) >> 48

    def number(self) -> int:
        """One for each fiber."""
        self._fibers += 1
        return self._fibers

    def soon(self, action: Callable[[], None]) -> None:
        """Do ``action`` at this instant, after what is being done."""
        self.after(0.0, action)

    def run(self, until: float) -> None:
        """Everything up to ``until``."""
        heap, fixed, pop, step = self._heap, self._fixed, heapq.heappop, Sort.STEP
        at_once, asked = 0, 0.0 if self.skip is not None else math.inf
        while not self.halted:
            while heap and heap[0][3] is not step and heap[0][4].stale:  # type: ignore[attr-defined]  # see ``hold``
                # Nothing happens, so no time passes either.
                pop(heap)
            rows = fixed if not heap or (fixed and fixed[0] < heap[0]) else heap
            if not rows or rows[0][0] > until:
                break
            at = rows[0][0]
            if not self._steps and self.at >= asked and at > self.at + QUIET:
                assert self.skip is not None
                asked = max(self.skip(), self.at + QUIET)
                continue
            _, _, _, sort, action = pop(rows)
            if at == self.at:
                at_once += 1
                if at_once > SPINNING:
                    raise Spinning(f"something is done again and again at t={at:.3f} and no time passes")
            else:
                self.at, self._ordinal, at_once = at, 0, 0
            if sort is step:
                self._steps -= 1
            self.events += 1
            action()
        if not self.halted:
            self.at = until

    def next_fixed(self) -> float:
        """The next instant at which something comes whatever happens before; infinite when nothing does."""
        return self._fixed[0][0] if self._fixed else math.inf

    def leap(self, to: float, move: Callable[[float, Sort, Waiting], tuple[float, Waiting]]) -> None:
        """Go to ``to`` at once. Nothing may be under way.

        ``move`` says of all that waits, but for what is fixed, when it comes and what it does then.
        """
        rows: list[Row] = []
        for at, _, age, sort, action in self._heap:
            if not action.stale:  # type: ignore[attr-defined]  # see ``hold``
                moved, waiting = move(at, sort, action)  # type: ignore[arg-type]  # see ``hold``
                rows.append((moved, self._order_of(int(moved * GRID), -waiting.number), age, sort, waiting))
        heapq.heapify(rows)
        self._heap[:] = rows
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
    def number(self) -> int:
        """See ``Waiting``."""
        return self.fiber.number

    @property
    def stale(self) -> bool:
        """Something else came before."""
        return self.fiber.over or self.ticket != self.fiber.ticket

    def set(self) -> None:
        """See ``Engine.after``."""
        engine, machine = self.fiber.engine, self.fiber.machine
        engine.hold(max(TICK, machine.later(self.until)), self, Sort.ALARM)

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

    __slots__ = ("_send", "_steps", "engine", "machine", "number", "over", "ticket")

    def __init__(
        self, engine: Engine, machine: Machine, steps: Steps[None], send: Callable[[Fiber, int, Ask], None]
    ) -> None:
        self.engine = engine
        self.machine = machine
        self._steps = steps
        self._send = send
        self.number = engine.number()
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
