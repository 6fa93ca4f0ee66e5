"""The seam to this machine: real clocks, randomness and identifiers. Nothing else in the host may call these."""

from __future__ import annotations

import asyncio
import os
import random
import time

from cronstable.core.clock import Instant, Seconds

# CLOCK_BOOTTIME counts suspend; where there is none (macOS: its monotonic clock does) the monotonic clock stands in.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Instant:
        """Wall and boot readings, taken one right after the other."""
        boot = time.clock_gettime(_BOOT_CLOCK) if _BOOT_CLOCK is not None else time.monotonic()
        return Instant(wall=time.time(), boot=boot)

    async def sleep(self, seconds: Seconds) -> None:
        """Sleep on the event loop's clock, which stands still during suspend: callers re-read the clock after."""
        if not seconds > 0:  # so that a NaN is none either: among the loop's timers it would be before and after all
            await asyncio.sleep(0)
            return
        # By hand, and not by anyio: it asks each time for the backend that runs, and this is what an idle daemon does.
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, over)
        try:
            await over
        except asyncio.CancelledError:
            timer.cancel()
            raise


def _end(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


class SystemRng:
    """Randomness for jitter."""

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))

    def random(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()


class SystemIds:
    """Unguessable identifiers from the operating system."""

    def token(self, nbytes: int = 6) -> str:
        """``nbytes`` of fresh randomness as lower-case hex."""
        return os.urandom(nbytes).hex()
