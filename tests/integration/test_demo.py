"""``make demo`` on the real thing: three daemons, one directory, and the leader taken away."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPO = Path(__file__).parents[2]
DEMO = [sys.executable, str(REPO / "example" / "demo" / "demo.py")]
DEADLINE = 120.0
ETCD = shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")

MOVED = re.compile(r"LEADERSHIP MOVED (node-[abc]) -> (node-[abc]), ([0-9.]+) s after (.+) \(fence (\d+)\)")
FIRST = re.compile(r"LEADER is (node-[abc]) \(fence (\d+)\)")
RUN = re.compile(r"(node-[abc])  run   leader +leader-every-second")
REASON = re.compile(r"node-[abc]  run   (\S+) +(\S+)")
FOLLOWING = re.compile(r"skips of followers \(not-leader or not-owner\): (.*)")


def environ(**more: str) -> dict[str, str]:
    """Ours without what would change the demo, and any free ports: tests may run side by side."""
    kept = {key: value for key, value in os.environ.items() if key not in ("DEMO_SCRIPT", "NO_COLOR")}
    return {**kept, "DEMO_PORT": "0", **more}


def scripted(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *options],
        env=environ(DEMO_SCRIPT=script),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def ports(output: str) -> list[int]:
    return [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)/cluster", output)]


def assert_nothing_is_left(output: str, count: int = 3) -> None:
    """No daemon listens, no directory is there."""
    found = ports(output)
    assert len(found) == count
    for port in found:
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0
    directory = re.search(r"config (\S+)/node-a\.yaml", output)
    assert directory is not None
    assert not Path(directory[1]).exists()


@pytest.fixture(scope="module")
def frozen() -> subprocess.CompletedProcess[str]:
    """A demo whose leader was frozen and woke up."""
    done = scripted("wait run; stop; wait moved; wait run; cont; wait run; quit")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def killed() -> subprocess.CompletedProcess[str]:
    """A demo whose leader was killed."""
    done = scripted("wait run; kill; wait moved; wait run; quit")
    assert done.returncode == 0, done.stderr
    return done


def test_another_node_leads_after_the_leader_was_killed_and_jobs_go_on(
    killed: subprocess.CompletedProcess[str],
) -> None:
    done = killed
    first, moved = FIRST.search(done.stdout), MOVED.search(done.stdout)
    assert first is not None
    assert moved is not None
    assert moved[1] == first[1]
    assert moved[2] != first[1]
    assert int(moved[5]) > int(first[2])
    assert moved[4] == "kill -9"
    before, after = done.stdout[: moved.start()], done.stdout[moved.end() :]
    assert set(RUN.findall(before)) == {first[1]}
    assert set(RUN.findall(after)) == {moved[2]}
    assert_nothing_is_left(done.stdout)


def test_leadership_moves_because_the_killed_one_is_proven_dead_and_not_because_its_ttl_is_over() -> None:
    done = scripted("wait run; kill; wait moved; quit", "--keep")
    assert done.returncode == 0, done.stderr
    first, kept = FIRST.search(done.stdout), re.search(r"config (\S+)/node-a\.yaml", done.stdout)
    assert first is not None
    assert kept is not None
    logs = "".join(path.read_text() for path in Path(kept[1]).glob("node-*.log"))
    shutil.rmtree(kept[1])
    said = f"the holder's process has ended: its lease is let go ({first[1]}, fence {first[2]})"
    assert logs.count(said) == 1


def test_each_run_has_the_reason_of_the_node_that_ran_it_and_skips_of_followers_are_counted(
    frozen: subprocess.CompletedProcess[str],
) -> None:
    done = frozen
    reasons = {
        # "catch-up": due while nobody led, started late by the next leader. "?": what a node began right before it was
        # killed, of which nobody can tell the reason any more.
        "leader-every-second": {"leader", "catch-up", "?"},
        "prefer-every-5-seconds": {"leader", "available", "catch-up", "?"},
        "all-every-10-seconds": {"every-node", "?"},
    }
    told = [(job, reason) for reason, job in REASON.findall(done.stdout)]
    assert ("leader-every-second", "leader") in told
    assert ("leader-every-second", "catch-up") in told
    assert [(job, reason) for job, reason in told if reason not in reasons[job]] == []
    counted = " ".join(FOLLOWING.findall(done.stdout))
    assert len(set(re.findall(r"(node-[abc]) [1-9]", counted))) >= 2


def test_a_killed_node_comes_back_and_an_ordered_stop_hands_over() -> None:
    done = scripted("wait run; kill; wait moved; restart; term; wait moved; wait run; quit")
    assert done.returncode == 0, done.stderr
    (_, second, _, _, _), (left, third, _, how, _) = MOVED.findall(done.stdout)
    assert (left, how) == (second, "SIGTERM")
    assert third != second
    assert_nothing_is_left(done.stdout)


def test_a_frozen_leader_wakes_up_as_a_follower(frozen: subprocess.CompletedProcess[str]) -> None:
    done = frozen
    first, moved = FIRST.search(done.stdout), MOVED.search(done.stdout)
    assert first is not None
    assert moved is not None
    awake = done.stdout.partition(f"SIGCONT {first[1]}")[2]
    assert awake != ""
    assert first[1] not in RUN.findall(awake)


@pytest.mark.skipif(ETCD is None, reason="no etcd on this machine: Debian's etcd-server makes this test run")
def test_the_demo_over_etcd_moves_leadership_and_makes_up_for_a_store_that_was_away() -> None:
    script = "wait run; kill; wait moved; wait run; away; wait 2; back; wait leader; wait run; quit"
    done = scripted(script, "--backend", "etcd")
    assert done.returncode == 0, done.stderr
    moved = re.search(
        r"LEADERSHIP MOVED (node-[abc]) -> (node-[abc]), [0-9.]+ s after kill -9 \(lease \d+\)", done.stdout
    )
    assert moved is not None
    assert moved[1] != moved[2]
    assert RUN.findall(done.stdout.partition("the store comes back")[2])
    assert_nothing_is_left(done.stdout)
    port = re.search(r"--endpoints http://127\.0\.0\.1:(\d+) get", done.stdout)
    assert port is not None
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", int(port[1]))) != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine, which makes the certificates")
@pytest.mark.parametrize(
    ("count", "options"),
    [(3, ()), (5, ("--spread",)), (10, ("--spread",))],
    ids=["demo-gossip", "demo-grand-tour", "demo-cluster-large"],
)
def test_the_demo_peer_to_peer_moves_leadership_without_a_store(count: int, options: tuple[str, ...]) -> None:
    script = "wait run; kill; wait moved; quit"
    done = scripted(script, "--backend", "gossip", "--nodes", str(count), *options)
    assert done.returncode == 0, done.stderr
    moved = re.search(r"LEADERSHIP MOVED (node-[a-j]) -> (node-[a-j]), [0-9.]+ s after kill -9", done.stdout)
    assert moved is not None
    assert moved[1] != moved[2]
    assert_nothing_is_left(done.stdout, count)


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl on this machine, which makes the certificates"
)


def of_peers(script: str) -> str:
    """What the demo of three nodes that have only each other shows."""
    done = scripted(script, "--backend", "gossip")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_openssl
def test_a_node_with_other_jobs_is_seen_as_drifted_until_it_has_them_again() -> None:
    shown = of_peers("wait agreed; drift; wait drifted; mend; wait agreed; quit")
    found = re.search(r"(node-[bc]) has other jobs", shown)
    assert found is not None
    name, spoilt, mended = found[1], found.start(), shown.index(f"{found[1]} has its jobs and its name again")
    assert "node-a  sees  node-b agreed, node-c agreed\n" in shown[:spoilt]
    assert re.search(rf"node-[abc]  sees  .*{name} drifted", shown[spoilt:mended])
    assert re.search(rf"{name}  sees  .*: no quorum\n", shown[spoilt:mended])
    assert "node-a  sees  node-b agreed, node-c agreed\n" in shown[mended:]
    assert "NOBODY LEADS" not in shown, "two of three go on"
    assert_nothing_is_left(shown)


@needs_openssl
def test_a_node_with_the_name_of_another_is_a_conflict_in_which_nobody_leads_until_it_has_its_own_again() -> None:
    shown = of_peers("wait agreed; clash; wait conflict; wait nobody; mend; wait agreed; wait leader; quit")
    spoilt, mended = shown.index("goes by the name of node-a"), shown.index("has its jobs and its name again")
    assert re.search(r"node-a  sees  .*node-[bc] conflict.*: conflict \(node-a\)\n", shown[spoilt:mended])
    assert "NOBODY LEADS: a conflict" in shown[spoilt:mended]
    assert "LEADER is node-" in shown[mended:]
    assert_nothing_is_left(shown)


@needs_openssl
def test_the_last_of_three_nodes_leads_nothing_until_another_one_is_back() -> None:
    shown = of_peers("wait agreed; kill; wait moved; kill; wait nobody; restart; wait agreed; quit")
    lost = shown.index("NOBODY LEADS: no quorum")
    assert re.search(r"node-[abc]  sees  node-[ab] unreachable, node-[bc] unreachable: no quorum\n", shown[:lost])
    assert "LEADER" in shown[lost + len("NOBODY LEADS") :]
    assert_nothing_is_left(shown)


@needs_openssl
def test_three_nodes_grow_to_five_that_all_agree() -> None:
    shown = of_peers("wait agreed; grow; wait agreed; grow; wait run; quit")
    assert "*** 5 nodes from now on, node-d, node-e are new" in shown
    assert "node-e  sees  node-a agreed, node-b agreed, node-c agreed, node-d agreed\n" in shown
    assert "*** there are 5 nodes already" in shown
    assert_nothing_is_left(shown, 5)


def test_what_shows_peers_needs_some_and_each_way_to_elect_has_its_own_help() -> None:
    done = scripted("drift")
    assert done.returncode == 1
    assert "drift shows what nodes see of each other, and here they see a store: --backend gossip" in done.stderr
    assert "the ttl of its lease" in done.stdout
    assert "edit one node's jobs" not in done.stdout


def test_the_demo_over_an_apiserver_moves_leadership_and_makes_up_for_a_store_that_was_away() -> None:
    script = "wait run; kill; wait moved; wait run; away; wait 2; back; wait leader; wait run; quit"
    done = scripted(script, "--backend", "kubernetes")
    assert done.returncode == 0, done.stderr
    moved = re.search(
        r"LEADERSHIP MOVED (node-[abc]) -> (node-[abc]), [0-9.]+ s after kill -9 "
        r"\(Lease default/cronstable-leader\)",
        done.stdout,
    )
    assert moved is not None
    assert moved[1] != moved[2]
    assert RUN.findall(done.stdout.partition("the store comes back")[2])
    assert_nothing_is_left(done.stdout)


def test_a_directory_cannot_be_taken_away_and_the_demo_says_so() -> None:
    done = scripted("away")
    assert done.returncode == 1
    assert "only a store that is a server can be taken away" in done.stderr
    assert_nothing_is_left(done.stdout)


def test_a_script_with_an_unknown_word_says_what_is_known() -> None:
    done = scripted("dance")
    assert done.returncode == 1
    assert "there is no command 'dance'" in done.stderr
    assert_nothing_is_left(done.stdout)


def test_a_first_port_that_is_none_is_refused() -> None:
    done = subprocess.run(DEMO, env=environ(DEMO_PORT="http"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "demo: DEMO_PORT='http' is not a port from 0 to 65526\n"


@contextmanager
def on_a_terminal(**variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The demo on a pseudo terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(DEMO, env=environ(**variables), stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=DEADLINE)
        os.close(ours)


def read_until(fd: int, pattern: re.Pattern[str], seen: str = "") -> str:
    """What the terminal shows, up to where ``pattern`` is found after ``seen``."""
    deadline = time.monotonic() + DEADLINE
    text = seen
    while not pattern.search(text, len(seen)):
        left = deadline - time.monotonic()
        assert left > 0, f"waited in vain for {pattern.pattern}:\n{text}"
        if select.select([fd], [], [], left)[0]:
            try:
                data = os.read(fd, 4096)
            except OSError:
                # The other side of a pseudo terminal was closed.
                data = b""
            assert data, f"ended before {pattern.pattern}:\n{text}"
            text += data.decode()
    return text


def test_the_dashboard_of_the_leader_is_named_and_its_page_and_events_answer() -> None:
    with on_a_terminal(NO_COLOR="1") as (process, terminal):
        text = read_until(terminal, re.compile(r"dashboard: http://127\.0\.0\.1:(\d+)/ is the leader's"))
        port = re.search(r"dashboard: http://127\.0\.0\.1:(\d+)/", text)
        first = FIRST.search(text)
        assert port is not None
        assert first is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=DEADLINE)
        connection.request("GET", "/")
        page = connection.getresponse()
        assert (page.status, page.headers.get_content_type()) == (200, "text/html")
        assert b"ui/main.js" in page.read()
        connection.request("GET", "/cluster")
        assert json.loads(connection.getresponse().read())["leader"] == first[1]
        connection.request("GET", "/events?kinds=finished")
        events = connection.getresponse()
        assert events.headers.get_content_type() == "text/event-stream"
        lines = iter(events.readline, b"")
        assert (
            next(line for line in lines if line.startswith(b"event: ") and b"hello" not in line) == b"event: finished\n"
        )
        connection.close()
        os.write(terminal, b"q")
        assert process.wait(timeout=DEADLINE) == 0


def test_single_keys_act_on_a_terminal_and_colour_is_used() -> None:
    with on_a_terminal() as (process, terminal):
        text = read_until(terminal, RUN)
        assert "\x1b[1;33m" in text
        os.write(terminal, b"t")
        text = read_until(terminal, MOVED, text)
        os.write(terminal, b"q")
        text = read_until(terminal, re.compile("directory removed"), text)
        assert process.wait(timeout=DEADLINE) == 0
    assert_nothing_is_left(text)


def test_an_interrupt_ends_all_daemons_and_no_color_is_respected() -> None:
    with on_a_terminal(NO_COLOR="1") as (process, terminal):
        text = read_until(terminal, RUN)
        process.send_signal(signal.SIGINT)
        text = read_until(terminal, re.compile("directory removed"), text)
        assert process.wait(timeout=DEADLINE) == 130
    assert "\x1b[" not in text
    assert_nothing_is_left(text)
