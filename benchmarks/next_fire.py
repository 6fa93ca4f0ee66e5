"""CPU time of 10,000 distinct schedules: read each and find its first occurrence.

Run: python benchmarks/next_fire.py [ZONE]
"""

from __future__ import annotations

import sys
import time
from zoneinfo import ZoneInfo

from cronstable.core.schedule import Schedule

COUNT = 10_000
START = 1_780_000_000


def expressions() -> list[str]:
    """Ten thousand different lines of the kind that people write."""
    days = ("* * *", "* * 1-5", "1 * *", "*/2 * *", "* * sun", "15 * *", "* 1-6 *")
    return [f"{n % 60} {n // 60 % 24} {days[n // 1440]}" for n in range(COUNT)]


def main() -> None:
    """Print the CPU seconds of both halves."""
    zone = ZoneInfo(sys.argv[1] if len(sys.argv) > 1 else "Europe/Berlin")
    lines = expressions()
    if len(set(lines)) != COUNT:
        raise SystemExit("the expressions are not distinct")
    Schedule.parse("H H * * *", job_name="warm-up", zone=zone)  # imports croniter, which is not what is measured
    begin = time.process_time()
    schedules = [Schedule.parse(line, job_name=f"job{n}", zone=zone) for n, line in enumerate(lines)]
    parsed = time.process_time()
    fires = [schedule.next_after(START) for schedule in schedules]
    end = time.process_time()
    if None in fires:
        raise SystemExit("a schedule has no occurrence")
    print(f"{COUNT} distinct schedules in {zone.key}: parse {parsed - begin:.3f} s, next {end - parsed:.3f} s CPU")


if __name__ == "__main__":
    main()
