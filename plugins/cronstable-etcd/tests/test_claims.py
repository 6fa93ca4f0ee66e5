"""The claim log on bad days: lost answers, operators, trims, a full store. Over the model, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cronstable.api import Fenced, HttpResponse, StoreUnavailable, Taken, Won
from cronstable.testing.clock import run_virtual

LEADER = b"cronstable/leader"
LOW = LEADER + b"/log-low"
TTL = 15.0
RECORD = b'{"n":"mine"}'
OTHER = b'{"n":"theirs"}'

Answering = Callable[..., HttpResponse]
Story = Callable[[Any, Any], Awaitable[None]]


@pytest.fixture
def told(model: Any, node: Any) -> Callable[[Story], None]:
    """Run a story about a model and a node ``a`` of it, in virtual time."""

    def tell(story: Story) -> None:
        async def run() -> None:
            etcd = model()
            await story(etcd, node(etcd, "a"))

        run_virtual(run)

    return tell


def numbers(etcd: Any) -> list[bytes]:
    return sorted(key.removeprefix(LEADER + b"/log/") for key in etcd.keys if key.startswith(LEADER + b"/log/"))


def test_an_append_is_one_request_and_leaves_one_key_on_no_lease(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        before = len(a.line.calls)
        assert isinstance(await a.store.append(grant, 1, RECORD), Won)
        assert len(a.line.calls) == before + 1
        assert etcd.keys[LEADER + b"/log/000000000001"].lease == 0

    told(story)


def test_the_lost_answer_of_an_append_is_unclear_and_its_bytes_are_known_again(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()

        def lose(url: str, path: str, body: Any) -> None:
            raise TimeoutError

        a.line.after = lose
        with pytest.raises(StoreUnavailable) as caught:
            await a.store.append(grant, 1, RECORD)
        assert caught.value.ambiguous
        a.line.after = lambda url, path, body: None
        assert await a.store.append(grant, 1, RECORD) == Taken(RECORD)
        assert numbers(etcd) == [b"000000000001"]

    told(story)


@pytest.mark.parametrize("hand", ["put", "delete", "revoke"])
def test_what_an_operator_does_to_the_leader_key_ends_the_claims_at_once(told: Any, hand: str) -> None:
    """A put keeps the create revision and detaches the lease: comparing one of them is not enough (claims.md 1)."""

    async def story(etcd: Any, a: Any) -> None:
        grant = await a.renewed(await a.win())
        assert isinstance(await a.store.append(grant, 1, RECORD), Won)
        if hand == "put":
            etcd.put_by_hand(LEADER, b"a")
        elif hand == "delete":
            etcd.delete_by_hand(LEADER)
        else:
            etcd.revoke(a.store.lease_id)
        assert await a.store.append(grant, 2, RECORD) == Fenced()
        assert numbers(etcd) == [b"000000000001"]

    told(story)


def test_a_grant_that_the_host_rebuilt_appends_while_its_term_lasts(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        rebuilt = replace(grant, data=None)
        assert isinstance(await a.store.append(rebuilt, 1, RECORD), Won)
        await a.store.release(grant, ())
        assert await a.store.append(rebuilt, 2, RECORD) == Fenced()
        await node(etcd, "b").win()
        assert await a.store.append(rebuilt, 2, RECORD) == Fenced()

    told(story)


def test_an_etcd_out_of_space_is_no_full_log_since_it_may_have_written(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        etcd.full = True
        with pytest.raises(StoreUnavailable, match="database space exceeded") as caught:
            await a.store.append(grant, 1, RECORD)
        assert caught.value.ambiguous
        etcd.full = False
        assert isinstance(await a.store.append(grant, 1, RECORD), Won)

    told(story)


def test_the_number_of_keys_stays_bounded_and_a_trim_is_bounded_too(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 2301):
            await a.store.append(grant, number, b"%d" % number)
        await a.store.trim(grant, 2250)
        assert len(numbers(etcd)) == 1300
        for _ in range(3):
            await a.store.trim(grant, 2250)
        assert (len(numbers(etcd)), etcd.keys[LOW].value) == (51, b"2250")
        span = await a.store.span()
        assert (span.first, span.last) == (2250, 2300)
        assert await a.store.append(grant, 2249, OTHER) == Taken(b"")

    told(story)


def test_a_successor_that_never_saw_the_low_mark_respects_it(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 10):
            await a.store.append(grant, number, b"%d" % number)
        await a.store.trim(grant, 6)
        await a.store.release(grant, ())
        b = node(etcd, "b")
        second = await b.win()
        assert await b.store.append(second, 3, OTHER) == Taken(b"")
        assert isinstance(await b.store.append(second, 10, OTHER), Won)
        await b.store.trim(second, 4)
        assert etcd.keys[LOW].value == b"6"
        await b.store.trim(second, 8)
        assert [number[-2:] for number in numbers(etcd)] == [b"08", b"09", b"10"]

    told(story)


def test_a_trim_whose_answer_was_lost_costs_the_next_claim_one_more_request(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 10):
            await a.store.append(grant, number, RECORD)

        def lose(url: str, path: str, body: Any) -> None:
            raise TimeoutError

        a.line.after = lose
        with pytest.raises(StoreUnavailable):
            await a.store.trim(grant, 6)
        a.line.after = lambda url, path, body: None
        before = len(a.line.calls)
        assert isinstance(await a.store.append(grant, 10, RECORD), Won)
        assert len(a.line.calls) == before + 2
        assert await a.store.append(grant, 3, OTHER) == Taken(b"")

    told(story)


def test_a_log_of_which_only_the_low_mark_is_left_does_not_begin_anew(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 10):
            await a.store.append(grant, number, RECORD)
        await a.store.trim(grant, 6)
        for name in numbers(etcd):
            etcd.delete_by_hand(LEADER + b"/log/" + name)
        span = await a.store.span()
        assert (span.first, span.last) == (6, 5)
        assert await a.store.append(grant, 1, OTHER) == Taken(b"")

    told(story)


def test_a_low_mark_ahead_of_the_keys_that_were_copied_back_is_where_the_log_goes_on(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        await a.store.append(grant, 1, RECORD)
        etcd.put_by_hand(LOW, b"500")
        span = await a.store.span()
        assert (span.first, span.last) == (500, 499)
        assert await a.store.append(grant, 499, OTHER) == Taken(b"")
        assert isinstance(await a.store.append(grant, 500, OTHER), Won)

    told(story)


def test_a_log_that_an_operator_deleted_with_its_low_mark_begins_anew(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 10):
            await a.store.append(grant, number, RECORD)
        await a.store.trim(grant, 6)
        for key in [key for key in etcd.keys if key.startswith(LEADER + b"/log")]:
            etcd.delete_by_hand(key)
        span = await a.store.span()
        assert (span.first, span.last) == (0, 0)
        assert isinstance(await a.store.append(grant, 1, OTHER), Won)

    told(story)


@pytest.mark.parametrize("value", [b"", b"garbage", b"-3"])
def test_a_damaged_low_mark_stops_the_claims_and_is_named(told: Any, value: bytes) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        etcd.put_by_hand(LOW, value)
        with pytest.raises(StoreUnavailable, match="cronstable/leader/log-low is damaged"):
            await a.store.append(grant, 1, RECORD)
        assert numbers(etcd) == []

    told(story)


STRAYS = (b"0", b"0000000000011", b"1000", b"99999999999999")
"""Before, among and after the records."""


def test_keys_that_can_be_no_records_are_put_aside_and_named(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in (1, 2):
            await a.store.append(grant, number, RECORD)
        for name, value in zip(STRAYS, (b"x", b"", b"[7]", b"\xff"), strict=True):
            etcd.put_by_hand(LEADER + b"/log/" + name, value)
        for _ in range(2):
            span = await a.store.span()
            assert (span.first, span.last) == (1, 2)
            assert [await a.store.read(number) for number in (1, 2, 3)] == [RECORD, RECORD, None]
        assert isinstance(await a.store.append(grant, 3, OTHER), Won)
        for name in STRAYS:
            assert len(a.host.logged(f"/log/{name.decode()} is no record of the claim log")) == 1

    told(story)


@pytest.mark.parametrize("name", STRAYS)
def test_a_key_that_may_be_a_record_of_a_newer_version_stops_the_claims_and_is_named(told: Any, name: bytes) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in (1, 2):
            await a.store.append(grant, number, RECORD)
        etcd.put_by_hand(LEADER + b"/log/" + name, b'{"v":7,"claims":[]}')

        async def open_term() -> None:
            await a.store.span()
            await a.store.read(1)

        with pytest.raises(StoreUnavailable, match=f"log/{name.decode()} may be a record of the claim log"):
            await open_term()

    told(story)


def test_a_log_among_too_many_foreign_keys_stops_the_claims(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.win()
        for number in range(30):
            etcd.put_by_hand(LEADER + b"/log/7%d" % number, b"x")
        with pytest.raises(StoreUnavailable, match="too many keys below the etcd key cronstable/leader/log/"):
            await a.store.span()

    told(story)


def test_a_key_that_begins_with_no_digit_is_left_alone(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        await a.store.append(grant, 1, RECORD)
        etcd.put_by_hand(LEADER + b"/log/notes", b"x")
        span = await a.store.span()
        assert (span.first, span.last) == (1, 1)
        await a.store.trim(grant, 2)
        assert numbers(etcd) == [b"notes"]

    told(story)


def test_a_new_term_reads_a_long_log_in_a_few_requests(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 301):
            await a.store.append(grant, number, b"%d" % number)
        b = node(etcd, "b")
        await b.store.span()
        before = len(b.line.calls)
        assert [await b.store.read(number) for number in range(1, 301)] == [b"%d" % n for n in range(1, 301)]
        assert len(b.line.calls) - before <= 5
        # What is not there yet is asked for each time.
        assert await b.store.read(301) is None
        await a.store.append(grant, 301, RECORD)
        assert await b.store.read(301) == RECORD

    told(story)


def test_the_stores_clock_is_what_the_member_says_and_may_be_missing(told: Any, answering: Answering) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        first = (await a.store.span()).at
        await a.host.clock.sleep(5)
        won = await a.store.append(grant, 1, RECORD)
        assert won.at - first == pytest.approx(5, abs=1)
        real = a.line._serve
        for date in ({}, {"date": "yesterday"}, {"date": "Mon, 99 Nov 2026 22:36:23 GMT"}):
            a.line._serve = lambda *call, date=date: replace(real(*call), headers=date)
            assert (await a.store.span()).at is None

    told(story)


def test_an_entry_is_on_a_lease_of_its_own_that_lives_while_it_is_refreshed(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        await a.store.put_entry(b"one")
        await a.store.release(grant, ())
        b = node(etcd, "b")
        for number in range(20):
            await a.host.clock.sleep(TTL / 3)
            await a.store.put_entry(b"%d" % number)
            assert list(await b.store.entries()) == [b"%d" % number]
        await a.host.clock.sleep(TTL)
        assert list(await b.store.entries()) == [b"19"]
        await a.host.clock.sleep(TTL + 1)
        assert list(await b.store.entries()) == []

    told(story)


def test_an_entry_whose_lease_is_gone_gets_another(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.store.put_entry(b"one")
        (lease,) = etcd.leases
        etcd.revoke(lease)
        await a.store.put_entry(b"two")
        assert list(await a.store.entries()) == [b"two"]
        await a.store.put_entry(b"")
        assert list(await a.store.entries()) == []
        assert etcd.leases == {}

    told(story)


def test_of_two_clones_that_claim_one_number_exactly_one_wins_and_the_other_sees_that_it_did_not(
    told: Any, node: Any
) -> None:
    """They share token, lease and term: what tells them apart is what they wrote (claims.md 4)."""

    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        clone = node(etcd, "a")
        assert isinstance(await a.store.append(grant, 1, RECORD), Won)
        assert await clone.store.append(grant, 1, OTHER) == Taken(RECORD)
        assert await clone.store.append(replace(grant, data=None), 1, OTHER) == Taken(RECORD)

    told(story)


def test_an_etcd_restored_from_an_older_snapshot_shows_a_hole_and_lowers_no_fence(told: Any, node: Any) -> None:
    """The promise ends there, and the next term can see it: a hole counts as damage (ADR 0026)."""

    async def story(etcd: Any, a: Any) -> None:
        grant = await a.win()
        for number in range(1, 4):
            await a.store.append(grant, number, RECORD)
        snapshot = {key: replace(stored) for key, stored in etcd.keys.items()}
        for number in range(4, 7):
            await a.store.append(grant, number, RECORD)
        etcd.keys = snapshot
        # The holder goes on where it was; its lease is in the snapshot too.
        assert isinstance(await a.store.append(grant, 7, OTHER), Won)
        b = node(etcd, "b")
        span = await b.store.span()
        assert (span.first, span.last) == (1, 7)
        assert [await b.store.read(number) for number in (3, 4, 6, 7)] == [RECORD, None, None, OTHER]
        await a.store.release(grant, ())
        assert (await b.win()).fence > grant.fence

    told(story)
