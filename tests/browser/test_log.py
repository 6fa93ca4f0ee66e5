"""The log of a job in the drawer, in a real browser on a real daemon: across lost connections and zones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect


def drop_once(page: Page, path: str, *lines: str, run: str) -> None:
    """Let the first connection to the log at ``path`` break after these lines."""
    texts = [f'event: run\ndata: {{"run_id":"{run}","started_at":null}}\n\n']
    for number, line in enumerate(lines, 1):
        data = {"stream": "stdout", "line": line, "number": number, "at": "2026-01-01T00:00:00+00:00"}
        texts.append(f"id: {run}:{number}\nevent: line\ndata: {json.dumps(data)}\n\n")
    asked: list[Route] = []

    def dropped(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(body="".join(texts), content_type="text/event-stream")
        else:
            route.continue_()

    page.route(f"**/{path}", dropped)


@pytest.fixture(scope="module")
def talker(daemons: Any) -> Any:
    """A daemon whose one job has said three lines and says no more."""
    one = daemons(
        {"name": "talker", "schedule": "@reboot", "command": "seq 3; sleep 300", "captureStdout": True}, name="talker"
    )
    one.wait_until_ready()
    return one


def test_a_log_whose_connection_was_lost_goes_on_and_says_so(talker: Any, open_page: Any) -> None:
    page = open_page(talker.url)
    expect(page.locator('[data-job="talker"]')).to_contain_text("running")
    [decision] = talker.get("jobs/talker/decisions")["decisions"]
    drop_once(page, "jobs/talker/logs", "1", run=decision["run_id"])
    page.locator('[data-job="talker"]').get_by_role("button", name="Log of talker").click()
    expect(page.locator(".lines .what")).to_have_text(["1", "2", "3"])  # the first connection had one of them
    expect(page.locator(".which")).to_have_text(f"Run {decision['run_id']}: live")


def test_a_log_that_comes_back_to_a_run_that_is_forgotten_does_not_say_that_it_is_complete(
    node: Any, open_page: Any
) -> None:
    page = open_page("about:blank")
    drop_once(page, "jobs/idle/logs", "the first of many", run="gone")
    page.goto(f"{node.url}#/jobs/job/idle/log")
    expect(page.locator(".which")).to_have_text("Run gone: what followed is not kept any more.")
    expect(page.locator(".lines .what")).to_have_text(["the first of many"])


def test_the_drawer_shows_all_its_times_in_the_zone_that_is_chosen(talker: Any, open_page: Any) -> None:
    page = open_page(f"{talker.url}#/jobs/job/talker/log", zone="Asia/Tokyo")
    line = page.locator(".lines .line").first
    expect(line.locator(".n")).to_have_attribute("title", re.compile("UTC$"))
    hour, _, rest = line.locator(".t").inner_text().partition(":")
    page.locator("#zone").click()
    expect(line.locator(".t")).to_have_text(f"{(int(hour) + 9) % 24:02}:{rest}")
    expect(line.locator(".n")).to_have_attribute("title", re.compile(r"GMT\+9$"))
    page.get_by_role("tab", name="Why").click()
    asked = page.get_by_role("tabpanel").locator("time")
    expect(asked).to_contain_text("GMT+9")
    page.locator("#zone").click()
    expect(asked).to_contain_text("UTC")
