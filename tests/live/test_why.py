"""``cronstable why`` asks real daemons: the node that ran an occurrence, the one that did not, and one that is dead."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration
STAMP = (
    "  - name: tick\n"
    "    command: 'echo \"$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)\" >> STAMPS'\n"
    '    schedule: "* * * * * * *"\n'
    "    clusterPolicy: Leader\n"
)

Wait = Callable[[Callable[[], object], float, str], None]


def why(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cronstable", "why", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_the_leader_says_that_it_ran_and_the_follower_why_it_did_not(
    make_fleet: Callable[..., Any], waiting: Wait
) -> None:
    yearly = '  - {name: yearly, command: "true", schedule: "0 0 1 1 *", clusterPolicy: Leader}\n'
    fleet = make_fleet(2, jobs=STAMP + yearly)
    fleet.start()
    fleet.wait_until_whole()
    waiting(lambda: len(fleet.occurrences()) >= 3, 30, "three occurrences")
    name, scheduled_at, _ = fleet.occurrences()[-2]
    leader = next(node for node in fleet.nodes if node.name == name)
    follower = next(node for node in fleet.nodes if node.name != name)

    ran = why("tick", scheduled_at, "-c", str(leader.config))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[:2] == [
        f"tick, due {scheduled_at}",
        f"  ran on {leader.name}: this node leads (leader)",
    ]

    skipped = why("tick", scheduled_at, "--url", f"http://127.0.0.1:{follower.port}")
    assert (skipped.returncode, skipped.stderr) == (0, "")
    assert f"  skipped on {follower.name}: another node leads (not-leader)" in skipped.stdout.splitlines()
    assert f"    ask {leader.name} what it did" in skipped.stdout.splitlines()

    told = why("tick", scheduled_at, "-c", str(leader.config), "--json")
    (row,) = json.loads(told.stdout)["decisions"]
    assert row["verdict"] == "run"
    assert [(run["outcome"], run["run_id"]) for run in row["runs"]] == [("success", row["run_id"])]

    never = why("yearly", "2001-01-02T00:00:00Z", "-c", str(leader.config))
    assert (never.returncode, never.stderr) == (0, "")
    assert never.stdout.splitlines()[1:4] == [
        "  was not due, by the schedule it has now: 0 0 1 1 * (at 00:00 on day 1 of the month in January)",
        "  that is 2001-01-02T00:00:00+00:00 in its time zone, UTC",
        "  does not match: day of the month or week",
    ]

    nothing = why("tick", "2001-01-01T00:00:00Z", "-c", str(leader.config))
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "remembers no decision about 'tick' at 2001-01-01T00:00:00Z" in nothing.stderr

    nobody = why("tock", "-c", str(leader.config))
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr == f"Error: http://127.0.0.1:{leader.port}: there is no job 'tock'\n"

    follower.send(signal.SIGKILL)
    follower.wait(10)
    dead = why("tick", "-c", str(follower.config))
    assert (dead.returncode, dead.stdout) == (1, "")
    assert dead.stderr.startswith(f"Error: http://127.0.0.1:{follower.port} cannot be asked: ")
    assert dead.stderr.count("\n") == 1
