"""Occurrence claims, told as stories: ``claims/*.txt`` are inputs with what every node and the log must make of them.

Each story is named after a rule of the claim log and shows the double start or the loss that it closes. Input lines
are ``TIME NODE EVENT ...``; a node's clocks read TIME, unless ``wall NODE +S`` set them apart. The store is one log in
which ``lease NODE`` says whose term it is. ``->`` lines are what came out; the file must come out byte for byte.

Events: ``load JOB=DEFINITION``, ``begin [RUN]``, ``end``, ``open`` (until the term is open or cannot be), ``want
JOB@T[+ATTEMPT] JOB@T:REASON`` (one append; ``lost``, ``dropped``, ``late`` or ``full`` say what becomes of it,
``rerun=JOB`` what may be rerun, ``begun=RUN`` what others say they started, ``unsettled`` that they may still say so,
``waiting=T`` what else waits), ``again`` (nothing new is wanted), ``arrive`` (the late request reaches the store),
``clone NODE``, ``spawn JOB@T``, ``refuse JOB@T:REASON``, ``crash``, ``stop``, ``trim`` (as far as the node may),
``delete NUMBER``, ``garbage NUMBER``,
``copy NUMBER TO``, ``hide`` (the listing shows nothing), ``forget`` (no node that lives has seen the lease before).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cronstable.core import claim_records
from cronstable.core.claim_log import give_back, initial, is_open, may_spawn, step, trimmable
from cronstable.core.claim_values import (
    Alarm,
    Answer,
    Append,
    Began,
    Claim,
    ClaimState,
    Command,
    Dropped,
    Ended,
    Event,
    Found,
    Loaded,
    Logged,
    Look,
    Looked,
    Phase,
    Read,
    Ready,
    Refused,
    Skip,
    Spawn,
    Spawned,
    StandDown,
    Start,
    Wants,
)
from cronstable.core.clock import Instant
from cronstable.core.store import Appended, Fenced, Full, Span, Taken, Unknown, Won

STORIES = sorted((Path(__file__).parent / "claims").glob("*.txt"))
WINDOW = 60.0


@dataclass
class Teller:
    """The nodes of a story, its log and its lease."""

    nodes: dict[str, ClaimState] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    log: dict[int, bytes] = field(default_factory=dict)
    holders: list[str] = field(default_factory=list)
    late: list[tuple[str, int, bytes]] = field(default_factory=list)
    hidden: bool = False
    fence: int = 0
    nonces: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    tokens: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    told: list[str] = field(default_factory=list)

    def line(self, text: str) -> list[str]:
        self.told = []
        words = text.split()
        if words[0] == "wall":
            self.offsets[words[1]] = float(words[2])
        elif words[0] == "lease":
            self.holders = words[1:]
        else:
            getattr(self, f"on_{words[2]}")(float(words[0]), words[1], words[3:])
        return [f"    -> {line}" for line in self.told]

    # -- events

    def feed(self, at: float, node: str, event: Event) -> tuple[Command, ...]:
        now = Instant(at + self.offsets.get(node, 0.0), at)
        self.nodes[node], commands = step(self.state(node), event, now)
        return commands

    def state(self, node: str) -> ClaimState:
        if node not in self.nodes:
            self.nodes[node] = initial(node, f"{node}{next(self.tokens)}", WINDOW)
        return self.nodes[node]

    def on_load(self, at: float, node: str, words: list[str]) -> None:
        self.feed(at, node, Loaded(dict(word.split("=") for word in words)))

    def on_begin(self, at: float, node: str, words: list[str]) -> None:
        # As the stores do it: above all that was seen, and not behind the clock of the node that wins.
        self.fence = max(self.fence + 1, int(at + self.offsets.get(node, 0.0)))
        self.feed(at, node, Began(tuple(words), self.fence))

    def on_clone(self, at: float, node: str, words: list[str]) -> None:
        self.nodes[node] = self.nodes[words[0]]

    def on_end(self, at: float, node: str, words: list[str]) -> None:
        self.feed(at, node, Ended())

    def on_open(self, at: float, node: str, words: list[str]) -> None:
        for _ in range(400):
            self.ready(at, node, Wants(), words)
            term = self.state(node).term
            if is_open(self.state(node)) or term is None or term.phase is Phase.OVER or words:
                return
        self.told.append("still not open")

    def on_want(self, at: float, node: str, words: list[str]) -> None:
        starts, skips, options = [], [], []
        waiting, rerun, begun, settled = None, frozenset[str](), frozenset[str](), True
        for word in words:
            if word.startswith("waiting="):
                waiting = int(word.removeprefix("waiting="))
            elif word.startswith("rerun="):
                rerun = frozenset(word.removeprefix("rerun=").split(","))
            elif word.startswith("begun="):
                begun = frozenset(word.removeprefix("begun=").split(","))
            elif word == "unsettled":
                settled = False
            elif ":" in word:
                job, _, rest = word.partition("@")
                skips.append(Skip(job, int(rest.partition(":")[0]), rest.partition(":")[2]))
            elif "@" in word:
                job, _, rest = word.partition("@")
                starts.append(Start(job, int(rest.partition("+")[0]), int(rest.partition("+")[2] or 0)))
            else:
                options.append(word)
        self.ready(at, node, Wants(tuple(starts), tuple(skips), waiting, rerun, begun, settled), options)

    def on_again(self, at: float, node: str, words: list[str]) -> None:
        self.ready(at, node, Wants(), words)

    def ready(self, at: float, node: str, wants: Wants, fate: list[str]) -> None:
        nonce = f"nonce{next(self.nonces)}"
        for command in self.feed(at, node, Ready(nonce, wants)):
            self.obey(at, node, command, fate[0] if fate else "")

    def on_arrive(self, at: float, node: str, words: list[str]) -> None:
        sender, number, data = self.late.pop(0)
        self.told.append(
            f"record {number} of {sender} arrives late: {type(self.commit(sender, number, data)).__name__.lower()}"
        )

    def on_spawn(self, at: float, node: str, words: list[str]) -> None:
        for claim in self.claims(node, words):
            if node in self.holders and may_spawn(self.state(node), claim):
                self.feed(at, node, Spawned(claim.run_id))
                self.told.append(f"STARTED {say_start(claim.start)} fence={claim.fence}")
            else:
                self.told.append(f"may not start {say_start(claim.start)} now")

    def on_refuse(self, at: float, node: str, words: list[str]) -> None:
        for word in words:
            what, _, reason = word.partition(":")
            for claim in self.claims(node, [what]):
                self.feed(at, node, Dropped(claim.run_id, reason))

    def claims(self, node: str, words: list[str]) -> list[Claim]:
        pending = self.state(node).pending
        return [claim for word in words for claim in pending if f"{claim.start.job}@{claim.start.at}" == word]

    def on_crash(self, at: float, node: str, words: list[str]) -> None:
        del self.nodes[node]

    def on_stop(self, at: float, node: str, words: list[str]) -> None:
        while commands := self.feed(at, node, Ready(f"nonce{next(self.nonces)}", flush=True)):
            for command in commands:
                self.obey(at, node, command, "")
        _, ids = give_back(self.nodes.pop(node))
        self.told.append(f"released, gives back {' '.join(ids) or 'nothing'}")

    def on_delete(self, at: float, node: str, words: list[str]) -> None:
        for word in words:
            del self.log[int(word)]

    def on_trim(self, at: float, node: str, words: list[str]) -> None:
        low = trimmable(self.state(node))
        self.log = {number: data for number, data in self.log.items() if number >= low}
        self.told.append(f"records {' '.join(map(str, self.log))} are left")

    def on_garbage(self, at: float, node: str, words: list[str]) -> None:
        self.log[int(words[0])] = b"garbage"

    def on_copy(self, at: float, node: str, words: list[str]) -> None:
        self.log[int(words[1])] = self.log[int(words[0])]

    def on_forget(self, at: float, node: str, words: list[str]) -> None:
        self.fence = 0

    def on_hide(self, at: float, node: str, words: list[str]) -> None:
        self.hidden = not self.hidden

    # -- the store

    def commit(self, node: str, number: int, data: bytes, at: float | None = None) -> Appended:
        if node not in self.holders:
            return Fenced()
        if number in self.log:
            return Taken(self.log[number])
        self.log[number] = data
        return Won(at)

    def obey(self, at: float, node: str, command: Command, fate: str) -> None:
        match command:
            case Look():
                last = 0 if self.hidden else max(self.log, default=0)
                self.feed(at, node, Looked(Span(min(self.log, default=0), last, at)))
            case Read(number):
                for after in self.feed(at, node, Found(number, self.log.get(number))):
                    self.obey(at, node, after, "")
            case Append(number, data):
                answer = self.fate(at, node, number, data, fate)
                name = type(answer.appended).__name__.lower()
                self.told.append(f"append {number}: {say_record(data)}: {name}")
                for after in self.feed(at, node, answer):
                    self.obey(at, node, after, "")
            case Spawn(claims):
                self.told.append(f"spawn {' '.join(f'{say_start(c.start)} as {c.run_id[:4]}' for c in claims)}")
            case Refused(starts, reason):
                self.told.append(f"refused {' '.join(map(say_start, starts)) or 'nothing'}: {reason}")
            case Logged(skips):
                self.told.append(f"logged {' '.join(f'{s.job}@{s.at}:{s.reason}' for s in skips)}")
            case Alarm(kind, text):
                # Of one sort the driver says one a minute.
                if not any(line.startswith("ALARM") for line in self.told) or kind != "claims-damaged":
                    self.told.append(f"ALARM {text}")
            case StandDown():
                self.told.append("lets go of the lease")

    def fate(self, at: float, node: str, number: int, data: bytes, fate: str) -> Answer:
        match fate:
            case "lost":
                self.commit(node, number, data)
                return Answer(Unknown())
            case "dropped":
                return Answer(Unknown())
            case "late":
                self.late.append((node, number, data))
                return Answer(Unknown())
            case "full":
                return Answer(Full(at))
            case _:
                return Answer(self.commit(node, number, data, at))


def say_start(start: Start) -> str:
    return f"{start.job}@{start.at}{f'+{start.attempt}' if start.attempt else ''}"


def say_record(data: bytes) -> str:
    record = claim_records.decode(data)
    head = record.head
    words = [f"open fence={head.fence} floor={head.floor}" if head.opens else f"floor={head.floor}"]
    words += [f"claim {say_start(start)}" for start in record.starts]
    words += [f"skip {skip.job}@{skip.at}:{skip.reason}" for skip in record.skips]
    words += [f"started {run_id[:4]}" for run_id in record.begun]
    words += [f"gives back {run_id[:4]}" for run_id in record.returned]
    if head.opens and (head.known.since or head.known.changed):
        words.append(f"known since {head.known.since} {dict(head.known.changed) or ''}".rstrip())
    return ", ".join(words)


def tell(text: str) -> str:
    """The story told again: comments and inputs kept, outputs made anew."""
    told: list[str] = []
    teller = Teller()
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        told.append(line)
        if line and not line.startswith("#"):
            told += teller.line(line)
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_claims_go_as_the_story_says(story: Path) -> None:
    text = story.read_text()
    assert tell(text) == text


ELSEWHERE = {
    9: (
        "plugins/cronstable-k8s/tests/test_lease.py: test_a_conflict_that_still_shows_our_nonce_is_no_loss",
        "plugins/cronstable-etcd/tests/test_by_hand.py: "
        "test_a_value_put_by_hand_ends_the_term_and_is_removed_after_one_ttl",
        "plugins/cronstable-etcd/tests/test_by_hand.py: test_a_clones_renewal_is_noticed_by_its_nonce",
    ),
    12: (
        "tests/unit/core/test_sweep.py: test_rule_12_everything_in_the_window_that_nobody_claimed_is_owed_oldest_first",
        "tests/unit/core/test_sweep.py: test_rule_12_a_t_once_seen_does_not_age_out_while_it_waits",
        "tests/unit/runtime/test_claims_driver.py: test_rule_12_sixteen_are_on_their_way_to_a_process_at_a_time",
    ),
    14: (
        "tests/unit/core/test_sweep.py: test_rule_14_a_node_does_not_sweep_what_it_started_itself",
        "tests/unit/runtime/test_claims_driver.py: test_prefer_leader_starts_unclaimed_while_the_store_does_not_answer",
        "tests/unit/runtime/test_claims_driver.py: test_every_node_jobs_are_never_claimed",
        "tests/unit/runtime/test_lease_driver.py: test_a_mark_whose_answer_was_lost_is_recognised_as_ours",
    ),
    15: (
        "tests/unit/core/test_sweep.py: test_rule_15_a_job_is_paused_for_t_when_t_lies_in_the_pause",
        "tests/unit/runtime/test_claims_driver.py: "
        "test_what_is_older_than_the_window_is_claimed_as_attempt_one_and_runs_as_attempt_zero_once",
    ),
    16: (
        "tests/unit/runtime/test_claims_driver.py: "
        "test_rule_16_forbid_is_honoured_against_a_run_that_still_drains_elsewhere",
        "tests/unit/runtime/test_claims_driver.py: test_rule_16_replace_ends_the_run_elsewhere_and_takes_its_place",
        "tests/unit/runtime/test_claims_driver.py: test_rule_16_an_entry_that_stands_still_blocks_for_one_ttl",
        "tests/unit/runtime/test_claims_driver.py: test_rule_16_runs_of_a_node_that_was_killed_block_nothing",
    ),
}
"""Rules that are not about the log alone, and where the double start or the loss is shown that each of them closes."""


def test_there_is_a_story_for_each_rule() -> None:
    here = Path(__file__).parent
    # Those of the lease itself are among its stories.
    stories = [*STORIES, *(here / "lease").glob("rule-*.txt")]
    rules = {int(story.stem.split("-")[1]) for story in stories} | ELSEWHERE.keys()
    for place in itertools.chain(*ELSEWHERE.values()):
        file, _, name = place.partition(": ")
        assert f"\ndef {name}(" in (here.parent.parent / file).read_text(), place
    assert rules == set(range(1, 17))
    assert {9, 10} <= {int(story.stem.split("-")[1]) for story in stories}
