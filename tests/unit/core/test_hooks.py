"""Which hooks follow from the end of a run."""

from __future__ import annotations

import pytest

from cronstable.core.hooks import hooks_of
from cronstable.core.runs import Outcome


@pytest.mark.parametrize(
    ("outcome", "will_retry", "stopping", "hooks"),
    [
        (Outcome.SUCCESS, False, False, ("onSuccess",)),
        (Outcome.SUCCESS, False, True, ("onSuccess",)),
        (Outcome.FAILURE, True, False, ("onFailure",)),
        (Outcome.FAILURE, False, False, ("onFailure", "onPermanentFailure")),
        (Outcome.FAILURE, False, True, ()),
        (Outcome.UNKNOWN, False, False, ("onFailure", "onPermanentFailure")),
        (Outcome.CANCELLED, False, False, ()),
        (Outcome.SKIPPED, False, False, ()),
    ],
)
def test_the_hooks_of_an_outcome(outcome: Outcome, will_retry: bool, stopping: bool, hooks: tuple[str, ...]) -> None:
    assert hooks_of(outcome, will_retry=will_retry, stopping=stopping) == hooks


def test_nothing_but_a_failure_depends_on_retries() -> None:
    for outcome in set(Outcome) - {Outcome.FAILURE, Outcome.UNKNOWN}:
        assert hooks_of(outcome, will_retry=True) == hooks_of(outcome, will_retry=False)
