"""Occurrences depend on the time alone: nodes that take over from each other owe exactly one set (B48, B78)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from cronstable.core.schedule import Schedule
from cronstable.core.zonewalk import seams_between

DAY = 86_400
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
END = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())
DST_ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Africa/Cairo",
)
MIDNIGHT_ZONES = ("Asia/Tokyo", "Asia/Kathmandu", "Europe/Berlin", "America/Havana", "America/Los_Angeles")


def handed_over(line: str, zone: str, edges: list[int]) -> list[int]:
    """What a chain of nodes finds, each reading the line afresh and sweeping from where the last one stopped."""
    found: list[int] = []
    for low, high in pairwise(edges):
        node = Schedule.parse(line, job_name="job", zone=ZoneInfo(zone))
        found.extend(node.fires(low, high, 100_000))
    return found


@pytest.mark.parametrize("zone", DST_ZONES)
@pytest.mark.parametrize("line", ["30 2 * * *", "*/20 * * * *", "0 0,1,2,3 * * *", "15 0-3 * * *", "*/30 0-3 * * *"])
def test_handovers_inside_every_clock_change_of_a_year_lose_and_repeat_nothing(line: str, zone: str) -> None:
    schedule = Schedule.parse(line, job_name="job", zone=ZoneInfo(zone))
    seams = seams_between(ZoneInfo(zone), START, END)
    assert seams
    for seam in seams:
        edges = sorted({*range(seam.at - DAY, seam.at + DAY + 1, 900), seam.at - 1, seam.at, seam.at + 1})
        whole = list(schedule.fires(edges[0], edges[-1], 100_000))
        assert handed_over(line, zone, edges) == whole
        assert len(set(whole)) == len(whole)
        if schedule.fixed:
            local = [datetime.fromtimestamp(t, ZoneInfo(zone)) for t in whole]
            assert len({time.replace(tzinfo=None) for time in local}) == len(whole)


@pytest.mark.parametrize("zone", MIDNIGHT_ZONES)
def test_a_handover_at_each_midnight_of_a_zone_keeps_its_daily_job_daily(zone: str) -> None:
    midnights = Schedule.parse("0 0 * * *", job_name="job", zone=ZoneInfo(zone)).fires(START, END, 1000)
    edges = sorted({START, END, *(t + flip for t in midnights for flip in (-1, 0, 1))})
    found = handed_over("0 0 * * *", zone, edges)
    assert found == list(midnights)
    dates = [datetime.fromtimestamp(t, ZoneInfo(zone)).date().toordinal() for t in found]
    assert dates == list(range(dates[0], dates[0] + 365))
