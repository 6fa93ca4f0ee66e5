"""The example alerts and the example dashboard ask for nothing but what is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cronstable.builtin.web.families import OF_JOBS, OF_NODE

NAME = re.compile(r"cronstable_\w+")
SELECTOR = re.compile(r"(cronstable_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
SCRAPED = {"instance", "job", "le"}
"""Labels that are not ours: Prometheus adds them."""


def names() -> dict[str, set[str]]:
    """What a query can name, and the labels it has."""
    found: dict[str, set[str]] = {}
    for family in (*OF_JOBS, *OF_NODE):
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.shown + suffix: set(family.labels) for suffix in suffixes}
    return found


def rules(repo: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load((repo / "example/monitoring/rules.yaml").read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions(repo: Path) -> list[str]:
    dashboard = json.loads((repo / "example/monitoring/dashboard.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [found["query"] for found in dashboard["templating"]["list"] if found["type"] == "query"]
    return [*(rule["expr"] for rule in rules(repo)), *asked]


def test_every_metric_and_label_that_is_asked_for_is_one_of_ours(repo: Path) -> None:
    ours = names()
    asked = expressions(repo)
    assert len(asked) > 30
    for text in asked:
        used = set(NAME.findall(text))
        assert used <= set(ours), text
        labels = {label for name in used for label in ours[name]} | SCRAPED
        for name, selected in SELECTOR.findall(text):
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)) <= ours[name], text
        for grouped in GROUPED.findall(text):
            assert {label.strip() for label in grouped.split(",")} <= labels, text


def test_promtool_finds_nothing_wrong_with_the_alerts(repo: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    command = [promtool, "check", "rules", str(repo / "example/monitoring/rules.yaml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(rules(repo))} rules found" in checked.stdout


def test_every_alert_says_how_bad_it_is_what_happened_and_what_it_means(repo: Path) -> None:
    found = rules(repo)
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


def test_every_alert_of_the_operator_guide_is_a_rule_that_asks_for_the_metrics_it_names(repo: Path) -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in rules(repo)}
    table = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (repo / "docs/operator-guide.md").read_text("utf-8").splitlines()
        if "| `Cronstable" in line
    ]
    assert len(table) == 6
    for row in table:
        expression = expressions[row[3].strip("`")]
        assert set(NAME.findall(row[2])) <= set(NAME.findall(expression)), row
        assert {text for _, text in SELECTOR.findall(row[2])} <= {text for _, text in SELECTOR.findall(expression)}


@pytest.mark.parametrize("alert", ["CronstableNoLeader", "CronstableNoQuorum", "CronstableOneFailureLeft"])
def test_a_cluster_that_elects_nobody_is_not_said_to_miss_a_leader(repo: Path, alert: str) -> None:
    """What counts transitions is there only where a leader is elected."""
    expression = next(rule["expr"] for rule in rules(repo) if rule["alert"] == alert)
    assert re.search(r"\band\b[^\n]*cronstable_cluster_leader_transitions_total", expression)


def test_a_panel_has_its_own_number_and_lies_within_the_grid(repo: Path) -> None:
    panels = json.loads((repo / "example/monitoring/dashboard.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize("family", [*OF_JOBS, *OF_NODE], ids=lambda family: family.name)
def test_every_metric_is_on_its_page(family: Any, repo: Path) -> None:
    rows = [line for line in (repo / "docs/metrics.md").read_text("utf-8").splitlines() if f"`{family.shown}`" in line]
    assert any(family.about in line and ", ".join(family.labels) in line for line in rows), "run: make docs"
