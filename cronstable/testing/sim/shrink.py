"""Shrinking: of the faults of a run that broke an invariant, those that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.testing.sim.faults import Fault
from cronstable.testing.sim.world import Result, Setup, simulate

MOST_RUNS: Final = 200
"""Runs that a shrink may take."""
AFTERWARDS: Final[Seconds] = 1.0


def shrink(result: Result, run: Callable[[Setup], Result] = simulate, *, most: int = MOST_RUNS) -> Result:
    """A run with fewer and shorter faults, over sooner, that breaks the first invariant that ``result`` broke.

    ``result`` itself when it broke none. ``most``: runs to spend at most.
    """
    if not result.violations:
        return result
    return _Shrinking(result, run, most).go()


class _Shrinking:
    def __init__(self, result: Result, run: Callable[[Setup], Result], most: int) -> None:
        self._best = result
        self._wanted = result.violations[0].invariant
        self._run = run
        self._left = most

    def go(self) -> Result:
        self._cut_horizon()
        self._drop()
        self._shorten()
        self._drop()
        self._cut_horizon()
        return self._best

    def _breaks(self, setup: Setup) -> bool:
        """Whether it still goes wrong in the same way; then this is the best one so far."""
        if self._left <= 0:
            return False
        self._left -= 1
        result = self._run(replace(setup, first_only=True))
        found = next((v for v in result.violations if v.invariant == self._wanted), None)
        if found is None:
            return False
        self._best = replace(result, violations=(found, *(v for v in result.violations if v is not found)))
        return True

    def _try(self, plan: tuple[Fault, ...]) -> bool:
        return self._breaks(replace(self._best.setup, plan=plan))

    def _cut_horizon(self) -> None:
        """What comes after the violation is of no interest; some are only seen when all is over."""
        at = self._best.violations[0].at + AFTERWARDS
        plan = tuple(fault for fault in self._best.plan if fault.at < at)
        if not self._breaks(replace(self._best.setup, plan=plan, seconds=min(at, self._best.setup.seconds))):
            self._try(plan)

    def _drop(self) -> None:
        """Halves first, then one by one, as long as there are fewer every time."""
        size = max(1, len(self._best.plan) // 2)
        while size >= 1:
            first, dropped = 0, False
            while first < len(self._best.plan):
                plan = self._best.plan
                if self._try((*plan[:first], *plan[first + size :])):
                    dropped = True
                else:
                    first += size
            if not dropped or size > 1:
                size //= 2

    def _shorten(self) -> None:
        """Each fault half as long, as often as it still goes wrong."""
        for index in range(len(self._best.plan)):
            while self._best.plan[index].seconds > 0.1:
                plan = list(self._best.plan)
                plan[index] = replace(plan[index], seconds=plan[index].seconds / 2)
                if not self._try(tuple(plan)):
                    break
