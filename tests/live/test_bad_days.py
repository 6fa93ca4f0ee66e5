"""What a real daemon does when its surroundings are odd: renamed nodes, closed and clogged outputs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object], float, str], None]


def test_a_node_that_is_renamed_by_a_reload_runs_its_jobs_under_the_new_name(
    make_fleet: Callable[..., Any], waiting: Wait, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fleet = make_fleet(
        1, jobs=f"  - name: tell\n    command: 'echo $CRONSTABLE_NODE >> {out}'\n    schedule: \"* * * * * * *\"\n"
    )
    (node,) = fleet.nodes
    fleet.start()
    waiting(lambda: out.exists() and "node-a" in out.read_text(), 20, "a run under the first name")
    node.config.write_text(node.config.read_text().replace("nodeName: node-a", "nodeName: another"))
    node.send(signal.SIGHUP)
    waiting(lambda: (node.cluster() or {}).get("leader") == "another", 20, "the election under the new name")
    waiting(lambda: "another" in out.read_text(), 20, "a run under the new name")
