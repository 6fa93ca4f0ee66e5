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
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

from cronstable.core.clock import Instant
from cronstable.testing.sim.dice import Dice

T = TypeVar("T")


SPINNING: Final = 100_000
"""Events at one instant that nothing but a loop without a wait explains."""


TICK: Final = 0.0005
"""Seconds. No timer is finer, so that a wait which rounds to nothing still lets time pass."""


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


class Engine:
    """What happens when. ``dice`` orders what happens at one instant."""

    def __init__(self, dice: Dice) -> None:
        self.at = 0.0
        self.events = 0
        self.halted = False
        self._dice = dice
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._age = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do ``action`` then."""
        if math.isfinite(seconds):
            self._age += 1
            entry = (self.at + max(0.0, seconds), self._dice.bits() & 0xFFFF, self._age, action)
            heapq.heappush(self._heap, entry)

    def soon(self, action: Callable[[], None]) -> None:
        """Do ``action`` at this instant, after what is being done."""
        self.after(0.0, action)

    def run(self, until: float) -> None:
        """Everything up to ``until``."""
        heap = self._heap
        at_once = 0
        while heap and heap[0][0] <= until and not self.halted:
            at, _, _, action = heapq.heappop(heap)
            at_once = at_once + 1 if at == self.at else 0
            if at_once > SPINNING:
                raise Spinning(f"something is done again and again at t={at:.3f} and no time passes")
            self.at = at
            self.events += 1
            action()
        if not self.halted:
            self.at = until

    def halt(self) -> None:
        """Nothing more happens."""
        self.halted = True


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
            self._alarm(self.ticket, effect.until, False)
        else:
            self._send(self, self.ticket, effect)
            self._alarm(self.ticket, effect.by, None)

    def _alarm(self, ticket: int, until: float, value: object) -> None:
        self.engine.after(max(TICK, self.machine.later(until)), lambda: self._ring(ticket, until, value))

    def _ring(self, ticket: int, until: float, value: object) -> None:
        if self.over or ticket != self.ticket:
            return
        if self.machine.stopped:
            self.machine.postpone(lambda: self._ring(ticket, until, value))
        elif self.machine.now().boot < until - 1e-6:
            # The clock was slowed or stood still meanwhile.
            self._alarm(ticket, until, value)
        else:
            self.resume(ticket, value)


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
