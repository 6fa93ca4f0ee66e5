"""Instants at which looks without a time of their own fall together."""

from __future__ import annotations

import pytest

from cronstable.core.clock import Instant, until_next


@pytest.mark.parametrize(
    ("boot", "every", "seconds"),
    [(1000.0, 5.0, 5.0), (1001.5, 5.0, 3.5), (1004.75, 5.0, 0.25), (1000.0, 60.0, 20.0), (0.0, 60.0, 60.0)],
)
def test_the_next_whole_multiple_is_ahead_and_on_the_boot_clock(boot: float, every: float, seconds: float) -> None:
    assert until_next(every, Instant(wall=12.3, boot=boot)) == seconds
