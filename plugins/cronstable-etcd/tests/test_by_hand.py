"""What others write at the keys of an election: operators, clones, other programs. Over the model, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cronstable.api import Held, Holder, HttpResponse, Seen, StoreUnavailable, Vacant
from cronstable.testing.clock import run_virtual

LEADER = b"cronstable/leader"
TTL = 15.0

Answering = Callable[..., HttpResponse]
Story = Callable[[], Awaitable[None]]


def test_b24_a_key_that_vanished_under_its_holder_and_was_won_by_another_refuses_the_first_ones_renewal(
    model: Any, node: Any
) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.renewed(await a.win())
        etcd.revoke(a.store.lease_id)
        second = await b.win()
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert (answer.record.holder, answer.record.fence) == (b.me, second.fence)
        await b.renewed(second)

    run_virtual(story)


def test_a_key_deleted_by_hand_is_not_taken_while_its_lease_lives(model: Any, node: Any) -> None:
    """Its holder may act until its next renewal tells it."""

    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.delete_by_hand(LEADER)
        seen = await b.store.observe()
        assert isinstance(seen, Seen)
        assert seen.record.holder == a.me
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)
        assert (await a.win()).fence > grant.fence

    run_virtual(story)


def test_a_key_deleted_by_hand_whose_holder_is_dead_is_free_after_the_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.delete_by_hand(LEADER)
        await b.host.clock.sleep(TTL + 0.1)
        assert await b.store.observe() == Vacant(grant.fence)
        assert (await b.win()).fence > grant.fence

    run_virtual(story)


def test_a_key_deleted_under_a_clone_is_not_taken_back_by_the_original(model: Any, node: Any) -> None:
    """They share the lease, and the clone wrote last: it may act."""

    async def story() -> None:
        etcd = model()
        a, clone = node(etcd, "a"), node(etcd, "a")
        grant = await a.win()
        assert isinstance(await clone.store.renew(grant, nonce="the clone's"), Held)
        etcd.delete_by_hand(LEADER)
        assert isinstance(await a.store.acquire(a.me, TTL, nonce="n"), Seen)

    run_virtual(story)


def test_a_clock_that_is_years_behind_lowers_no_fence(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        await a.store.release(grant, ())
        b.host.clock.step_wall(-10 * 365 * 86400)
        assert (await b.win()).fence == grant.fence + 1

    run_virtual(story)


def test_everything_deleted_by_hand_does_not_lower_the_fence(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        b.host.clock.step_wall(-10 * 365 * 86400)
        first = await a.win()
        await b.store.observe()
        for key in list(etcd.keys):
            etcd.delete_by_hand(key)
        assert (await b.win()).fence > first.fence

    run_virtual(story)


def test_a_value_put_by_hand_ends_the_term_and_is_removed_after_one_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.put_by_hand(LEADER, b"somebody")
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("somebody", "")
        for _ in range(14):
            assert isinstance(await b.store.observe(), Seen)
            assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
            await b.host.clock.sleep(1)
        assert b.host.logged("written without a lease, by hand? It is removed in 15 s")
        await b.host.clock.sleep(2)
        assert isinstance(await b.store.observe(), Vacant)
        assert (await b.win()).fence > grant.fence

    run_virtual(story)


@pytest.mark.parametrize(
    "term",
    [
        b'{"holder": "a#b", "nonce": "n", "fence": 1, "ttl": 1' + b"0" * 400 + b"}",
        b'{"holder": "a#b", "nonce": "n", "fence": 1' + b"0" * 400 + b', "ttl": 15}',
        b'{"holder": "a#b", "nonce": "n", "fence": -1, "ttl": 15}',
        b'{"holder": "a#b", "nonce": "n", "fence": true, "ttl": true}',
    ],
    ids=["ttl", "fence", "negative", "booleans"],
)
def test_a_term_put_by_hand_with_numbers_that_are_none_is_removed_after_one_ttl(
    model: Any, node: Any, term: bytes
) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        etcd.put_by_hand(LEADER + b"/term", term)
        etcd.put_by_hand(LEADER + b"/fence", b'{"fence": 1' + b"0" * 400 + b"}")
        looks = 0
        while isinstance(await a.store.observe(), Seen):
            assert isinstance(await a.store.acquire(a.me, TTL, nonce="n"), Seen)
            await a.host.clock.sleep(1)
            looks += 1
        assert TTL - 2 <= looks <= TTL + 1
        assert (await a.win()).fence < 2**62

    run_virtual(story)


def test_a_mark_put_by_hand_that_is_no_text_hides_no_other(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        assert await a.store.mark_reboot(grant, "set", "job", nonce="m")
        etcd.put_by_hand(LEADER + b"/reboot-ran/set/\xff", b"{}")
        assert await a.store.reboot_marks("set") == {"job"}

    run_virtual(story)


def test_a_value_that_is_put_again_and_again_by_hand_is_left_alone(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        for number in range(40):
            etcd.put_by_hand(LEADER, b"%d" % number)
            assert isinstance(await b.store.observe(), Seen)
            await b.host.clock.sleep(5)
        assert LEADER in etcd.keys

    run_virtual(story)


def test_a_value_that_is_put_again_while_it_is_removed_stays(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        etcd.put_by_hand(LEADER, b"one")
        await b.store.observe()
        await b.host.clock.sleep(TTL + 1)

        def put_again(url: str, path: str, body: Any) -> None:
            if "request_delete_range" in str(body):
                etcd.put_by_hand(LEADER, b"two")

        b.line.before = put_again
        assert isinstance(await b.store.observe(), Seen)
        assert etcd.keys[LEADER].value == b"two"

    run_virtual(story)


def test_row_41_the_same_value_under_a_foreign_lease_is_somebody_else(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        foreign = int(etcd.lease_grant({"TTL": "15"})["ID"])
        etcd.put_by_hand(LEADER, b"a", foreign)
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("a", "")
        await a.store.release(grant, ())
        assert etcd.keys[LEADER].lease == foreign

    run_virtual(story)


def test_a_value_that_is_overwritten_under_our_own_lease_is_somebody_elses_write(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        etcd.put_by_hand(LEADER, b"x", a.store.lease_id)
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("x", "")

    run_virtual(story)


def test_a_clones_renewal_is_noticed_by_its_nonce(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, clone = node(etcd, "a"), node(etcd, "a")
        grant = await a.win()
        assert isinstance(await clone.store.renew(grant, nonce="the clone's"), Held)
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert not replace(grant, tried=("n",)).owns(answer.record)
        await a.store.release(grant, ())
        assert LEADER in etcd.keys

    run_virtual(story)


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"holder": 1}', b'{"holder": "a#b", "fence": "x"}', b"\xff"])
def test_a_term_document_that_is_damaged_is_a_foreign_holder_until_it_is_written_anew(
    model: Any, node: Any, value: bytes
) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.put_by_hand(LEADER + b"/term", value, a.store.lease_id)
        etcd.keys[LEADER + b"/term"].mod = etcd.keys[LEADER].mod
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("a", "")
        await a.renewed(grant)
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert answer.record.holder == a.me

    run_virtual(story)


@pytest.mark.parametrize("value", [b"", b"no number", b'{"fence": "x"}', b'{"fence": true}'])
def test_a_fence_document_that_is_damaged_costs_no_fence(model: Any, node: Any, value: bytes) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        await a.store.release(grant, ())
        etcd.put_by_hand(LEADER + b"/fence", value)
        b = node(etcd, "b")
        assert await b.store.observe() == Vacant(None)
        await b.host.clock.sleep(1)
        assert (await b.win()).fence > grant.fence

    run_virtual(story)


def test_a_term_document_put_by_hand_is_no_wedge(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        etcd.put_by_hand(LEADER + b"/term", b"x")
        assert isinstance(await b.store.observe(), Seen)
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        await b.host.clock.sleep(TTL + 1)
        assert isinstance(await b.store.observe(), Vacant)
        await b.win()

    run_virtual(story)


def test_a_holder_that_may_not_write_any_more_does_not_keep_the_key_from_the_others(model: Any, node: Any) -> None:
    """etcd takes a keepalive from anybody who knows the lease."""

    async def story() -> None:
        etcd = model()
        etcd.users["cron"] = "old"
        a, b = node(etcd, "a", password="old"), node(etcd, "b", password="new")
        grant = await a.win()
        etcd.users["cron"] = "new"
        etcd.tokens.clear()
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                await a.store.renew(grant, nonce=a.nonce())
            await a.host.clock.sleep(1)
        assert (await b.win()).fence > grant.fence

    run_virtual(story)
