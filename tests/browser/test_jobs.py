"""The table of jobs and the drawer of one, in a real browser on a real daemon."""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

MANY = """(entry, count) => {
    // Made in the page: ten thousand entries would take longer on their way through the driver than all that is tested.
    const ask = window.fetch;
    const list = Array.from({ length: count }, (_, at) => ({ ...entry, name: `job-${String(at).padStart(5, "0")}` }));
    window.fetch = (url, options) =>
        new URL(url).pathname === "/jobs" ? Promise.resolve(new Response(JSON.stringify(list))) : ask(url, options);
}"""


def rows(page: Page) -> Any:
    return page.locator("[role=row][data-job]")


def row(page: Page, name: str) -> Any:
    return page.locator(f'[role=row][data-job="{name}"]')


def test_a_node_without_jobs_says_so(node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank")
    fulfilled(page, "jobs", [])
    page.goto(node.url)
    expect(page.get_by_text("This node has no jobs yet.")).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#lead")).to_have_text("single node")


def test_a_page_that_has_not_heard_of_the_jobs_yet_does_not_say_that_there_are_none(node: Any, open_page: Any) -> None:
    page = open_page("about:blank")
    held: list[Route] = []
    holds = True

    def hold(route: Route) -> None:
        if holds:
            held.append(route)
        else:
            route.continue_()

    page.route(lambda url: urlsplit(url).path == "/jobs", hold)
    page.goto(node.url)
    expect(page.locator("#node")).not_to_have_text("")
    expect(page.get_by_text("Looking…")).to_be_visible()
    expect(page.get_by_text("This node has no jobs yet.")).to_have_count(0)
    holds = False
    for route in held:
        route.continue_()
    expect(row(page, "a")).to_be_visible()


def test_a_run_is_started_followed_searched_and_cancelled(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    expect(row(page, "long")).to_contain_text("no run yet")
    with page.expect_response(lambda reply: reply.request.method == "POST") as started:
        row(page, "long").get_by_role("button", name="Run long").click()
    assert started.value.status == 200
    expect(row(page, "long")).to_contain_text("running")
    row(page, "long").get_by_role("button", name="Log of long").click()
    lines = page.locator(".lines .what")
    expect(lines).to_have_count(201)
    expect(page.locator(".lines .fg1")).to_have_text("red")
    expect(page.locator(".s-stderr .what")).to_have_text("red")
    expect(page.locator(".lines .line").last).to_be_in_viewport()  # followed to its end
    page.get_by_label("Search the log").fill("line 1[59]$")
    expect(page.locator(".found")).to_have_text("2 of 2 lines")
    expect(page.locator(".line.now")).to_contain_text("line 19")
    page.keyboard.press("Enter")
    expect(page.locator(".line.now")).to_contain_text("line 15")
    expect(page.get_by_label("follow")).not_to_be_checked()
    page.locator("#drawer").get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expect(page.locator("#drawer .chip").first).to_have_text("cancelled")
    assert node.get("jobs/long")["last_run"]["outcome"] == "cancelled"


def test_a_job_is_paused_with_a_note_and_resumed_by_keyboard_alone(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    expect(row(page, "a")).to_be_visible()
    row(page, "a").locator(".name").focus()
    page.keyboard.press("p")
    expect(page.get_by_label("For")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("disk is full")
    page.keyboard.press("Enter")
    expect(row(page, "a")).to_contain_text("paused")
    expect(row(page, "a")).to_contain_text("disk is full")
    assert node.get("jobs/a")["paused"]["note"] == "disk is full"
    expect(row(page, "a").locator(".name")).to_be_focused()  # where the keyboard was before
    page.keyboard.press("p")
    expect(row(page, "a")).not_to_contain_text("paused")
    assert node.get("jobs/a")["paused"] is None


def test_the_log_goes_on_with_the_next_run_that_the_schedule_starts(node: Any, open_page: Any) -> None:
    page = open_page(f"{node.url}#/jobs/job/ticker/log")
    expect(page.locator(".lines")).to_contain_text("tick")
    expect(page.locator(".s-note").first).to_contain_text("run ")
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#panel .windows")).to_contain_text("1 h")
    newest = page.locator("#panel .scroll tbody tr").first
    expect(newest).to_contain_text("schedule")
    # The rows move down as the job goes on: what is clicked is the run whose name was read, wherever it stands by then.
    run = newest.locator("button").inner_text()
    page.locator("#panel .scroll tbody").get_by_role("button", name=run, exact=True).click()
    expect(page.locator(".which")).to_have_text(f"Run {run}: the output is complete.")
    expect(page.locator(".lines .what")).to_have_text(["tick"])


def test_the_drawer_tells_history_schedule_and_why(node: Any, open_page: Any, springs: list[datetime]) -> None:
    page = open_page(f"{node.url}#/jobs/job/spring/details")
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("Europe/Berlin")
    page.locator("#drawer").get_by_role("button", name="Run now").click()
    page.get_by_role("tab", name="History").click()
    expect(panel.locator(".scroll tbody tr")).to_contain_text("manual")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Schedule")).to_be_focused()
    expect(panel).to_contain_text("at 02:30 on day 28 of the month in March")
    expect(panel.locator("tbody tr")).to_have_count(10)
    # In this year it is the last Sunday of March, and there is no 02:30. Until 2038 one of the next ten is such a year.
    gap = next(due for due in springs if due.strftime("%H:%M") == "01:00")
    moved = panel.locator("tbody tr").filter(has_text=f"{gap:%Y}-03-28 01:00:00 UTC")
    expect(moved).to_contain_text(f"{gap:%Y}-03-28 03:00:00 CEST")
    expect(moved).to_contain_text("DST clocks go forward")
    page.get_by_role("tab", name="Why").click()
    expect(panel).to_contain_text("somebody asked for it (manual)")
    page.go_back()
    expect(page.get_by_role("tab", name="Schedule")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()


def test_why_shows_what_each_node_decided_and_who_did_not_answer(node: Any, open_page: Any) -> None:
    row = {
        "scheduled_at": "2027-01-15T08:00:00+00:00",
        "decided_at": "2027-01-15T08:00:00.250000+00:00",
        "evidence": {},
    }
    ran = {**row, "node": "node-b", "verdict": "run", "reason": "leader", "run_id": "0123", "provisional": False}
    skipped = {**row, "node": "node-a", "verdict": "skip", "reason": "not-leader", "run_id": None, "provisional": True}
    asked = {"host": "node-c:8443", "self": False, "answered": False, "count": 0, "problem": "no answer in time"}
    told = {"job": "spring", "decisions": [ran, skipped], "channel": "gossip", "nodes": [{"node": "node-c", **asked}]}
    page = open_page(f"{node.url}#/jobs/job/spring/details")
    page.route("**/decisions?limit=50&fleet=true", lambda route: route.fulfill(json=told))
    page.get_by_role("tab", name="Why").click()
    rows = page.locator("#panel .decisions li")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("on node-b")
    expect(rows.nth(1)).to_contain_text("on node-a")
    expect(page.locator("#panel .wrong")).to_have_text("No answer from node-c: no answer in time")
    told |= {"decisions": []}
    page.get_by_role("tab", name="Details").click()
    page.get_by_role("tab", name="Why").click()
    expect(page.locator("#panel .empty")).to_have_text("This node has not decided about it yet.")


def test_the_keyboard_filters_searches_and_moves(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    row(page, "bad").get_by_role("button", name="Run bad").click()
    expect(row(page, "bad")).to_contain_text("exit 3")
    expect(page).to_have_title(f"(1 failing) {node.get('summary')['node_name']} · cronstable")
    page.locator("#main").focus()
    page.keyboard.press("2")
    expect(rows(page)).to_have_count(1)
    expect(row(page, "bad")).to_be_visible()
    page.keyboard.press("6")
    expect(row(page, "idle")).to_be_visible()
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("1")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("spri march")
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(row(page, "spring").locator(".name")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer h2")).to_have_text("spring")
    expect(page.locator("#drawer h2")).to_be_focused()
    page.keyboard.press("Escape")
    expect(row(page, "spring").locator(".name")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(rows(page)).to_have_count(7)
    page.locator("#main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_of_many_jobs_only_those_in_sight_are_drawn_and_all_are_found(count: int, node: Any, open_page: Any) -> None:
    page = open_page("about:blank")
    page.add_init_script(f"({MANY})({json.dumps(node.get('jobs/idle'))}, {count})")
    page.goto(node.url)
    expect(page.get_by_role("table", name="Jobs")).to_have_attribute("aria-rowcount", str(count + 1))
    assert 0 < rows(page).count() < 60
    page.locator("#main").focus()
    page.keyboard.press("j")
    page.keyboard.press("End")
    last = f"job-{count - 1:05}"
    expect(row(page, last).locator(".name")).to_be_focused()
    expect(row(page, last)).to_be_in_viewport()
    assert rows(page).count() < 60
    page.get_by_role("columnheader", name="Job").get_by_role("button").click()
    expect(row(page, last)).to_be_in_viewport()  # the other way round it is the first
    page.locator("#search").fill(str(count - 7))
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_text(f"1 of {count} jobs")).to_be_attached()


def test_a_column_sorts_both_ways_and_says_so(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    heading = page.get_by_role("columnheader", name="Next")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(heading.get_by_role("button")).to_be_focused()
    expect(rows(page).first).to_contain_text("ticker")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(rows(page).last).to_contain_text("ticker")


def test_a_reload_that_fails_is_a_banner_with_file_and_line_until_one_succeeds(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    good = node.config.read_text("utf-8")
    node.config.write_text(good + "\nnonsense: 1\n", encoding="utf-8")
    node.signal(signal.SIGHUP)
    banner = page.locator(".banner")
    expect(banner).to_contain_text("The configuration could not be read again")
    expect(banner).to_contain_text(f"{node.config.name}:{len(good.splitlines()) + 2}:1")
    expect(rows(page)).to_have_count(7)
    node.config.write_text(good.replace("name: idle", "name: another"), encoding="utf-8")
    node.signal(signal.SIGHUP)
    expect(banner).to_have_count(0)
    expect(row(page, "another")).to_be_visible()
    node.config.write_text(good, encoding="utf-8")
    node.signal(signal.SIGHUP)
    expect(row(page, "idle")).to_be_visible()


# -- what fails, what comes, what it takes ----------------------------------------------------------------------------


def test_an_incident_is_one_line_with_the_output_and_is_copied_as_markdown(daemons: Any, open_page: Any) -> None:
    bad = {"command": "echo '`tick` | pipe'; exit 3", "captureStdout": True}
    node = daemons({"name": "one|two", **bad}, {"name": "bad", **bad}, {"name": "good"}, name="incident")
    node.wait_until_ready()
    page = open_page(f"{node.url}#/incidents", permissions=["clipboard-read", "clipboard-write"])
    expect(page.get_by_text("Nothing fails.")).to_be_visible()
    page.get_by_role("link", name="Jobs").click()
    for name in ("one|two", "bad", "good"):
        row(page, name).get_by_role("button", name="Run").click()
        expect(row(page, name)).to_contain_text("ago")
    page.get_by_role("link", name="Incidents").click()
    expect(page.locator("#main .big")).to_have_text(re.compile(r"^2 jobs fail, all with exit 3, since .*UTC$"))
    incidents = page.locator("#main .decisions li")
    expect(incidents).to_have_count(2)
    expect(incidents.first).to_contain_text("bad failed exit 3")  # the newest first
    tail = page.locator("#main .lines .line")
    expect(tail).to_have_count(2)
    expect(tail.first).to_contain_text("`tick` | pipe")
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("**2 jobs fail, all with exit 3, since ")
    assert "| one\\|two | exit 3 | " in text
    assert text.count("`tick` | pipe") == 2
    # One of them is mended, and the page says so without being asked.
    incidents.first.get_by_role("button", name="bad").click()
    node.write(jobs=[{"name": "bad", "command": "true", "schedule": "@yearly"}], web={"listen": [node.url]})
    node.signal(signal.SIGHUP)
    expect(page.locator("#main .decisions li")).to_have_count(1)
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("Nothing fails.")).to_be_visible()


def test_an_incident_that_cannot_be_looked_into_is_not_called_fine(
    daemons: Any, open_page: Any, complaints: Any
) -> None:
    complaints.expected = ("ERR_FAILED",)
    node = daemons({"name": "bad", "command": "exit 3"}, name="dark")
    node.wait_until_ready()
    page = open_page(node.url)
    row(page, "bad").get_by_role("button", name="Run").click()
    expect(row(page, "bad")).to_contain_text("ago")
    lost = "**/jobs/bad/runs"
    page.route(lost, lambda route: route.abort())
    page.get_by_role("link", name="Incidents").click()
    expect(page.locator("#main .big")).to_have_text("1 job fails; more is not known: the node cannot be reached")
    page.unroute(lost)
    expect(page.locator("#main .big")).to_have_text(re.compile(r"^bad fails, with exit 3, since "))


def test_the_schedule_shows_what_comes_how_full_it_is_and_the_week(daemons: Any, open_page: Any) -> None:
    hourly, name = {"schedule": "17 * * * *"}, 'a, "b"; c\\d'
    node = daemons(
        {"name": name, **hourly}, {"name": "also", **hourly}, {"name": "beat", "schedule": "* * * * *"}, name="plan"
    )
    node.wait_until_ready()
    page = open_page(f"{node.url}#/schedule")
    plan = page.get_by_role("region", name="Schedule")
    expect(plan.get_by_text("with 3 jobs")).to_be_visible()
    expect(plan.locator(".minute")).to_have_count(25)
    expect(plan.locator(".minute .l4")).to_have_count(24)
    expect(plan.locator(".minute span[title]")).to_have_count(1440)
    expect(plan.locator("tbody tr").first).to_contain_text("beat")
    expect(plan.locator(".day")).to_have_count(7)
    expect(plan.locator(".day").nth(2)).to_contain_text(f"00:17 {name} and 23 more")
    expect(plan.get_by_text("Too often to be drawn: beat.")).to_be_visible()
    expect(plan.get_by_text("Once a day:")).to_contain_text("(1 start)")
    with page.expect_download() as given:
        plan.get_by_role("button", name="Download as a calendar (iCal)").click()
    assert given.value.path().read_text("utf-8").startswith("BEGIN:VCALENDAR")
    plan.locator("tbody").get_by_role("button", name=name, exact=True).click()
    expect(page.locator("#drawer h2")).to_have_text(name)


WEEK = """async (at) => {
    const [format, planning] = [await import("/ui/format.js"), await import("/ui/planning.js")];
    const now = Date.now;
    Date.now = () => Date.parse(at); // put back before the page can compare it with the clock of the node
    format.useUtc(false);
    const days = planning.weekOf([], 200).days.map(([day]) => day);
    Date.now = now;
    return days;
}"""


@pytest.mark.parametrize(
    ("at", "first", "last"),
    [("2027-03-27T22:30:00Z", 27, "2027-04-02"), ("2027-10-29T22:30:00Z", 30, "2027-11-05")],
    ids=["forward", "back"],
)
def test_a_week_has_seven_days_also_when_clocks_change(
    node: Any, open_page: Any, at: str, first: int, last: str
) -> None:
    page = open_page(node.url, zone="Europe/Berlin")
    days = page.evaluate(WEEK, at)
    assert len(days) == len(set(days)) == 7
    assert int(days[0][-2:]) == first
    assert int(days[1][-2:]) == first + 1
    assert days[-1] == last


def test_what_a_run_took_is_drawn(daemons: Any, open_page: Any) -> None:
    node = daemons(
        {"name": "busy", "command": "sleep 1", "monitorResources": {"interval": 0.1}},
        {"name": "other"},
        name="measured",
    )
    node.wait_until_ready()
    page = open_page(f"{node.url}#/jobs/job/other/resources")
    expect(page.locator("#panel")).to_contain_text("Nothing is measured. Add monitorResources: true to the job.")
    page.goto(f"{node.url}#/jobs/job/busy/resources")
    expect(page.locator("#panel")).to_contain_text("No run was measured yet.")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("#panel .curve polyline")).to_have_count(2)
    expect(page.get_by_role("region", name="Measured runs").locator("tbody tr")).to_have_count(1)
