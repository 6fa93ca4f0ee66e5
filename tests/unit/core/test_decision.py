"""The memory of decisions: bounded, one final record for each occurrence, found by job."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.decision import Decision, DecisionRecord, DecisionRing, Reason, Verdict, settled

RUN = Decision(Verdict.RUN, Reason.LEADER)
SKIP = Decision(Verdict.SKIP, Reason.NOT_LEADER)


def record(
    job: str, scheduled_at: int | None, *, at: float = 0.0, provisional: bool = False, decision: Decision = RUN
) -> DecisionRecord:
    return DecisionRecord("node-a", job, scheduled_at, at, decision, provisional=provisional)


def times(records: Sequence[DecisionRecord]) -> list[int | None]:
    return [r.scheduled_at for r in records]


def test_the_decisions_of_a_job_come_newest_first_and_without_those_of_others() -> None:
    ring = DecisionRing()
    for t in (10, 20, 30):
        ring.add(record("a", t))
        ring.add(record("b", t + 1))
    assert times([*ring.for_job("a")]) == [30, 20, 10]
    assert times([*ring]) == [31, 30, 21, 20, 11, 10]
    assert [*ring.for_job("nobody")] == []


def test_a_provisional_decision_is_replaced_in_its_place_and_a_final_one_stands() -> None:
    ring = DecisionRing()
    assert ring.add(record("a", 10, decision=SKIP, provisional=True))
    assert ring.add(record("a", 20))
    assert ring.add(record("a", 10))
    assert not ring.add(record("a", 10, decision=SKIP))
    assert [(r.scheduled_at, r.decision.verdict) for r in ring.for_job("a")] == [(20, Verdict.RUN), (10, Verdict.RUN)]
    assert len(ring) == 2


def test_every_manual_run_has_a_decision_of_its_own() -> None:
    ring = DecisionRing()
    assert ring.add(record("a", None, at=1.0))
    assert ring.add(record("a", None, at=2.0))
    assert [r.decided_at for r in ring.for_job("a")] == [2.0, 1.0]


def test_the_oldest_of_all_jobs_makes_room() -> None:
    ring = DecisionRing(3)
    for job, t in (("a", 1), ("b", 2), ("a", 3), ("a", 4)):
        ring.add(record(job, t))
    assert times([*ring.for_job("a")]) == [4, 3]
    assert times([*ring.for_job("b")]) == [2]
    ring.add(record("a", 5))
    assert [*ring.for_job("b")] == []
    assert len(ring) == 3


def test_taking_one_decision_of_a_job_does_not_look_at_ten_thousand() -> None:
    ring = DecisionRing(10_000)
    ring.add(record("rare", 0))
    for t in range(9_999):
        ring.add(record("often", t))
    looked = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    assert times([*ring.for_job(Counted("rare"))]) == [0]
    assert looked < 10


ADDITIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 8)), st.booleans()), max_size=60
)


@given(st.integers(1, 12), ADDITIONS)
def test_the_index_by_job_says_what_a_search_through_all_would(
    capacity: int, additions: list[tuple[str, int | None, bool]]
) -> None:
    ring = DecisionRing(capacity)
    for number, (job, t, provisional) in enumerate(additions):
        ring.add(record(job, t, at=float(number), provisional=provisional))
        assert len(ring) <= capacity
        for name in "abc":
            assert [*ring.for_job(name)] == [r for r in ring if r.job == name]


def test_a_skip_is_told_as_final_once_its_time_has_left_the_window() -> None:
    skip = record("a", 100, decision=SKIP, provisional=True)
    assert [settled(skip, wall, 60.0).provisional for wall in (100.0, 160.0, 160.5)] == [True, True, False]
    assert settled(skip, 100.25, 0.0) == record("a", 100, decision=SKIP), "nobody catches up on it"
    waits = record("a", 100, decision=Decision(Verdict.DEFER, Reason.QUEUED), provisional=True)
    boot = record("a", None, decision=SKIP, provisional=True)
    final = record("a", 100, decision=SKIP)
    assert [settled(one, 1e9, 60.0) for one in (waits, boot, final)] == [waits, boot, final]
