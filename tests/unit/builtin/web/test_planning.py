"""The tools that look at schedules, and the calendars that other programs read."""

from __future__ import annotations

from typing import Any

import pytest

from cronstable.api import Decision, DecisionRecord, Outcome, Reason, RunKey, RunRecord, Verdict
from cronstable.builtin.web import ical, planning

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""


async def test_a_preview_says_what_an_expression_means_and_when_it_is_due(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("night", "30 2 * * *", zone="Europe/Berlin"))
    async with serve() as call:
        plain = await call("GET", "/schedule/preview?expression=*/30+9+*+*+*&timezone=Europe/Berlin&count=2")
        spring = await call("GET", "/schedule/preview?job=night&after=2027-03-27T12:00:00Z&count=1")
        hashed = await call("GET", "/schedule/preview?expression=H+*+*+*+*&job=anything&count=1")
    assert plain.status == 200
    assert plain.json["next"] == [
        {"at": "2027-01-15T08:30:00+00:00", "local": "2027-01-15T09:30:00+01:00", "mark": "none"},
        {"at": "2027-01-16T08:00:00+00:00", "local": "2027-01-16T09:00:00+01:00", "mark": "none"},
    ]
    assert (plain.json["timezone"], plain.json["never_fires"]) == ("Europe/Berlin", False)
    assert "every" in plain.json["words"]
    assert spring.json["next"] == [
        {"at": "2027-03-28T01:00:00+00:00", "local": "2027-03-28T03:00:00+02:00", "mark": "moved"}
    ]
    assert hashed.json["resolved"] != "H * * * *"


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("expression=61+*+*+*+*", 400, "minute"),
        ("expression=@every+5m", 400, "hint"),
        ("expression=*+*+*+*+*&timezone=Mars/Olympus", 400, "unknown timezone"),
        ("expression=*+*+*+*+*&timezone=../../etc/passwd", 400, "unknown timezone"),
        ("expression=*+*+*+*+*&dayMatch=some", 400, "dayMatch"),
        ("expression=*+*+*+*+*&count=0", 400, "count"),
        ("expression=*+*+*+*+*&after=today", 400, "after must be a time"),
        ("expression=" + "x" * 501, 400, "longer than 500"),
        ("", 400, "job must be"),
        ("job=nope", 404, "there is no job 'nope'"),
    ],
)
async def test_a_preview_of_nonsense_is_refused_with_the_reason(serve: Any, query: str, status: int, says: str) -> None:
    async with serve() as call:
        reply = await call("GET", f"/schedule/preview?{query}")
    assert reply.status == status
    assert says in reply.json["error"]


async def test_pressure_counts_each_minute_of_the_next_day_and_names_the_fullest(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(
        make_job("a", "0 * * * *"),
        make_job("b", "0 9 * * *"),
        make_job("often", "*/10 * 9 * * * *"),
        make_job("off", "* * * * *", enabled=False),
    )
    async with serve() as call:
        found = (await call("GET", "/schedule/pressure?count=1")).json
        bad = await call("GET", "/schedule/pressure?count=x")
    assert (found["from"], found["until"]) == ("2027-01-15T08:00:00+00:00", "2027-01-16T08:00:00+00:00")
    assert found["minutes"][60] == 3
    assert sum(found["minutes"]) == 24 + 1 + 60
    assert found["busiest"] == [{"at": "2027-01-15T09:00:00+00:00", "count": 3, "jobs": ["a", "b", "often"]}]
    assert found["whole"] is True
    assert bad.status == 400


def test_too_many_different_schedules_are_not_all_looked_at_and_that_is_said(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LOOKS", 100)
    alike = [make_job(f"j{n}", "*/10 * * * *") for n in range(80)]
    different = [make_job(f"j{n}", f"{n} * * * *") for n in range(8)]
    assert planning.pressure(alike, int(NOON)).whole
    assert not planning.pressure(different, int(NOON)).whole


async def test_suggestions_are_the_emptiest_slots_away_from_full_ones(serve: Any, host: Any, make_job: Any) -> None:
    host.add(*[make_job(f"m{n}", f"{n} * * * *") for n in range(60) if n not in (20, 40)], make_job("x", "40 * * * *"))
    async with serve() as call:
        hour = (await call("GET", "/schedule/suggest?every=hour&count=1")).json
        day = (await call("GET", "/schedule/suggest?timezone=Asia/Kolkata&count=2")).json
        wrong = await call("GET", "/schedule/suggest?every=week")
    assert hour["suggestions"] == [{"schedule": "20 * * * *", "load": 0}]
    # 20 past by UTC is 50 past in a zone with half hours.
    assert [one["schedule"].split()[0] for one in day["suggestions"]] == ["50", "50"]
    assert day["timezone"] == "Asia/Kolkata"
    assert wrong.status == 400


async def test_duplicates_are_jobs_of_one_command_and_whether_their_times_are_one(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(
        make_job("a", command="backup"),
        make_job("b", command="backup"),
        make_job("c", "1 1 * * *", command=("x", "y")),
        make_job("d", command=("x", "y")),
        make_job("e", command="other"),
        make_job("f", command="other", enabled=False),
    )
    async with serve() as call:
        found = (await call("GET", "/schedule/duplicates")).json
    assert found["groups"] == [
        {"command": "backup", "jobs": ["a", "b"], "same_schedule": True},
        {"command": "x y", "jobs": ["c", "d"], "same_schedule": False},
    ]


async def test_why_says_which_column_a_time_misses_and_what_is_around_it(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a", "30 3 * * 1-5", zone="Europe/Berlin"))
    async with serve() as call:
        sunday = (await call("GET", "/schedule/why?job=a&at=2027-01-17T03:30:00%2B01:00")).json
        monday = (await call("GET", "/schedule/why?job=a&at=2027-01-18T03:30:00+01:00")).json
        minute = (await call("GET", "/schedule/why?job=a&at=2027-01-18T03:31:00%2B01:00")).json
        wrong = await call("GET", "/schedule/why?job=a&at=2027-01-18")
    assert (sunday["fires"], sunday["columns"]["day"], sunday["columns"]["minute"]) == (False, False, True)
    assert sunday["next"]["local"] == "2027-01-18T03:30:00+01:00"
    assert (monday["fires"], monday["columns"]["day"], monday["decision"]) == (True, True, None)
    assert (minute["fires"], minute["columns"]["minute"], minute["previous"]["at"]) == (
        False,
        False,
        "2027-01-18T02:30:00+00:00",
    )
    assert wrong.status == 400


async def test_why_carries_the_decision_that_was_taken_then(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a", "0 8 * * *"))
    taken = Decision(Verdict.SKIP, Reason.PAUSED)
    host.decided.append(DecisionRecord("node-a", "a", int(NOON), NOON, taken, None, provisional=False))
    async with serve() as call:
        found = (await call("GET", "/schedule/why?job=a&at=2027-01-15T08:00:00Z")).json
    assert (found["fires"], found["decision"]["reason"]) == (True, "paused")


async def test_a_calendar_has_every_run_of_its_days_in_the_form_of_its_standard(
    serve: Any, host: Any, make_job: Any
) -> None:
    name = "räume, auf; \\ und mehr: " + "ä" * 60
    host.add(make_job(name, "0 9 * * *"), make_job("off", enabled=False), make_job("boot", "@reboot"))
    took = RunRecord(RunKey("r", name, None), Outcome.SUCCESS, 0, NOON, NOON + 90, 90.0)
    host.set(history={name: (took,)})
    async with serve() as call:
        reply = await call("GET", "/calendar.ics?days=3")
        one = await call("GET", "/jobs/boot/calendar.ics")
        few = await call("GET", "/calendar.ics?days=30&limit=2")
        wrong = await call("GET", "/calendar.ics?days=0")
    assert reply.headers["content-type"] == "text/calendar; charset=utf-8"
    raw = reply.body
    assert raw.endswith(b"END:VCALENDAR\r\n")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert max(len(line) for line in raw.split(b"\r\n")) <= 75
    assert all(line.decode("utf-8") is not None for line in raw.split(b"\r\n"))
    lines = raw.decode().replace("\r\n ", "").split("\r\n")
    assert lines.count("BEGIN:VEVENT") == lines.count("END:VEVENT") == 3
    assert "DTSTART:20270115T090000Z" in lines
    assert "DURATION:PT90S" in lines
    assert f"SUMMARY:räume\\, auf\\; \\\\ und mehr: {'ä' * 60}" in lines
    assert len({line for line in lines if line.startswith("UID:")}) == 3
    assert b"BEGIN:VEVENT" not in one.body
    assert few.body.count(b"BEGIN:VEVENT") == 2
    assert wrong.status == 400


async def test_a_calendar_takes_its_token_from_the_address_and_nothing_else_does(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"))
    async with serve(authToken={"value": "sesame"}) as call:
        none = await call("GET", "/calendar.ics")
        wrong = await call("GET", "/calendar.ics?token=open")
        right = await call("GET", "/jobs/a/calendar.ics?token=sesame")
        other = await call("GET", "/jobs?token=sesame")
    assert [none.status, wrong.status, right.status, other.status] == [401, 401, 200, 401]


def test_text_of_a_calendar_is_one_line_without_control_characters() -> None:
    assert ical.text("a\r\nb\nc\rd\x00\x7f\te") == "a\\nb\\nc\\nde"
    assert ical.folded("x" * 75) == b"x" * 75 + b"\r\n"
    assert ical.folded("x" * 76) == b"x" * 75 + b"\r\n x\r\n"
    assert ical.folded("x" * 74 + "ä") == b"x" * 74 + b"\r\n \xc3\xa4\r\n"
