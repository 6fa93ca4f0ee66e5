"""The claim log's annotation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from cronstable_k8s import log
from cronstable_k8s.log import Log
from hypothesis import given
from hypothesis import strategies as st


@given(first=st.integers(1, 10**9), records=st.lists(st.binary(max_size=300), max_size=20))
def test_what_is_written_is_read_again(first: int, records: list[bytes]) -> None:
    written = Log(first, tuple(records))
    assert log.decode(log.encode(written)) == (written, "")


def test_an_absent_annotation_is_a_log_that_never_began() -> None:
    assert log.decode(None) == (Log(), "")
    assert (Log().last, Log().read(1), Log().appended(b"x")) == (0, None, Log(1, (b"x",)))


def test_trimmed_numbers_stay_taken() -> None:
    left = Log(1, (b"a", b"b", b"c")).without(3)
    assert (left.first, left.last, left.read(2), left.read(3)) == (3, 3, None, b"c")
    empty = left.without(99)
    assert (empty.first, empty.last, empty.appended(b"d").read(4)) == (4, 3, b"d")


@pytest.mark.parametrize("text", ["", "1", "1 0 0 x", "2 1 0 x", "1 x 1 eJw=", "one two three four", "1 1 -1 x"])
def test_what_is_no_log_at_all_is_none(text: str) -> None:
    found, damage = log.decode(text)
    assert found == Log()
    assert damage


SPOIL: list[Callable[[str], str]] = [
    lambda packed: packed[:-8],
    lambda packed: "!" + packed,
    lambda packed: packed[:9] + "AAAA" + packed[13:],
    lambda packed: "",
]


@pytest.mark.parametrize("spoil", SPOIL)
def test_damaged_records_keep_their_numbers(spoil: Callable[[str], str]) -> None:
    head, _, packed = log.encode(Log(7, (b"record seven", b"record eight"))).rpartition(" ")
    found, damage = log.decode(f"{head} {spoil(packed)}")
    assert (found.first, found.last, found.read(7)) == (9, 8, None)
    assert damage


def test_a_count_that_does_not_fit_is_damage() -> None:
    found, damage = log.decode(log.encode(Log(1, (b"a", b"b"))).replace("1 1 2", "1 1 3"))
    assert (found, "holds 2" in damage) == (Log(4), True)


def test_a_small_text_that_unpacks_to_gigabytes_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    text = log.encode(Log(1, (b"x" * 100_000,)))
    monkeypatch.setattr(log, "LARGEST_LOG", 50_000)
    assert log.decode(text)[1] == "the records of the claim log are damaged: it is cut off or too large"


def test_a_window_of_a_thousand_jobs_a_minute_fits() -> None:
    """Claims 8: at most 50 jobs a record, a window of twice 99 s, and what waits for the next trim."""
    records = []
    for minute in range(4):
        for chunk in range(20):
            nonce = hashlib.sha256(f"{minute}.{chunk}".encode()).hexdigest()[:16]
            starts = ",".join(
                f'["nightly-report-{chunk * 50 + i:04d}",{1_800_000_000 + 60 * minute},0]' for i in range(50)
            )
            begun = ",".join(f'"{hashlib.sha256(f"{nonce}{i}".encode()).hexdigest()[:16]}"' for i in range(50))
            records.append(f'{{"b":[{begun}],"n":"{nonce}","s":[{starts}],"v":1}}'.encode())
    assert len(log.encode(Log(1, tuple(records)))) < 100 * 1024
