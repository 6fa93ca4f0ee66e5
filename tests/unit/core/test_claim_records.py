"""Claim records as bytes."""

from __future__ import annotations

import contextlib
import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.claim_records import Damaged, apply, decode, encode, lowest, may_be_record
from cronstable.core.claim_values import Head, Known, Ledger, MarkState, Record, Skip, Start

whole = st.integers(0, 2**40)
text = st.text(max_size=8)
heads = st.builds(
    Head,
    nonce=text,
    term=text,
    fence=whole,
    node=text,
    token=text,
    at=whole,
    floor=whole,
    low=whole,
    known=st.builds(
        Known, text, whole, st.dictionaries(text, whole, max_size=3).map(lambda d: MappingProxyType(dict(d)))
    ),
)
records = st.builds(
    Record,
    heads,
    st.lists(st.builds(Start, text, whole, whole), max_size=3).map(tuple),
    st.lists(st.builds(Skip, text, whole, text), max_size=3).map(tuple),
    st.lists(text, max_size=3).map(tuple),
    st.lists(text, max_size=3).map(tuple),
)


def head(number: int, floor: int = 0, at: int = 1000) -> Head:
    return Head(f"n{number}", "n1", 7, "node", "token", at, floor, 1, Known())


@given(records)
def test_a_record_reads_back_as_it_was_written(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_damaged(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"f": "7"},
        {"f": True},
        {"f": -1},
        {"f": 10**309},
        {"fl": 10**309},
        {"s": {}},
        {"s": [["job", 1]]},
        {"w": ["a"]},
    ],
)
def test_a_record_of_another_kind_is_damaged(change: dict[str, object]) -> None:
    document = json.loads(encode(Record(head(1)))) | change
    with pytest.raises(Damaged):
        decode(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def test_a_record_of_fifty_claims_is_small() -> None:
    record = Record(head(1), tuple(Start(f"some-job-name-{n}", 1_800_000_000) for n in range(50)))
    assert len(encode(record)) < 3000


def test_run_ids_come_from_the_nonce_and_the_place() -> None:
    one, two = Record(head(1)), Record(head(2))
    assert len({one.run_id(0), one.run_id(1), two.run_id(0)}) == 3
    assert one.run_id(0) == Record(head(1), (Start("job", 1),)).run_id(0)


def test_a_ledger_keeps_what_is_above_the_floor_and_later_attempts_for_as_long() -> None:
    ledger = apply(Ledger(), 1, Record(head(1), (Start("a", 100), Start("b", 300))))
    ledger = apply(ledger, 2, Record(head(2), (Start("a", 100, 1),)))
    assert lowest(ledger, 3, 0) == 1
    assert lowest(ledger, 3, 200) == 1
    assert lowest(ledger, 3, 300) == 2
    assert lowest(ledger, 3, 1000) == 3
    ledger = apply(ledger, 3, Record(head(3, floor=200)))
    assert (ledger.attempt("a", 100), ledger.attempt("b", 300)) == (1, 0)
    assert ledger.claimed("a", 150)
    ledger = apply(ledger, 4, Record(head(4, floor=1000)))
    assert ledger.marks == {}
    assert ledger.unstarted == {}
    assert lowest(ledger, 5, 0) == 5


def test_started_ids_settle_their_claims() -> None:
    first = Record(head(1), (Start("a", 100), Start("b", 100)))
    ledger = apply(Ledger(), 1, first)
    assert set(ledger.unstarted.values()) == {("a", 100), ("b", 100)}
    ledger = apply(ledger, 2, Record(head(2), begun=(first.run_id(1), "unknown")))
    assert set(ledger.unstarted.values()) == {("a", 100)}
    mark = ledger.mark("b", 100)
    assert mark is not None
    assert mark.state is MarkState.STARTED


def test_a_new_claim_of_the_same_attempt_takes_the_old_run_id_away() -> None:
    first, second = Record(head(1), (Start("a", 100),)), Record(head(2), (Start("a", 100),))
    ledger = apply(apply(Ledger(), 1, first), 2, second)
    assert set(ledger.unstarted) == {second.run_id(0)}


@given(records)
def test_whatever_is_a_record_may_be_one(record: Record) -> None:
    assert may_be_record(encode(record))


@pytest.mark.parametrize("data", [b"", b"x", b"[7]", b"7", b"{}", b"\xff", b"[" * 100_000])
def test_what_says_no_version_is_a_record_of_none(data: bytes) -> None:
    assert not may_be_record(data)
