"""Entries of unfinished runs (claims.md 16)."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.unfinished import Entry, Watch, blocking, cancelled, decode, encode, observe, started

NOTHING: Watch = MappingProxyType({})
TTL = 5.0


def entry(token: str = "a", nonce: str = "1", runs: dict[str, str] | None = None, *cancel: str) -> bytes:
    return encode(Entry(token, nonce, MappingProxyType(runs or {}), cancel))


def test_a_run_elsewhere_blocks_its_job() -> None:
    watch = observe(NOTHING, [entry(runs={"r1": "job", "r2": "job"}), entry("b", runs={"r3": "other"})], "me", 10)
    assert blocking(watch, TTL, 12) == {"job": ("r1", "r2"), "other": ("r3",)}


def test_an_entry_that_stood_still_for_one_ttl_blocks_nobody() -> None:
    watch = observe(NOTHING, [entry(runs={"r1": "job"})], "me", 10)
    watch = observe(watch, [entry(runs={"r1": "job"})], "me", 14)
    assert blocking(watch, TTL, 14.9) == {"job": ("r1",)}
    assert blocking(watch, TTL, 15) == {}


def test_a_refreshed_entry_goes_on_blocking() -> None:
    watch = observe(NOTHING, [entry(runs={"r1": "job"})], "me", 10)
    watch = observe(watch, [entry(nonce="2", runs={"r1": "job"})], "me", 14)
    assert blocking(watch, TTL, 18) == {"job": ("r1",)}


def test_an_entry_that_is_gone_blocks_nobody() -> None:
    watch = observe(NOTHING, [entry(runs={"r1": "job"})], "me", 10)
    assert blocking(observe(watch, [], "me", 11), TTL, 11) == {}


def test_ones_own_entry_does_not_count() -> None:
    assert blocking(observe(NOTHING, [entry("me", runs={"r1": "job"})], "me", 10), TTL, 10) == {}


def test_a_successor_says_which_runs_it_wants_ended() -> None:
    assert cancelled(observe(NOTHING, [entry("a", "1", {}, "r1", "r2")], "me", 10)) == {"r1", "r2"}


def test_what_a_process_started_and_could_not_say_in_the_log_counts_as_started() -> None:
    said = encode(Entry("a", "1", MappingProxyType({"r1": "job"}), (), ("r2",)))
    assert started(observe(NOTHING, [said, entry("me", runs={"r3": "job"})], "me", 10)) == {"r1", "r2"}


@given(st.binary(max_size=40))
def test_bytes_that_are_no_entry_block_nobody(data: bytes) -> None:
    assert blocking(observe(NOTHING, [data], "me", 10), TTL, 10) == {}


def test_an_entry_reads_back_as_it_was_written() -> None:
    written = Entry("a", "n", MappingProxyType({"r1": "jöb"}), ("r2",), ("r3",))
    assert decode(encode(written)) == written
