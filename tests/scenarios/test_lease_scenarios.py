"""The lease state machine, told as stories: ``lease/*.txt`` are inputs with the outputs the machine must give.

Input lines start with a boot instant in seconds; ``->`` lines are the commands that came out, ``==`` what the node then
believes. ``wall +3600`` steps the wall clock (which otherwise reads the boot instant). The file must come out byte for
byte when its input lines are fed to the machine again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cronstable.core.clock import Instant
from cronstable.core.lease import available, is_leader, is_quorate, leader_name, step
from cronstable.core.lease_values import (
    Acquire,
    Answered,
    Command,
    Cut,
    Event,
    Failed,
    Finished,
    Gained,
    LeaseState,
    LeaseTiming,
    Lost,
    Note,
    Observe,
    Quorum,
    Ready,
    Release,
    Renew,
    Resign,
    Stop,
    Tick,
    Wait,
    initial,
)
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Observation, Seen, Unreadable, Vacant

STORIES = sorted((Path(__file__).parent / "lease").glob("*.txt"))


@dataclass
class Teller:
    """Feeds input lines to one machine and writes down what happens."""

    state: LeaseState
    wall: float = 0.0
    tokens: Iterator[int] = field(default_factory=itertools.count)

    def line(self, text: str) -> list[str]:
        words = text.split()
        if words[0] == "wall":
            self.wall += float(words[1])
            return []
        boot = float(words[0])
        event = self.event(words[1], words[2:])
        self.state, commands = step(self.state, event, Instant(boot + self.wall, boot))
        return [*(f"    -> {say(command)}" for command in commands), f"    == {self.belief(boot)}"]

    def event(self, name: str, words: list[str]) -> Event:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        match name:
            case "ready":
                return Ready(words[0], f"token{next(self.tokens)}", float(options.get("jitter", 0)))
            case "fail":
                return Failed(" ".join(words))
            case "cut":
                return Cut()
            case "tick":
                return Tick()
            case "stop":
                return Stop()
            case "resign":
                return Resign(float(words[0]))
            case "done":
                return Answered(None)
            case _:
                return Answered(self.observation(name, words, options))

    def observation(self, name: str, words: list[str], options: dict[str, str]) -> Observation:
        ttl = float(options.get("ttl", 15))
        fence = int(options["fence"]) if "fence" in options else None
        expires = float(options["expires"]) if "expires" in options else None
        match name:
            case "vacant":
                return Vacant(fence)
            case "unreadable":
                return Unreadable("garbage")
            case "seen":
                who = self.state.me if words[0] == "me" else Holder(words[0], f"token-of-{words[0]}")
                nonce = options["nonce"]
                return Seen(LeaseRecord(who, fence or 0, nonce, ttl, expires, mark=nonce))
            case "held":
                flight = self.state.in_flight
                assert flight is not None, "held needs a request in flight"
                assert isinstance(flight.request, Acquire | Renew), "held answers acquire and renew"
                known = flight.request.grant.fence if isinstance(flight.request, Renew) and fence is None else fence
                return Held(Grant(self.state.me, known or 0, options.get("nonce", flight.request.nonce), ttl))
            case _:
                raise ValueError(f"unknown event {name}")

    def belief(self, boot: float) -> str:
        state = self.state
        words = ["LEADER" if is_leader(state, boot) else "holds the term" if state.grant is not None else "not leader"]
        words.append("quorate" if is_quorate(state, boot) else "cut off")
        words.append("available" if available(state, boot) else "unavailable")
        words.append(f"leader {leader_name(state, boot)}")
        return ", ".join(words)


def say(command: Command) -> str:
    match command:
        case Acquire(me, ttl, nonce, over, by):
            return f"acquire {nonce} as {me} ttl={ttl:g}{f' over {over.record.nonce}' if over else ''} by {by:.2f}"
        case Renew(grant, nonce, by):
            return f"renew {nonce} fence={grant.fence} tried={','.join(grant.tried) or '-'} by {by:.2f}"
        case Observe(by, cut):
            return f"observe by {by:.2f}{f' cut {cut:.2f}' if cut is not None else ''}"
        case Release(grant, by):
            return f"release fence={grant.fence} by {by:.2f}"
        case Wait(until):
            return f"wait until {until:.2f}"
        case Finished():
            return "finished"
        case Gained(fence, deadline):
            return f"GAINED fence={fence} until {deadline:.2f}"
        case Lost(reason):
            return f"LOST: {reason}"
        case Quorum(quorate):
            return "contact" if quorate else "NO CONTACT"
        case Note(_, level, text):
            return f"{level}: {text}"


def tell(text: str) -> str:
    """The story told again: comments and inputs kept, outputs made anew."""
    told: list[str] = []
    settings: dict[str, str] = {}
    teller: Teller | None = None
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        told.append(line)
        if not line or line.startswith("#"):
            continue
        if line.startswith("node "):
            settings = dict(word.split("=") for word in line.split()[2:])
            timing = LeaseTiming.for_ttl(float(settings["ttl"]))
            teller = Teller(initial(Holder(line.split()[1], "first-token"), timing))
            continue
        assert teller is not None, "a story begins with: node NAME ttl=SECONDS"
        told += teller.line(line)
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_machine_tells_the_story_as_it_is_written(story: Path) -> None:
    text = story.read_text()
    assert tell(text) == text


def test_there_are_stories() -> None:
    assert len(STORIES) >= 10
