"""The clocks of one simulated node: wall and boot, with an offset, a rate, steps, and a machine that can be frozen."""

from __future__ import annotations

import math

from cronstable.core.clock import Instant, Seconds
from cronstable.testing.sim.dice import GRID


class NodeClock:
    """Both readings as functions of the world's time. ``start``: wall seconds at world time 0."""

    def __init__(self, start: float, origin: Seconds) -> None:
        self._start = start
        self._since = 0.0
        self._boot = origin
        self._offset = 0.0
        self.rate = 1.0
        self.frozen = False
        self._last: Instant | None = None
        self._read_at = 0.0

    def read(self, at: float) -> Instant:
        """The readings at world time ``at``."""
        if at == self._read_at and self._last is not None:
            return self._last
        passed = 0.0 if self.frozen else self.rate * (at - self._since)
        reading = Instant(self._start + self._since + self._offset + passed, self._boot + passed)
        self._last, self._read_at = reading, at
        return reading

    def until(self, boot: float, at: float) -> Seconds:
        """World seconds from ``at`` until the boot clock shows ``boot``, at the present rate."""
        ahead = boot - self.read(at).boot
        if ahead <= 0:
            return 0.0
        return math.inf if math.isinf(ahead) else ahead / self.rate

    def error(self, at: float) -> Seconds:
        """How far the wall clock is from the truth."""
        return self.read(at).wall - (self._start + at)

    def step(self, seconds: Seconds) -> None:
        """The wall clock jumps."""
        self._offset += seconds
        self._last = None

    @property
    def runs_true(self) -> bool:
        """It neither drifts nor stands still."""
        return self.rate == 1.0 and not self.frozen

    def set_rate(self, rate: float, at: float) -> None:
        """Both clocks run at ``rate`` from now on."""
        self._settle(at)
        self.rate = rate

    def freeze(self, frozen: bool, at: float) -> None:
        """Both clocks stand still, as in a machine that is suspended from outside, or go on."""
        self._settle(at)
        self.frozen = frozen

    def _settle(self, at: float) -> None:
        # On the engine's grid: as long as the clock runs true, all its readings are exact.
        now = self.read(at)
        self._boot = round(now.boot * GRID) / GRID
        self._offset = round((now.wall - self._start - at) * GRID) / GRID
        self._since = at
        self._last = None
