"""An append whose answer did not come, in a log that has no room (claims.md 3)."""

from __future__ import annotations

from cronstable.core.claim_log import STILL_LANDS, give_back, initial, step
from cronstable.core.claim_values import (
    Answer,
    Append,
    Began,
    ClaimState,
    Command,
    Event,
    Found,
    Look,
    Looked,
    Read,
    Ready,
    Refused,
    Start,
    Wants,
)
from cronstable.core.clock import Instant
from cronstable.core.store import Full, Span, Taken, Unknown, Won

NOON = 1_800_000_000.0
DUE = Wants(starts=(Start("job", int(NOON) + 60, 0, late=False),))


class Log:
    """One process that leads, and the clock that it is asked by."""

    def __init__(self) -> None:
        self.state: ClaimState = initial("a", "token", 3600.0)
        self.now = 0.0
        self.nonces = (f"{number:016x}" for number in range(1, 100))
        self.feed(Began(()))
        opening = self.ask()
        self.answer(Won(NOON))
        assert opening.number == 1
        self.now = 60.0  # past what a log that begins leaves alone

    def feed(self, event: Event) -> tuple[Command, ...]:
        self.state, commands = step(self.state, event, Instant(NOON + self.now, self.now))
        return commands

    def ask(self, wants: Wants = Wants()) -> Append:  # noqa: B008 - a value
        """What it appends next."""
        for _ in range(10):
            for command in self.feed(Ready(next(self.nonces), wants)):
                match command:
                    case Append():
                        return command
                    case Look():
                        self.feed(Looked(Span(0, 0)))
                    case Read(number):
                        self.feed(Found(number, None))
                    case _:
                        raise AssertionError(command)
        raise AssertionError("nothing is appended")

    def answer(self, appended: Won | Taken | Full | Unknown) -> tuple[Command, ...]:
        return self.feed(Answer(appended))


def test_a_first_answer_that_there_is_no_room_is_one() -> None:
    log = Log()
    log.ask(DUE)
    assert any(isinstance(command, Refused) for command in log.answer(Full()))
    assert log.state.flight is None


def test_no_room_for_an_append_that_is_sent_again_says_nothing_about_the_one_before() -> None:
    log = Log()
    first = log.ask(DUE)
    # It is asked for again without an answer: whoever waited for that was cancelled.
    assert log.ask(DUE) == first
    assert not any(isinstance(command, Refused) for command in log.answer(Full()))
    assert log.ask(DUE) == first
    log.answer(Taken(first.data))
    assert [claim.start for claim in log.state.pending] == list(DUE.starts)


def test_each_answer_that_does_not_come_is_a_new_doubt() -> None:
    log = Log()
    first = log.ask(DUE)
    for second in range(60, 100, 5):
        log.now = float(second)
        log.answer(Unknown())
        assert log.ask(DUE) == first
    log.now += STILL_LANDS - 1
    log.answer(Full())
    assert log.ask(DUE) == first
    log.now += 2
    assert any(isinstance(command, Refused) for command in log.answer(Full()))
    assert log.state.flight is None


def test_who_stops_gives_back_what_may_stand_there() -> None:
    log = Log()
    log.ask(DUE)
    flight = log.state.flight
    assert flight is not None
    _, ids = give_back(log.state)
    assert ids == (flight.record.run_id(0),)
