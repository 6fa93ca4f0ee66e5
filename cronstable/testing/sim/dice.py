"""The one source of chance of a simulation: the same numbers for the same seed, on every platform and version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

GRID: Final = 1 << 20
"""Instants are whole multiples of 1/GRID s, so that sums of them are exact however long a simulation lasts."""
_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


class Dice:
    """A seeded generator (splitmix64). ``seed``: any text; generators of different seeds are unrelated.

    ``state``: what comes of ``seed``, where that is known already.
    """

    def __init__(self, seed: str, state: int | None = None) -> None:
        self._seed = seed
        self._state = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") if state is None else state

    def child(self, name: str) -> Dice:
        """A generator of its own, so that one more draw in one place changes nothing in another."""
        return Dice(f"{self._seed}/{name}")

    def bits(self) -> int:
        """64 of them."""
        self._state = (self._state + _GAMMA) & _MASK
        return _mix(self._state)

    def random(self) -> float:
        """A number in [0, 1)."""
        return (self.bits() >> 11) / (1 << 53)

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.random()

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random() < probability

    def below(self, count: int) -> int:
        """A whole number from 0 up to ``count`` - 1."""
        return self.bits() % count

    def one_of(self, choices: Sequence[T]) -> T:
        """One of them."""
        return choices[self.below(len(choices))]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """All of them, in another order."""
        left = list(things)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def token(self, nbytes: int = 6) -> str:
        """``nbytes`` as lower-case hex."""
        text = f"{self.bits():016x}"
        while len(text) < 2 * nbytes:
            text += f"{self.bits():016x}"
        return text[: 2 * nbytes]


class TimedDice(Dice):
    """One whose numbers at an instant depend on the instant, and not on how often it was thrown before.

    So a stretch of time in which nothing happens can be left out, and what follows is the same. ``clock`` says when.
    """

    def __init__(self, seed: str, clock: Callable[[], float], root: int | None = None) -> None:
        super().__init__(seed, root)
        self._root, self._clock, self._thrown = self._state, clock, -1.0

    def child(self, name: str) -> TimedDice:
        """See ``Dice.child``."""
        return TimedDice(f"{self._seed}/{name}", self._clock)

    def by(self, clock: Callable[[], float]) -> TimedDice:
        """The same dice by another clock: what they show at other instants."""
        return TimedDice(self._seed, clock, self._root)

    def bits(self) -> int:
        """64 of them."""
        at = self._clock()
        if at != self._thrown:
            self._thrown = at
            self._state = _mix(self._root ^ (int(at * GRID) * _GAMMA & _MASK))
        # ``_mix``, spelt out: most of the draws of a simulation come by here.
        z = self._state = (self._state + _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
