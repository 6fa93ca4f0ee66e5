"""Why a job ran or did not, as peers tell it: built within caps, and no data as a whole when anything in it is odd."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from cronstable_gossip.decisions import MOST_DECISIONS, askable, build, parse
from cronstable_gossip.payload import MOST_BYTES, BadReport
from hypothesis import example, given
from hypothesis import strategies as st

from cronstable.api import Decision, DecisionRecord, Json, Reason, Verdict

NOON = 1_800_000_000
GOOD: dict[str, Any] = {
    "scheduled_at": NOON,
    "decided_at": NOON + 0.25,
    "verdict": "skip",
    "reason": "not-leader",
    "evidence": {"leader": "a", "fence": 7, "quorate": True, "left": 0.5, "why": None, "note": ""},
    "run_id": None,
    "provisional": True,
}


def record(t: int | None = NOON, /, **evidence: Any) -> DecisionRecord:
    decision = Decision(Verdict.SKIP, Reason.NOT_LEADER, MappingProxyType(evidence))
    return DecisionRecord("b", "backup", t, (t or NOON) + 0.25, decision, None, provisional=True)


def answer(*rows: Any, node: Any = "b") -> bytes:
    return json.dumps({"node_name": node, "decisions": [*rows]}).encode()


def test_what_is_built_is_parsed_to_rows_of_the_api() -> None:
    body = build("b", [record(leader="a", fence=7, quorate=True, left=0.5, why=None, note=""), record(None)])
    first, second = parse(body, "b", 2)
    assert first == {
        **GOOD,
        "scheduled_at": "2027-01-15T08:00:00+00:00",
        "decided_at": "2027-01-15T08:00:00.250000+00:00",
    }
    assert second["scheduled_at"] is None
    assert (parse(answer(GOOD), "b", 1)) == (first,)


def test_as_many_of_the_newest_are_told_as_there_is_room_for() -> None:
    many = [record(NOON - i) for i in range(MOST_DECISIONS + 10)]
    assert len(parse(build("b", many), "b", MOST_DECISIONS)) == MOST_DECISIONS
    long = [record(NOON - i, **{f"fact{n}": "é" * 256 for n in range(32)}) for i in range(100)]
    body = build("b" * 256, long)
    rows = parse(body, "b" * 256, 100)
    assert len(body) <= MOST_BYTES
    assert len(body) > MOST_BYTES - 20_000
    assert rows[0]["scheduled_at"] == "2027-01-15T08:00:00+00:00"


FACTS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=600)


@given(st.dictionaries(st.text(min_size=1, max_size=80), FACTS, max_size=40))
@example(
    {"a": "\ud800", "b": "\x1b[31m", "c": "x\ny", "d": float("inf"), "e": 10**400, "f": "é" * 512, "g": "  ", "  ": 1}
)
def test_whatever_a_node_remembers_it_tells_so_that_others_take_it(evidence: dict[str, Any]) -> None:
    (row,) = parse(build("b", [record(**evidence)]), "b", 1)
    assert sane(row)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "no JSON"),
        (b'{"node_name": "b"}', "`decisions`"),
        (answer(), ""),
        (answer(node="a"), "it answers as a, and is known as b"),
        (answer(node="\x1b[2J"), "`node_name`"),
        (answer(*[GOOD] * 11), "more than the 10"),
        (answer(GOOD, 7), "no object"),
        (answer({**GOOD, "verdict": "maybe"}), "no verdict"),
        (answer({**GOOD, "verdict": []}), "no verdict"),
        (answer({**GOOD, "reason": "x" * 65}), "no reason"),
        (answer({**GOOD, "reason": "a\x1b[1mb"}), "no reason"),
        (answer({**GOOD, "reason": None}), "no reason"),
        (answer({**GOOD, "run_id": 7}), "run id"),
        (answer({**GOOD, "provisional": "yes"}), "`provisional`"),
        (answer({**GOOD, "decided_at": None}), "odd time"),
        (answer({**GOOD, "decided_at": "2027-01-15T08:00:00Z"}), "odd time"),
        (answer({**GOOD, "scheduled_at": True}), "odd time"),
        (answer({**GOOD, "scheduled_at": 10**15}), "odd time"),
        (answer({**GOOD, "scheduled_at": -1}), "odd time"),
        (answer({**GOOD, "scheduled_at": 10**400}), "odd time"),
        (answer({**GOOD, "evidence": []}), "evidence"),
        (answer({**GOOD, "evidence": {str(n): n for n in range(33)}}), "evidence"),
        (answer({**GOOD, "evidence": {"a": {}}}), "odd fact"),
        (answer({**GOOD, "evidence": {"a": 10**40}}), "odd fact"),
        (answer({**GOOD, "evidence": {"a": "x" * 513}}), "odd fact"),
        (answer({**GOOD, "evidence": {"a": "\u202e"}}), "odd fact"),
        (answer({**GOOD, "evidence": {"\n": 1}}), "odd fact"),
        (answer({**GOOD, "evidence": {"a": "N"}}).replace(b'"N"', b"NaN"), "no JSON"),
        (answer(GOOD) + b" " * MOST_BYTES, "longer than"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_an_answer_with_anything_odd_is_no_data_and_says_why(body: bytes, why: str) -> None:
    if not why:
        assert parse(body, "b", 10) == ()
        return
    with pytest.raises(BadReport, match=why):
        parse(body, "b", 10)


def test_what_a_newer_node_adds_is_left_out() -> None:
    (row,) = parse(answer({**GOOD, "reason": "moon-phase", "node": "a", "mood": [1]}), "b", 1)
    assert row["reason"] == "moon-phase"
    assert not {"node", "mood"} & set(row), "a peer does not say whose decision it is"


@pytest.mark.parametrize(
    ("job", "can"), [("backup", True), ("a/b 50%\n", True), ("", False), ("é" * 257, False), ("\ud800", False)]
)
def test_a_job_can_be_asked_about_when_its_name_can_be_sent(job: str, can: bool) -> None:
    assert askable(job) is can


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def sane(row: Any) -> bool:
    texts = [row["reason"], row["run_id"] or "x", *row["evidence"], row["decided_at"], row["scheduled_at"] or "x"]
    texts += [fact for fact in row["evidence"].values() if isinstance(fact, str)]
    flat = all(not isinstance(fact, list | dict) for fact in row["evidence"].values())
    known = row["verdict"] in ("run", "skip", "defer") and isinstance(row["provisional"], bool)
    return flat and known and all(text.isprintable() and len(text.encode()) <= 512 for text in texts)


@given(st.binary(max_size=300))
@example(b"\x1f\x8b")
def test_any_bytes_are_decisions_or_refused(data: bytes) -> None:
    try:
        rows = parse(data, "b", 10)
    except BadReport:
        return
    assert all(sane(row) for row in rows)


@given(st.lists(st.dictionaries(st.sampled_from([*GOOD]), JSON), max_size=3), st.sampled_from(["b", "a", None, 1]))
def test_any_values_are_sane_decisions_or_refused(changes: list[dict[str, Json]], node: Any) -> None:
    body = answer(*({**GOOD, **change} for change in changes), node=node)
    try:
        rows = parse(body, "b", 10)
    except BadReport:
        return
    assert node == "b"
    assert len(rows) == len(changes)
    assert all(sane(row) for row in rows)
