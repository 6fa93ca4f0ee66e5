"""The log of a job in the drawer, in a real browser on a real daemon: across lost connections and zones."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Route, expect


def test_a_log_that_comes_back_to_a_run_that_is_forgotten_does_not_say_that_it_is_complete(
    node: Any, open_page: Any
) -> None:
    page = open_page("about:blank")
    begun = 'event: run\ndata: {"run_id":"gone","started_at":null}\n\nid: gone:1\nevent: line\n'
    line = {"stream": "stdout", "line": "the first of many", "number": 1, "at": "2026-01-01T00:00:00+00:00"}
    asked: list[Route] = []

    def dropped_once(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(body=f"{begun}data: {json.dumps(line)}\n\n", content_type="text/event-stream")
        else:
            route.continue_()

    page.route("**/jobs/idle/logs", dropped_once)
    page.goto(f"{node.url}#/jobs/job/idle/log")
    expect(page.locator(".which")).to_have_text("Run gone: what followed is not kept any more.")
    expect(page.locator(".lines .what")).to_have_text(["the first of many"])
