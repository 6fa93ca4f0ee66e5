"""What the page says before it has heard of something, and that it notices when it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect


class Held:
    """Requests of a page for one path that get no answer before a test lets them go."""

    def __init__(self, page: Page, path: str) -> None:
        self.routes: list[Route] = []
        self.open = False
        page.route(lambda url: urlsplit(url).path == f"/{path}", self._held)

    def _held(self, route: Route) -> None:
        if self.open:
            route.continue_()
        else:
            self.routes.append(route)

    def let_go(self) -> None:
        self.open = True
        for route in self.routes:
            route.continue_()


# -- the fleet --------------------------------------------------------------------------------------------------------


def test_the_fleet_of_a_lease_without_a_channel_names_its_leader_once_the_cluster_is_heard(
    daemons: Any, open_page: Any, tmp_path: Path
) -> None:
    cluster = {"backend": "filesystem", "filesystem": {"path": str(tmp_path), "ttl": 60}, "nodeName": "lonely"}
    node = daemons({"name": "a"}, name="lonely", cluster=cluster)
    node.wait_until_ready()
    page = open_page("about:blank")
    held = Held(page, "cluster")
    page.goto(f"{node.url}#/fleet")
    card = page.get_by_label("Fleet")
    expect(card).to_contain_text("The nodes do not tell each other what they run")
    expect(card.get_by_role("status")).to_have_text("Looking…")
    expect(card).not_to_contain_text("runs alone")
    held.let_go()
    expect(card.get_by_role("status")).to_have_text("Leader: lonely")


def test_a_node_that_runs_alone_says_so_once_it_is_known(node: Any, open_page: Any) -> None:
    page = open_page("about:blank")
    held = Held(page, "cluster")
    page.goto(f"{node.url}#/fleet")
    said = page.get_by_label("Fleet").get_by_role("status")
    expect(said).to_have_text("Looking…")
    held.let_go()
    expect(said).to_have_text("This node runs alone.")


def test_the_matrix_follows_the_leader_though_no_node_told_anything_new(
    node: Any, open_page: Any, fulfilled: Any
) -> None:
    said = {"status": "agreed", "as_of": "2026-01-01T00:00:00+00:00", "truncated": False, "node_stats": None}
    nodes = [
        {**said, "node_name": name, "host": name, "self": name == "node-a", "jobs": {"a": {"running": 0, "last": None}}}
        for name in ("node-a", "node-b")
    ]
    cluster = {"enabled": True, "node_name": "node-a", "elect_leader": True, "quorate": True, "peers": []}
    page = open_page("about:blank")
    fulfilled(page, "fleet", {"enabled": True, "node_name": "node-a", "nodes": nodes})
    fulfilled(page, "cluster", {**cluster, "leader": "node-b"})
    page.goto(f"{node.url}#/fleet")
    heads = page.get_by_role("table", name="Jobs by nodes").get_by_role("columnheader")
    expect(heads.nth(2)).to_contain_text("leads")
    fulfilled(page, "cluster", {**cluster, "leader": "node-a"})
    expect(heads.nth(1)).to_contain_text("leads")
    expect(heads.nth(2)).not_to_contain_text("leads")


# -- who asks, and what reasons mean ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["no answer", "an error"])
def test_who_asks_is_asked_again_until_it_is_known(fault: str, node: Any, open_page: Any, complaints: Any) -> None:
    complaints.expected = ("ERR_FAILED", "503")
    page = open_page("about:blank")
    refused: list[Route] = []
    lost = True

    def refuse(route: Route) -> None:
        if not lost:
            route.continue_()
            return
        refused.append(route)
        if fault == "an error":
            route.fulfill(status=503, body="{}", content_type="application/json")
        else:
            route.abort()

    page.route(lambda url: urlsplit(url).path in ("/whoami", "/ui/reasons.json"), refuse)
    page.goto(f"{node.url}#/jobs/job/a/details")
    run = page.get_by_role("button", name="Run a", exact=True)
    expect(run).to_have_attribute("title", "it is not known yet what you may do")
    drawer = page.locator("#drawer")
    expect(drawer).to_contain_text("It is not known yet what you may do.")
    assert refused
    lost = False
    expect(run).not_to_have_attribute("aria-disabled", "true")
    expect(drawer.get_by_role("button", name="Run now")).to_be_visible()


def test_a_reason_whose_words_were_lost_gets_them_later(
    node: Any, open_page: Any, fulfilled: Any, complaints: Any
) -> None:
    complaints.expected = ("ERR_FAILED",)
    page = open_page("about:blank")
    row = {"outcome": "skipped", "skip_reason": "paused", "fail_reason": None, "run_id": None, "trigger": None}
    row |= {"scheduled_at": None, "attempt": None, "exit_code": None, "started_at": None, "node": "node-a"}
    row |= {"finished_at": "2026-01-01T00:00:00+00:00", "duration": None, "resources": None}
    real = node.get("jobs/a/runs")
    fulfilled(page, "jobs/a/runs", {**real, "runs": [row]})
    lost = True
    page.route("**/reasons.json", lambda route: route.abort() if lost else route.continue_())
    page.goto(f"{node.url}#/jobs/job/a/history")
    runs = page.get_by_role("region", name="Runs")
    expect(runs).to_contain_text("for a reason whose words are not here yet (paused)")
    lost = False
    expect(runs).to_contain_text("the job is paused (paused)")
