"""Plain words and remarks, as golden text."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

import pytest

from cronstable.core.schedule import Schedule
from cronstable.core.wording import describe, joined, ordinal, spans

BERLIN = ZoneInfo("Europe/Berlin")


def parse(text: str, zone: tzinfo = UTC, *, both: bool = False) -> Schedule:
    return Schedule.parse(text, job_name="job", zone=zone, day_match="all" if both else "any")


WORDS = {
    "* * * * *": "every minute",
    "*/15 * * * *": "every 15 minutes",
    "0 * * * *": "every hour at minute 0",
    "5 */2 * * *": "every 2 hours at minute 5",
    "*/7 * * * *": "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour",
    "0-29 * * * *": "at minutes 0 to 29 of every hour",
    "30 2 * * mon-fri": "at 02:30 on Monday to Friday",
    "0 2,14 * * *": "at 02:00 and 14:00 every day",
    "* 2 * * *": "every minute from 02:00 to 02:59",
    "*/10 9-17 * * *": "every 10 minutes from 09:00 to 17:59",
    "*/10 9,17 * * 6,7": "every 10 minutes during hours 9 and 17 on Saturday and Sunday",
    "0 9-17 * * *": "at minute 0 from 09:00 to 17:59 every day",
    "0 0 13 * 5": "at 00:00 on day 13 of the month or on Friday",
    "0 0 1 * */2": "at 00:00 on day 1 of the month, provided it is Tuesday, Thursday, Saturday or Sunday",
    "0 0 L * *": "at 00:00 on the last day of the month",
    "0 0 L-1 * *": "at 00:00 on the day 1 day before the last of the month",
    "0 0 L-3 * *": "at 00:00 on the day 3 days before the last of the month",
    "0 0 LW * *": "at 00:00 on the last weekday (Monday to Friday) of the month",
    "0 0 15W * *": "at 00:00 on the weekday (Monday to Friday) nearest to the 15th",
    "0 0 * * mon,5#3,L2": "at 00:00 on Monday, the last Tuesday of the month or the third Friday of the month",
    "0 0 1,15 1-3,6 *": "at 00:00 on days 1 and 15 of the month in January to March and June",
    "0 0 1-31 * 1": "at 00:00 on every day of the month or on Monday",
    "0 0 ? * 0-6": "at 00:00 on every day of the week",
    "0 0 1 1 * 2028-2030": "at 00:00 on day 1 of the month in January in 2028 to 2030",
    "*/10 * * * * * *": "every 10 seconds",
    "* * * * * * *": "every second",
    "7 * * * * * *": "at second 7 of every minute",
    "0,5 10-20 * * * * *": "at seconds 0 and 5 of minutes 10 to 20 of every hour",
    "*/20 30 2 * * * *": "at 02:30:00, 02:30:20 and 02:30:40 every day",
    "*/2 30 2 * * * *": "every 2 seconds of minute 30 from 02:00 to 02:59",
    "@daily": "at 00:00 every day",
    "@reboot": "once when the daemon starts",
}


@pytest.mark.parametrize("line", WORDS)
def test_a_schedule_in_plain_words(line: str) -> None:
    assert describe(parse(line)) == WORDS[line]


def test_both_days_are_said_to_be_needed_when_they_are() -> None:
    assert describe(parse("0 0 13 * 5", both=True)) == "at 00:00 on day 13 of the month, provided it is Friday"


def test_a_schedule_without_a_calendar_is_never() -> None:
    assert describe(Schedule("", UTC)) == "never"


def test_lists_are_joined_as_people_do() -> None:
    assert joined([]) == ""
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"], "or") == "a, b or c"
    assert spans(["1", "2", "4", "5", "6"], [1, 2, 4, 5, 6]) == "1, 2 and 4 to 6"
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 31)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "31st"]
    )


REMARKS = [
    ("0 0 31 2 *", "never fires: no date matches"),
    ("*/5 * * * * *", "six columns that look as if they began with seconds"),
    ("0 0 13 * 5", "either one is enough: on day 13 of the month or on Friday; for both at once say dayMatch: all"),
    ("0 0 1 * */2", "one day column starts with *, so both must match: on day 1 of the month, provided it is"),
    ("0 0 31 * *", "months without a day 31 are skipped; L is the last day"),
    ("* 2 * * *", "runs in every minute of the hours it names; for once an hour write 0 2"),
    ("*/7 * * * *", "7 does not divide 60, so the distance from 56 to 0 is 4"),
    ("0 */5 * * *", "5 does not divide 24, so the distance from 20 to 0 is 4"),
    ("0 0 */2 * *", "starts again on the 1st"),
    ("*/90 * * * *", "*/90 in the minute column is only ever 0"),
]


@pytest.mark.parametrize(("line", "remark"), REMARKS)
def test_what_may_not_have_been_meant_is_remarked(line: str, remark: str) -> None:
    assert any(remark in text for text in parse(line).findings()), parse(line).findings()


@pytest.mark.parametrize(
    "line",
    ["* * * * *", "*/15 * * * *", "0 2 * * *", "30 4 * * 1-5", "0 0 L * *", "0 0 1 1 *", "@hourly", "0 */6 * * *"],
)
def test_an_ordinary_schedule_has_no_remarks(line: str) -> None:
    assert parse(line).findings() == ()


def test_a_schedule_whose_years_are_over_is_remarked_when_the_time_is_known() -> None:
    schedule = parse("0 0 1 1 * 2020")
    assert schedule.findings() == ()
    assert schedule.findings(1_800_000_000) == ("never fires again: every occurrence lies in the past",)


FORWARD = "when the clocks go forward in Europe/Berlin (02:00 to 03:00)"
BACK = "when the clocks go back in Europe/Berlin (03:00 to 02:00)"
DST: dict[str, tuple[str, ...]] = {
    "30 2 * * *": (
        f"{FORWARD} 02:30 does not exist: the job runs once, at 03:00",
        f"{BACK} 02:30 occurs twice: the job runs the first time only",
    ),
    "*/30 2 * * *": (
        f"{FORWARD} 02:00 and 02:30 do not exist: there is no run, because the minute column starts with *",
        f"{BACK} 02:00 and 02:30 occur twice: the job runs both times, because the minute column starts with *",
    ),
    "0 * * * *": (),
    "0 4 * * *": (),
}


@pytest.mark.parametrize("line", DST)
def test_what_a_clock_change_does_is_remarked(line: str) -> None:
    assert parse(line, BERLIN).findings() == DST[line]
    assert parse(line, UTC).findings() == ()
