"""What holds for the whole page: who may see it, what it survives, who can use it, and that text stays text."""

from __future__ import annotations

import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect

HOSTILE = '<img src=x onerror="window.pwned=1">'
STILL = """() => Promise.all(document.getAnimations()
    .filter((one) => one.effect.getTiming().iterations !== Infinity).map((one) => one.finished.catch(() => null)))"""
TOO_TALL = """() => [...document.querySelectorAll('.rows > .row')]
    .filter((row) => row.scrollHeight > row.clientHeight + 1).map((row) => row.dataset.job)"""
BANNERS_GONE = """() => {
    window.gone = 0;
    new MutationObserver((all) => all.forEach((one) => { window.gone += one.removedNodes.length; }))
        .observe(document.getElementById('banners'), {childList: true});
}"""
CHECKS = Path(__file__).with_name("checks.js").read_text("utf-8")
VIEWS = (
    "jobs",
    "cluster",
    "fleet",
    "timeline",
    "schedule",
    "incidents",
    "jobs/job/bad/log",
    "jobs/job/bad/history",
    "jobs/job/spring/schedule",
    "jobs/job/bad/why",
    "jobs/job/bad/resources",
)
PEER = {
    "host": "node-b:8443",
    "status": "agreed",
    "node_name": "node-b",
    "job_set_id": "v1:" + "a" * 64,
    "last_seen": "2026-01-01T00:00:00+00:00",
    "last_error": None,
    "mismatch_streak": 0,
}
CLUSTER = {
    "enabled": True,
    "backend": "gossip",
    "node_name": "node-a",
    "job_set_id": "v1:" + "a" * 64,
    "cluster_size": 3,
    "quorum": 2,
    "elect_leader": True,
    "distribution": "single-leader",
    "conflict": False,
    "conflict_names": [],
    "size_conflict": False,
    "conflicting_sizes": [],
    "policy_conflict": False,
    "conflicting_policies": [],
    "candidates_truncated": 0,
    "quorate": True,
    "leader": "node-b",
    "is_leader": False,
    "peers": [
        PEER,
        {
            **PEER,
            "host": "node-c:8443",
            "node_name": "node-c",
            "status": "unreachable",
            "last_error": "connection refused",
        },
    ],
}
RUN = {"running": 0, "enabled": True, "scheduled_in": 60.0}
LAST = {"outcome": "failure", "finished_at": "2026-01-01T00:00:00+00:00", "duration": 2.0, "exit_code": 1}
NODE = {
    "host": "h",
    "self": False,
    "status": "agreed",
    "as_of": "2026-01-01T00:00:00+00:00",
    "truncated": False,
    "node_stats": None,
}
FLEET = {
    "enabled": True,
    "backend": "gossip",
    "node_name": "node-a",
    "distribution": "single-leader",
    "elect_leader": True,
    "interval": 30.0,
    "nodes": [
        {**NODE, "node_name": "node-a", "self": True, "status": "self", "jobs": {"bad": {**RUN, "last": None}}},
        {
            **NODE,
            "node_name": "node-b",
            "jobs": {"bad": {**RUN, "last": LAST}, "only-b": {**RUN, "running": 1, "last": None}},
        },
        {**NODE, "node_name": None, "host": "node-c:8443", "status": "unreachable", "as_of": None, "jobs": None},
    ],
}


def injected(page: Page) -> Any:
    return page.evaluate(
        "[window.pwned ?? null, document.querySelectorAll('img, iframe, object, script:not([src])').length]"
    )


# -- text stays text --------------------------------------------------------------------------------------------------


def test_hostile_names_and_output_are_shown_and_do_nothing(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    row = page.locator("[role=row][data-job]").filter(has_text=HOSTILE)
    row.get_by_role("button", name="Run").click()
    expect(row).to_contain_text("ok in")
    row.locator(".name").click()
    expect(page.locator("#drawer h2")).to_have_text(f"{HOSTILE} a/b%2F\"'")
    expect(page.locator(".lines")).to_contain_text("<script>window.pwned=1</script>")
    for tab in ("History", "Schedule", "Why", "Details"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tabpanel")).not_to_be_empty()
    page.reload()  # the address names the job
    expect(page.locator("#drawer h2")).to_contain_text(HOSTILE)
    assert injected(page) == [None, 0]


def test_hostile_data_of_peers_is_shown_and_does_nothing(node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank")
    peer = {
        **PEER,
        "node_name": HOSTILE,
        "host": HOSTILE,
        "status": HOSTILE,
        "last_error": HOSTILE,
        "job_set_id": HOSTILE,
    }
    bad = {**CLUSTER, "leader": HOSTILE, "peers": [peer], "conflict": True, "conflict_names": [HOSTILE]}
    fulfilled(page, "cluster", {**bad, "conflicting_policies": [HOSTILE]})
    there = {
        **NODE,
        "node_name": HOSTILE,
        "status": HOSTILE,
        "jobs": {HOSTILE: {**RUN, "last": {**LAST, "outcome": HOSTILE}}},
    }
    fulfilled(page, "fleet", {**FLEET, "nodes": [there]})
    fulfilled(
        page,
        "activity",
        {"jobs": {}, "days": {HOSTILE: {"since": HOSTILE, "quarters": [[HOSTILE, 1, 1, 1, 1, 1], [1, HOSTILE]]}}},
    )
    page.goto(f"{node.url}#/cluster")
    expect(page.get_by_role("region", name="Peers")).to_contain_text(HOSTILE)
    expect(page.locator(".banner")).to_contain_text(f"more than one node is called {HOSTILE}")
    page.get_by_role("link", name="Fleet").click()
    expect(page.get_by_role("table", name="Jobs by nodes")).to_contain_text(HOSTILE)
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_text("Nothing is known to have run on this node")).to_be_visible()
    assert injected(page) == [None, 0]


def test_the_browser_refuses_markup_and_scripts_that_are_not_the_pages_own(
    node: Any, open_page: Any, complaints: Any
) -> None:
    complaints.expected = ("Content Security Policy", "TrustedHTML", "trusted-types", "Trusted Type")
    page = open_page(node.url)
    assert (
        page.evaluate("try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }")
        == "TypeError"
    )
    page.evaluate(
        "document.head.append(Object.assign(document.createElement('style'), { textContent: 'body { color: red }' }))"
    )
    assert page.evaluate("fetch('http://127.0.0.2:1/').catch((error) => error.name)") == "TypeError"
    assert len(complaints.heard) >= 2
    complaints.hosts.discard("127.0.0.2:1")


# -- who may see and do what ------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_kept_in_the_tab_and_its_scopes_are_respected(
    daemons: Any, open_page: Any, complaints: Any
) -> None:
    complaints.expected = ("401",)
    tokens = [
        {"value": "look", "scopes": ["view"], "label": "wall"},
        {"value": "act", "scopes": ["control"], "label": "ops"},
    ]
    node = daemons({"name": "a"}, name="guarded", web={"authTokens": tokens})
    node.wait_until_ready()
    page = open_page(node.url)
    asked = page.get_by_label("Token for")
    expect(asked).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_text("This node shows nothing without a token.")).to_be_visible()
    page.get_by_role("button", name="Give a token").click()
    asked.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("That token was not accepted.")
    asked.fill("look")
    page.keyboard.press("Enter")
    expect(page.locator("#access")).to_have_text("wall")
    run = page.get_by_role("button", name="Run a")
    expect(run).to_have_attribute("aria-disabled", "true")
    page.reload()
    expect(page.locator("#access")).to_have_text("wall")
    assert page.evaluate("[document.cookie, JSON.stringify(localStorage).includes('look'), sessionStorage.length]") == [
        "",
        False,
        1,
    ]
    page.locator("#access").click()
    asked.fill("act")
    page.keyboard.press("Enter")
    expect(page.locator("#access")).to_have_text("ops")
    expect(run).not_to_have_attribute("aria-disabled", "true")
    with page.expect_response(lambda reply: reply.request.method == "POST") as started:
        run.click()
    assert started.value.status == 200
    expect(page.locator('[data-job="a"]')).to_contain_text("ok in")


# -- what the page survives -------------------------------------------------------------------------------------------


def test_leadership_moves_on_the_open_page_and_a_lost_node_comes_back(
    daemons: Any, open_page: Any, complaints: Any, tmp_path: Path
) -> None:
    complaints.expected = (
        "ERR_CONNECTION_REFUSED",
        "ERR_CONNECTION_RESET",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_EMPTY_RESPONSE",
    )
    shared = {"backend": "filesystem", "filesystem": {"path": str(tmp_path), "ttl": 60}}
    job = {"name": "a", "clusterPolicy": "Leader", "schedule": "* * * * * * *"}
    first = daemons(job, name="first", cluster={**shared, "nodeName": "first"})
    first.wait_until_ready()
    page_of_first = open_page(f"{first.url}#/cluster")
    expect(page_of_first.locator("#lead")).to_have_text("this node leads")
    second = daemons(job, name="second", cluster={**shared, "nodeName": "second"})
    second.wait_until_ready()
    page = open_page(f"{second.url}#/cluster")
    complaints.hosts.discard(first.url.split("/")[2])
    expect(page.locator("#lead")).to_have_text("first leads")
    # A log that is new starts nothing for five seconds (claims rule 8), and what nobody would have started is not made
    # up for. One write opens the term, the second is a claim.
    expect(page_of_first.get_by_label("Cluster")).to_contain_text(re.compile(r"Won([2-9]|\d\d)"))
    page.evaluate("window.same = true")
    # Frozen for a few seconds, it leaves something to be made up for, and the lead: it is not dead.
    first.signal(signal.SIGSTOP)
    for _ in range(3):
        expect(page.locator("#zone")).not_to_have_text(page.locator("#zone").inner_text())
    expect(page.locator("#lead")).to_have_text("first leads")
    first.signal(signal.SIGKILL)
    first.process.wait(30)
    # Long before the ttl is over: the end of its process is proven (ADR 0042).
    expect(page.locator("#lead")).to_have_text("this node leads", timeout=15_000)
    expect(page.get_by_label("Cluster")).to_contain_text("second leads")
    expect(page.get_by_label("Cluster")).to_contain_text("a: started late")
    expect(page.get_by_label("Cluster")).to_contain_text(re.compile(r"Won[1-9]\d*Not won\d+Started late[1-9]"))
    assert page.evaluate("window.same") is True
    expect(page_of_first.locator(".banner")).to_contain_text("No contact with first")
    expect(page_of_first.locator("#link")).to_have_text("no contact")
    # It stays so for as long as the node is away: the page has looked again when its clock went on a few times.
    page_of_first.evaluate(BANNERS_GONE)
    for _ in range(3):
        expect(page_of_first.locator("#zone")).not_to_have_text(page_of_first.locator("#zone").inner_text())
    assert page_of_first.evaluate("window.gone") == 0
    first.start()
    expect(page_of_first.locator(".banner")).to_have_count(0)
    expect(page_of_first.locator("#lead")).to_have_text("second leads")
    expect(page_of_first.locator("#link")).to_have_text("live")
    # It asks for as long as it is open.
    page_of_first.close()
    complaints.hosts.discard(first.url.split("/")[2])


def test_it_works_below_a_prefix(node: Any, open_page: Any) -> None:
    page = open_page("about:blank")
    page.route("**/ops/cron/**", lambda route: route.continue_(url=route.request.url.replace("/ops/cron/", "/")))
    page.goto(f"{node.url}ops/cron/")
    expect(page.locator('[data-job="spring"]')).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    bad = page.locator('[data-job="bad"]')
    with page.expect_response(lambda reply: reply.request.method == "POST") as started:
        bad.get_by_role("button", name="Run bad").click()
    assert started.value.status == 200
    expect(bad).to_contain_text("exit 3")


def test_without_events_the_page_goes_on_by_asking(node: Any, open_page: Any, complaints: Any) -> None:
    complaints.expected = ("ERR_FAILED",)
    page = open_page("about:blank")
    page.route("**/events*", lambda route: route.abort())
    page.goto(node.url)
    expect(page.locator("#link")).to_have_text("polling")
    ticker = page.locator('[data-job="ticker"]')
    before = ticker.locator("time").first.get_attribute("title")
    expect(ticker.locator("time").first).not_to_have_attribute("title", str(before))


def test_a_page_that_nobody_sees_gives_its_connection_back(node: Any, open_page: Any) -> None:
    page = open_page("about:blank")
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.unseen === true })")
    page.goto(node.url)
    expect(page.locator("#link")).to_have_text("live")
    page.evaluate("window.unseen = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#link")).to_have_text("polling")
    page.evaluate("window.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#link")).to_have_text("live")


def test_times_are_shown_in_utc_or_in_the_zone_of_the_reader(
    node: Any, open_page: Any, springs: list[datetime]
) -> None:
    due = springs[0]
    shown = "%m-%d %H:%M:%S" if due - datetime.now(UTC) > timedelta(hours=20) else "%H:%M:%S"
    page = open_page(f"{node.url}#/jobs/job/bad/why", zone="Asia/Tokyo")
    expect(page.locator("#zone")).to_contain_text("UTC")
    expect(page.locator('[data-job="spring"] .at')).to_have_text(due.strftime(shown))
    page.locator("#zone").click()
    expect(page.locator("#zone")).to_contain_text("Asia/Tokyo")
    expect(page.locator('[data-job="spring"] .at')).to_have_text(due.astimezone(ZoneInfo("Asia/Tokyo")).strftime(shown))


# -- who can use it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_has_names_roles_and_contrast(scheme: Any, node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank", color_scheme=scheme)
    fulfilled(page, "cluster", {**CLUSTER, "conflict": True, "conflict_names": ["node-b"]})
    fulfilled(page, "fleet", FLEET)
    for view in VIEWS:
        page.goto(f"{node.url}#/{view}")
        expect(page.locator(".banner")).to_contain_text("Conflict")
        expect(page.locator("#panel" if "/job/" in view else "#main")).not_to_be_empty()
        expect(page.locator("text=Looking… >> visible=true")).to_have_count(0)
        page.evaluate(STILL)
        assert page.evaluate(CHECKS) == [], view


def test_the_checks_find_what_is_wrong(node: Any, open_page: Any) -> None:
    page = open_page(node.url)
    expect(page.locator('[data-job="bad"]')).to_be_visible()
    page.evaluate("document.querySelector('.brand h1').style.color = 'rgb(160, 160, 160)'")
    page.evaluate("document.querySelector('#theme').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('#search').tabIndex = 3")
    page.evaluate(
        "document.querySelector('#help').style.height = document.querySelector('#help').style.minHeight = '12px'"
    )
    found = " ".join(page.evaluate(CHECKS))
    for kind in (
        "contrast 2",
        "no name: button#theme",
        "tabindex above 0: input#search",
        "too small to hit: button#help",
    ):
        assert kind in found


def test_at_the_width_of_a_telephone_nothing_sticks_out(node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank", size=(360, 740))
    fulfilled(page, "cluster", CLUSTER)
    fulfilled(page, "fleet", FLEET)
    for view in VIEWS:
        page.goto(f"{node.url}#/{view}")
        expect(page.locator("#panel" if "/job/" in view else "#main")).not_to_be_empty()
        expect(page.locator("text=Looking… >> visible=true")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, view
        assert page.evaluate(TOO_TALL) == [], view
    page.goto(f"{node.url}#/jobs")
    expect(page.locator('[data-job="bad"]').get_by_role("button", name="Run bad")).to_be_in_viewport()


def test_nothing_moves_for_who_wants_it_still(node: Any, open_page: Any) -> None:
    page = open_page(f"{node.url}#/jobs/job/bad/history", reduced_motion="reduce")
    expect(page.locator("#panel")).not_to_be_empty()
    assert page.evaluate("document.getAnimations().length") == 0


def test_the_matrix_says_who_ran_what_and_which_node_is_silent(node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank")
    fulfilled(page, "cluster", CLUSTER)
    fulfilled(page, "fleet", FLEET)
    page.goto(f"{node.url}#/fleet")
    table = page.get_by_role("table", name="Jobs by nodes")
    expect(table.get_by_role("columnheader").nth(2)).to_contain_text("node-b")
    expect(table.get_by_role("columnheader").nth(2)).to_contain_text("leads")
    expect(table.get_by_role("columnheader").nth(3)).to_contain_text("unreachable, never heard of")
    bad = table.locator('[data-job="bad"] [role=cell]')
    expect(bad).to_have_text(["no run yetno run yet", re.compile("^failed.* ago$"), "?"])
    expect(table.locator('[data-job="only-b"] [role=cell]').nth(1)).to_contain_text("running")
    expect(bad.nth(1)).to_have_attribute("title", re.compile("^2026-01-01 00:00:00 UTC"))
    page.locator("#zone").click()
    expect(bad.nth(1)).to_have_attribute("title", re.compile("^2026-01-01 01:00:00 "))


def test_the_timeline_shows_where_the_failures_are(node: Any, open_page: Any) -> None:
    page = open_page(f"{node.url}#/timeline")
    expect(page.locator('[data-job="ticker"] .strip')).to_have_attribute(
        "aria-label", re.compile(r"ticker: \d+ since .*, 0 failed")
    )
    expect(page.locator('[data-job="ticker"] .strip .o-ok')).not_to_have_count(0)
    # The node was started by this test: of the day before it knows nothing, and says so.
    expect(page.locator('[data-job="ticker"] .strip .not-known')).not_to_have_count(0)
    expect(page.get_by_text("complete since")).to_be_visible()


def test_the_timeline_is_drawn_from_what_was_counted_all_day_long(node: Any, open_page: Any, fulfilled: Any) -> None:
    page = open_page("about:blank")
    quarter = 900
    last = int(datetime.fromisoformat(node.get("summary")["generated_at"]).timestamp()) // quarter * quarter
    every = [[last - n * quarter, 15, 0, 0, 0, 0] for n in reversed(range(1, 97))]
    at_night = [[at, 14, 1, 0, 0, 0] if n == 40 else [at, *counts] for n, (at, *counts) in enumerate(every)]
    since = datetime.fromtimestamp(last - 10 * quarter, UTC).isoformat()
    days = {
        "whole": {"since": "2020-01-01T00:00:00+00:00", "quarters": at_night},
        "late": {"since": since, "quarters": [[last - quarter, 0, 0, 0, 0, 7]]},
    }
    fulfilled(page, "activity", {"jobs": {}, "days": days})
    page.goto(f"{node.url}#/timeline")
    whole, late = page.locator('[data-job="whole"] .strip'), page.locator('[data-job="late"] .strip')
    expect(whole).to_have_attribute("aria-label", re.compile(r"^whole: 14(25|40) in 24 hours, 1 failed$"))
    expect(whole.locator(".o-failed")).to_have_count(1)
    expect(whole.locator(".not-known")).to_have_count(0)
    expect(late).to_have_attribute("aria-label", re.compile(r"^late: 0 since \d{4}-\d\d-\d\d .*, 0 failed, 7 skipped$"))
    expect(late.locator(".not-known").first).to_have_attribute(
        "title", re.compile("^not known: this node remembers since ")
    )
    expect(late.locator(".o-skipped")).to_have_count(1)
