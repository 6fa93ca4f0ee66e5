"""Run ids that a release gives back, and the term that gets them."""

from __future__ import annotations

import pytest

from cronstable.core.handover import Inheritance
from cronstable.core.lease_values import Acquire, Answered, Event, Failed, Observe, Renew, Request
from cronstable.core.store import Grant, Held, Holder, LeaseRecord, Seen, Unreadable, Vacant

ME, OTHER = Holder("a", "aaa"), Holder("b", "bbb")
ACQUIRE = Acquire(ME, 15.0, "n1", None, 10.0)
GRANT = Grant(ME, 7, "n1", 15.0)
LOOK = Observe(10.0)
GIVEN = ("run-1", "run-2")
RELEASED = (LOOK, Answered(Vacant(6, GIVEN)))


def after(*steps: tuple[Request, Event]) -> Inheritance:
    inheritance = Inheritance()
    for request, event in steps:
        inheritance = inheritance.note(request, event)
    return inheritance


def got(inheritance: Inheritance) -> tuple[str, ...]:
    term = inheritance.term(GRANT)
    assert term is not None
    return term.returned


def test_the_term_that_is_won_right_after_a_release_gets_what_was_given_back() -> None:
    assert got(after(RELEASED, (ACQUIRE, Answered(Held(GRANT))))) == GIVEN


@pytest.mark.parametrize("between", [(), ((LOOK, Failed("no answer")),), ((LOOK, Answered(Unreadable("torn"))),)])
def test_an_acquisition_whose_answer_was_lost_gets_it_when_it_is_adopted(between: tuple[tuple[Request, Event]]) -> None:
    adopted = (LOOK, Answered(Seen(LeaseRecord(ME, 7, "n1", 15.0))))
    renewed = (Renew(GRANT, "n2", 20.0), Answered(Held(GRANT)))
    assert got(after(RELEASED, (ACQUIRE, Failed("no answer")), *between, adopted, renewed)) == GIVEN


def test_what_another_node_won_meanwhile_is_not_ours() -> None:
    others = (LOOK, Answered(Seen(LeaseRecord(OTHER, 7, "x1", 15.0))))
    later = (ACQUIRE, Answered(Held(GRANT)))
    assert got(after(RELEASED, (ACQUIRE, Failed("no answer")), others, later)) == ()
