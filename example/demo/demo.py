"""Some cronstable daemons elect a leader; you take the leader away and watch another one take over.

Run it with ``make demo``, ``make demo-etcd``, ``make demo-kubernetes`` or ``make demo-gossip``. On a terminal single
keys act; without one ``DEMO_SCRIPT`` says what to do, for example
``DEMO_SCRIPT="wait 5; kill; wait 10; quit"``. ``DEMO_PORT`` is the first of three ports (8080), 0 for any.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fleet import BACKENDS, FIRST_PORT, JOBS, LEADER_JOB, MOST_NODES, OTHER_JOBS, Fleet, Node
from stores import TTL, DemoError, Peers

LAST_FIRST_PORT = 65536 - MOST_NODES
"""So that all fit behind it."""
TURN = 0.2
"""Seconds between two looks at the nodes."""
CONDITION_DEADLINE = 60.0
"""Seconds that ``wait leader`` and its like wait before the demo fails."""
LOOK_AT_SKIPS = 1.0
"""Seconds between two looks at what the nodes did not run."""
TELL_SKIPS = 10.0
"""Seconds between two lines with the followers' skips."""
NEWEST = 60
"""Decisions that are looked at: a node that was stopped or busy for this many seconds has not lost any to us."""
FOLLOWING = ("not-leader", "not-owner")
"""What every follower decides all the time: counted, not shown."""
TOUR = "wait run; wait 5; kill; wait moved; wait run; wait 3; restart; wait 5; term; wait moved; wait run; wait 3; quit"
"""What happens without a terminal and without DEMO_SCRIPT."""

TOUR_OF_THREE_PEERS = (
    "wait agreed; wait run; drift; wait drifted; wait 3; mend; wait agreed; clash; wait conflict; wait 3; mend; "
    "wait agreed; kill; wait moved; kill; wait nobody; wait 3; restart; wait agreed; grow; wait agreed; wait run; quit"
)
"""The same for three nodes that have only each other."""
GROWN = 5
"""Nodes after ``grow``."""
SURE = 5
"""Looks at nodes none of which leads, until it is said: no moment of doubt lasts that long."""

KEYS = {"k": "kill", "t": "term", "s": "stop", "c": "cont", "r": "restart", "q": "quit", "?": "help"}
KEYS_OF_STORES = {"a": "away", "b": "back"}
KEYS_OF_PEERS = {"d": "drift", "n": "clash", "m": "mend", "g": "grow"}
HELP_WITH_A_STORE = """\
  k  kill -9 the leader        another one takes over: within a second over a directory, since the kernel proves
                               that it has ended; over a server once the ttl of its lease has passed
  t  SIGTERM the leader        it lets go of the lease, so another one takes over at once
  s  SIGSTOP the leader        a frozen machine: it is no dead one, so its ttl has to pass; it wakes up as a follower
  c  SIGCONT what was stopped
  r  restart what is dead
  a  take the store away       nobody leads without it (a server only: make demo-etcd, demo-kubernetes)
  b  bring it back             what was due meanwhile is made up for
  q  quit: end the daemons, remove the directory"""
HELP_OF_PEERS = """\
  k  kill -9 the leader        it hangs up and its port is closed, so another one takes over at once; a second one of
                               three, and the last has no majority: nobody leads
  t  SIGTERM the leader        the same, in order
  s  SIGSTOP the leader        a frozen machine: it is given interval + connectTimeout (3 s) to notice by itself; it
                               claims nothing when it wakes up before it has asked everybody
  c  SIGCONT what was stopped
  r  restart what is dead
  d  edit one node's jobs      another job set: the others see it syncing, and after three rounds drifted
  n  give it another's name    two nodes of one name are a conflict: Leader jobs run nowhere
  m  mend both                 the jobs and names of before
  g  grow to five nodes        new certificates, new peers on all: sizes differ for a moment, so nobody leads
  q  quit: end the daemons, remove the directory"""


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the file that every job appends to: its own account of what it was started for."""

    run_id: str
    scheduled_at: str
    node: str
    job: str


class Screen:
    """What is printed. Colour only on a terminal, and never when NO_COLOR is set."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def say(self, text: str, code: str = "") -> None:
        """Print at once; ``code`` is an ANSI colour."""
        print(f"\x1b[{code}m{text}\x1b[0m" if code and self._colour else text, flush=True)

    def event(self, text: str) -> None:
        """Something that a reader should not miss."""
        self.say(f"{datetime.now(UTC):%H:%M:%S}  *** {text}", "1;33")


class Demo:
    """The live view, and what can be done to the nodes."""

    def __init__(self, fleet: Fleet, screen: Screen) -> None:
        self._fleet = fleet
        self._screen = screen
        self._runs = fleet.runs.open(encoding="utf-8")
        self._line = ""
        self._leader: str | None = None
        self._struck: tuple[str, float, str] | None = None
        self._last_leader_run: Run | None = None
        self._runs_seen: list[Run] = []
        self._decided: dict[tuple[str, str], datetime] = {}
        self._following: Counter[str] = Counter()
        self._invited = False
        self._skips_due = 0.0
        self._following_due = time.monotonic() + TELL_SKIPS
        self._moved = False
        self._views: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, str] = {}
        self._leaderless = 0
        self.over = False

    @property
    def keys(self) -> dict[str, str]:
        """What can be done here, by key."""
        return KEYS | (KEYS_OF_STORES if self._fleet.leases else KEYS_OF_PEERS)

    @property
    def _help(self) -> str:
        return HELP_WITH_A_STORE if self._fleet.leases else HELP_OF_PEERS

    # -- looking ------------------------------------------------------------------------------------------------------

    def introduce(self) -> None:
        """Say where everything is."""
        say = self._screen.say
        say(f"{len(self._fleet.nodes)} daemons, {self._fleet.store.title}", "1")
        for node in self._fleet.nodes:
            self._introduce(node)
        say(f"  the jobs are in {self._fleet.directory}/jobs.yaml, {self._fleet.store.where}")
        say("  one line a run: when it was due (UTC), where it ran and why: what that node says at /jobs/JOB/decisions")
        if self._fleet.leases:
            say(f"  the lease ttl is {TTL} s")
        say(self._help)

    def _introduce(self, node: Node) -> None:
        self._screen.say(f"  {node.name}  {node.url}/  {node.url}/cluster  {node.url}/jobs")
        self._screen.say(f"          config {node.config}   log {node.log}")

    def look(self) -> None:
        """Print what is new."""
        self._look_at_leader()
        if isinstance(self._fleet.store, Peers):
            self._look_at_peers(self._fleet.store)
        self._look_at_runs()
        if time.monotonic() >= self._skips_due:
            self._skips_due = time.monotonic() + LOOK_AT_SKIPS
            self._look_at_skips()
        if time.monotonic() >= self._following_due:
            self._following_due = time.monotonic() + TELL_SKIPS
            self._tell_following()

    def _look_at_leader(self) -> None:
        leader, term = None, ""
        self._views.clear()
        for node in self._fleet.nodes:
            view = node.get("/cluster")
            if view is None or "error" in view:
                # Away, or between the election of before and the one of an edited section.
                continue
            self._views[node.name] = view
            if not view.get("conflict") and (view.get("is_leader") or self._owns(node, view)):
                leader, term = node, _term(view)
        if leader is None or leader.name == self._leader:
            return
        if self._struck is not None and self._struck[0] != leader.name:
            name, at, how = self._struck
            took = time.monotonic() - at
            self._screen.event(f"LEADERSHIP MOVED {name} -> {leader.name}, {took:.1f} s after {how} ({term})")
            self._struck, self._moved = None, True
        else:
            self._screen.event(f"LEADER is {leader.name} ({term})")
        self._leader = leader.name
        if not self._invited:
            self._invite(leader)

    def _look_at_peers(self, peers: Peers) -> None:
        """Whom each node agrees with, when that changes; and that nobody leads, when that is no moment of doubt."""
        for name, view in self._views.items():
            text = _agreement(view, peers.peers_of(name))
            if self._seen.get(name) != text:
                self._seen[name] = text
                self._screen.say(f"{datetime.now(UTC):%H:%M:%S}  {name}  sees  {text}")
        conflict = any(view["conflict"] for view in self._views.values())
        leads = any(view["quorate"] and not view["conflict"] for view in self._views.values())
        self._leaderless = 0 if leads or not self._views else self._leaderless + 1
        if self._leaderless == SURE:
            self._screen.event(f"NOBODY LEADS: {'a conflict' if conflict else 'no quorum'}")
            self._leader = None
            self._runs_seen.clear()

    def _owns(self, node: Node, view: dict[str, Any]) -> bool:
        """Without one leader for all jobs, the leader of the demo is the node that owns its Leader job."""
        if view.get("distribution") != "spread" or not view.get("quorate"):
            return False
        entry = node.get(f"/jobs/{LEADER_JOB}")
        return entry is not None and entry.get("clusterOwner") == node.name

    def _invite(self, leader: Node) -> None:
        """Where the dashboard is: once, on the node that leads, and on one that stays when you take the leader away."""
        self._invited = True
        other = next(node for node in self._fleet.nodes if node is not leader)
        self._screen.say(f"  dashboard: {leader.url}/ is the leader's", "1")
        self._screen.say(f"             {other.url}/#/cluster stays: watch leadership move there")

    def _look_at_runs(self) -> None:
        for text in iter(self._runs.readline, ""):
            self._line += text
            if not self._line.endswith("\n"):
                return
            words, self._line = self._line.split(), ""
            if len(words) == 4:
                self._show_run(Run(*words))

    def _show_run(self, run: Run) -> None:
        self._runs_seen.append(run)
        if run.job == LEADER_JOB:
            self._note_gap(run)
            self._last_leader_run = run
        decision = self._decision(run)
        # A node that was killed meanwhile tells nothing; then the run's own account is all there is.
        due, reason = (decision["scheduled_at"], decision["reason"]) if decision else (run.scheduled_at, "?")
        self._screen.say(f"{due[11:19]}  {run.node}  run   {reason:<11} {run.job}")

    def _note_gap(self, run: Run) -> None:
        before = self._last_leader_run
        if before is None or before.node == run.node:
            return
        gap = int((instant(run) - instant(before)).total_seconds()) - 1
        self._screen.event(
            f"{LEADER_JOB}: {before.node} -> {run.node}, {max(gap, 0)} scheduled times in between: "
            "started late now, or skipped with a reason"
        )

    def _decision(self, run: Run) -> dict[str, Any] | None:
        """Why the node that ran it did: its own record of the decision."""
        for node in self._fleet.nodes:
            if node.name == run.node:
                return next((row for row in decisions(node, run.job) if row["run_id"] == run.run_id), None)
        return None

    def _look_at_skips(self) -> None:
        """What nodes did not run: a line for each, such as the slots that a frozen node slept through, but a count of
        what a follower leaves to the leader."""
        for node in self._fleet.nodes:
            for job in JOBS:
                rows = decisions(node, job)
                seen = self._decided.get((node.name, job))
                for row in reversed(rows):
                    if row["verdict"] == "skip" and (seen is None or decided_at(row) > seen):
                        self._note_skip(node, job, row)
                if rows:
                    self._decided[node.name, job] = max(map(decided_at, rows))

    def _note_skip(self, node: Node, job: str, row: dict[str, Any]) -> None:
        if row["reason"] in FOLLOWING:
            self._following[node.name] += 1
            return
        due = row["scheduled_at"] or row["decided_at"]
        self._screen.say(f"{due[11:19]}  {node.name}  skip  {row['reason']:<11} {job}")

    def _tell_following(self) -> None:
        """How often each node left an occurrence to another one since the last time that this was said."""
        if self._following:
            counts = ", ".join(f"{name} {count}" for name, count in sorted(self._following.items()))
            self._screen.say(f"{datetime.now(UTC):%H:%M:%S}  skips of followers ({' or '.join(FOLLOWING)}): {counts}")
            self._following.clear()

    # -- doing --------------------------------------------------------------------------------------------------------

    def command(self, words: str) -> Iterator[None]:
        """Carry out one command; yields while it waits."""
        verb, _, rest = words.partition(" ")
        if verb == "wait":
            yield from self._wait(rest.strip())
            return
        strikes = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
        if verb in strikes:
            self._strike(strikes[verb])
        elif verb == "cont":
            self._continue()
        elif verb == "restart":
            yield from self._restart()
        elif verb in ("drift", "clash"):
            self._spoil(verb)
        elif verb == "mend":
            self._mend()
        elif verb == "grow":
            self._grow()
        elif verb in ("away", "back"):
            self._screen.event("the store goes away" if verb == "away" else "the store comes back")
            self._move_store(verb == "away")
        elif verb == "quit":
            self._look_at_skips()
            self._tell_following()
            self.over = True
        elif verb == "help":
            self._screen.say(self._help)
        else:
            raise DemoError(f"there is no command {words!r}; known: wait, {', '.join(self.keys.values())}")

    def _spoil(self, verb: str) -> None:
        """Another job set, or the name of another node, for one that does not lead."""
        if self._fleet.leases:
            raise DemoError(f"{verb} shows what nodes see of each other, and here they see a store: --backend gossip")
        living = [node for node in self._fleet.nodes if node.alive and not node.stopped]
        others = [node for node in living if node.name != self._leader]
        if len(living) < 2:
            self._screen.event("no two living nodes: restart (r) first")
            return
        node, first = others[-1], living[0]
        if verb == "drift":
            self._screen.event(f"{node.name} has other jobs from now on")
            self._fleet.write(node, jobs=OTHER_JOBS)
        else:
            self._screen.event(f"{node.name} goes by the name of {first.name} from now on")
            self._fleet.write(node, called=first.name)
        self._fleet.signal(node, signal.SIGHUP)

    def _mend(self) -> None:
        for node in self._fleet.nodes:
            if self._fleet.write(node):
                self._screen.event(f"{node.name} has its jobs and its name again")
                self._fleet.signal(node, signal.SIGHUP)

    def _grow(self) -> None:
        if len(self._fleet.nodes) >= GROWN:
            self._screen.event(f"there are {len(self._fleet.nodes)} nodes already")
            return
        new = self._fleet.grow(GROWN)
        self._screen.event(
            f"{len(self._fleet.nodes)} nodes from now on, {', '.join(node.name for node in new)} are new"
        )
        for node in new:
            self._introduce(node)

    def _strike(self, number: signal.Signals) -> None:
        leader = next((node for node in self._fleet.nodes if node.name == self._leader), None)
        if leader is None or not leader.alive or leader.stopped:
            self._screen.event("no living leader to take away: wait for one, or restart (r), or continue (c)")
            return
        how = "kill -9" if number is signal.SIGKILL else number.name
        self._screen.event(f"{how} {leader.name} (the leader)")
        self._struck, self._moved = (leader.name, time.monotonic(), how), False
        self._runs_seen.clear()
        self._fleet.signal(leader, number)

    def _continue(self) -> None:
        for node in self._fleet.nodes:
            if node.stopped:
                self._runs_seen.clear()
                self._screen.event(f"SIGCONT {node.name}")
                self._fleet.signal(node, signal.SIGCONT)

    def _move_store(self, away: bool) -> None:
        if away:
            self._fleet.store.stop()
            self._leader = None
            self._runs_seen.clear()
        else:
            self._fleet.store.start()

    def _restart(self) -> Iterator[None]:
        for node in self._fleet.nodes:
            if not node.alive:
                self._screen.event(f"starting {node.name} again")
                self._fleet.start(node)
                yield from self._until(f"{node.name} to be ready", partial(_ready, node))

    def _wait(self, what: str) -> Iterator[None]:
        """``wait 5``: seconds. ``wait leader``, ``wait moved`` and so on: until it is so, or the demo fails."""
        conditions: dict[str, Callable[[], bool]] = {
            "leader": lambda: self._leader is not None,
            "moved": lambda: self._moved,
            "run": lambda: any(run.job == LEADER_JOB and run.node == self._leader for run in self._runs_seen),
            "nobody": lambda: self._leaderless >= SURE,
            "drifted": lambda: "drifted" in self._statuses(),
            "conflict": lambda: any(view.get("conflict") for view in self._views.values()),
            "agreed": self._all_agree,
        }
        if what in conditions:
            yield from self._until(what, conditions[what])
            return
        try:
            end = time.monotonic() + float(what)
        except ValueError:
            known = ", ".join(conditions)
            raise DemoError(f"wait for what? {what!r} is neither seconds nor one of: {known}") from None
        while time.monotonic() < end:
            yield

    def _statuses(self) -> list[str]:
        return [peer["status"] for view in self._views.values() for peer in view["peers"]]

    def _all_agree(self) -> bool:
        count = len(self._fleet.nodes)
        whole = len(self._views) == count and all(not view["conflict"] for view in self._views.values())
        return whole and self._leader is not None and self._statuses() == ["agreed"] * (count * (count - 1))

    def _until(self, what: str, condition: Callable[[], bool]) -> Iterator[None]:
        deadline = time.monotonic() + CONDITION_DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"waited {CONDITION_DEADLINE:g} s in vain for: {what}")
            yield


def _term(view: dict[str, Any]) -> str:
    """What tells one term from another: the fence, with etcd its lease; peers only know who agrees."""
    lease = view.get("lease")
    if lease is None:
        agreed = 1 + sum(peer["status"] == "agreed" for peer in view["peers"])
        return f"{agreed} of {view['cluster_size']} agree"
    if "leaseId" in lease:
        return f"lease {lease['leaseId']}"
    return f"fence {lease['fence']}" if lease.get("fence") else f"Lease {lease['namespace']}/{lease['name']}"


def _agreement(view: dict[str, Any], names: dict[str, str]) -> str:
    """What a node sees of the others, and what follows from it."""
    seen = ", ".join(f"{names.get(peer['host'], peer['host'])} {peer['status']}" for peer in view["peers"])
    conflicts = [*view["conflict_names"], *map(str, view["conflicting_sizes"]), *view["conflicting_policies"]]
    if conflicts:
        return f"{seen}: conflict ({', '.join(conflicts)})"
    return seen if view["quorate"] else f"{seen}: no quorum"


def decisions(node: Node, job: str) -> list[dict[str, Any]]:
    """The newest decisions of a node on a job, newest first; none when it does not answer."""
    answer = node.get(f"/jobs/{job}/decisions?limit={NEWEST}")
    return answer["decisions"] if answer else []


def decided_at(row: dict[str, Any]) -> datetime:
    """When a decision was made."""
    return datetime.fromisoformat(row["decided_at"])


def instant(run: Run) -> datetime:
    """When the run was due."""
    return datetime.fromisoformat(run.scheduled_at)


def _ready(node: Node) -> bool:
    if not node.alive:
        raise DemoError(f"{node.name} ended at once; its log is {node.log}")
    return node.get("/readyz") is not None


# -- input ------------------------------------------------------------------------------------------------------------


def play(demo: Demo, script: str) -> None:
    """Carry out a script: commands between semicolons."""
    for words in filter(None, (part.strip() for part in script.split(";"))):
        for _ in demo.command(words):
            demo.look()
            time.sleep(TURN)
        demo.look()
        if demo.over:
            return


def follow_keys(demo: Demo) -> None:
    """Act on single keys until ``q``."""
    with single_keys():
        while not demo.over:
            demo.look()
            ready, _, _ = select.select([sys.stdin], [], [], TURN)
            if not ready:
                continue
            key = os.read(sys.stdin.fileno(), 1).decode("ascii", "replace")
            if not key:
                return
            for _ in demo.command(demo.keys.get(key.lower(), "help")):
                demo.look()
                time.sleep(TURN)


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Keys come at once and unseen, instead of line by line; the terminal is put back afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def interrupt(number: int, frame: object) -> None:
    """SIGTERM and SIGHUP end the demo the way Ctrl-C does: with nothing left behind."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; the exit code: 0 quit, 1 something did not work, 130 interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the directory with configs and logs behind")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help="what the daemons elect over")
    parser.add_argument("--nodes", type=int, choices=range(3, MOST_NODES + 1), default=3, help="how many daemons")
    parser.add_argument("--spread", action="store_true", help="with gossip: a node of its own for each Leader job")
    options = parser.parse_args()
    if options.spread and options.backend != "gossip":
        parser.error("--spread goes with --backend gossip")
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    screen = Screen()
    port = os.environ.get("DEMO_PORT", str(FIRST_PORT))
    if not port.isascii() or not port.isdigit() or int(port) > LAST_FIRST_PORT:
        print(f"demo: DEMO_PORT={port!r} is not a port from 0 to {LAST_FIRST_PORT}", file=sys.stderr)
        return 1
    try:
        command = [sys.executable, "-m", "cronstable"]
        fleet = Fleet(command, options.backend, int(port), options.nodes, spread=options.spread)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    try:
        screen.say(f"starting {options.nodes} daemons ...")
        fleet.start_all()
        demo = Demo(fleet, screen)
        demo.introduce()
        script = os.environ.get("DEMO_SCRIPT")
        if script is None and sys.stdin.isatty():
            follow_keys(demo)
        else:
            play(demo, script or (TOUR_OF_THREE_PEERS if not fleet.leases and options.nodes == 3 else TOUR))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.say("interrupted")
        return 130
    finally:
        # Closing has a deadline of its own; an impatient second Ctrl-C must not leave daemons behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        fleet.close(keep=options.keep)
        screen.say(f"all daemons ended{'' if options.keep else ', directory removed'}: {fleet.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
