"""Of a store that can watch, a waiting node asks in a way that lets it be answered."""

from __future__ import annotations

from dataclasses import replace

from cronstable.core.clock import Instant
from cronstable.core.lease import step
from cronstable.core.lease_values import Answered, Failed, LeaseState, LeaseTiming, Observe, Ready, Wait, initial
from cronstable.core.store import Holder, LeaseRecord, Seen

TIMING = replace(LeaseTiming.for_ttl(15), watch=5.0)
READY = Ready("nonce", "token")


def ask(state: LeaseState, boot: float) -> tuple[LeaseState, Observe]:
    """The observation that is due, however long the machine wants to wait for it first."""
    while True:
        state, commands = step(state, READY, Instant(boot, boot))
        command = commands[-1]
        if isinstance(command, Observe):
            return state, command
        assert isinstance(command, Wait)
        boot = command.until


def watching() -> LeaseState:
    state, _ = ask(initial(Holder("b", "bb"), TIMING), 0.0)
    record = LeaseRecord(Holder("a", "aa"), 1, "n1", 15.0, mark="m1")
    return step(state, Answered(Seen(record)), Instant(0.1, 0.1))[0]


def test_a_watch_is_cut_when_the_record_may_be_taken_over() -> None:
    _, observe = ask(watching(), 14.0)
    assert observe.cut == 15.1


def test_a_store_that_failed_is_asked_until_it_answers_also_when_the_record_may_be_taken_over() -> None:
    state, _ = ask(watching(), 14.0)
    state, _ = step(state, Failed("refused"), Instant(14.5, 14.5))
    for boot in (15.0, 16.0, 20.0):
        asked, observe = ask(state, boot)
        assert observe.cut is None, "it would be ended before any answer can come, and asked again for ever"
        state, _ = step(asked, Failed("refused"), Instant(boot + 0.2, boot + 0.2))
