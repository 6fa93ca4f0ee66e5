"""The store on bad days, over the model of etcd in virtual time. Names say what goes wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from cronstable.api import Grant, Held, Holder, HttpResponse, Seen, StoreUnavailable, Vacant
from cronstable.testing.clock import run_virtual

LEADER = b"cronstable/leader"
TTL = 15.0

Answering = Callable[..., HttpResponse]
Story = Callable[[], Awaitable[None]]


async def win(node: Any) -> Grant:
    answer = await node.store.acquire(node.me, TTL, nonce=node.nonce())
    assert isinstance(answer, Held), answer
    return answer.grant


async def renewed(node: Any, grant: Grant) -> Grant:
    answer = await node.store.renew(grant, nonce=node.nonce())
    assert isinstance(answer, Held), answer
    return answer.grant


def put_by_hand(etcd: Any, key: bytes, value: bytes, lease: int = 0) -> None:
    """As ``etcdctl put`` does."""
    encoded = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode(), "lease": str(lease)}
    etcd.serve("/v3/kv/txn", {"success": [{"request_put": encoded}]}, None)


def delete_by_hand(etcd: Any, key: bytes) -> None:
    etcd.serve("/v3/kv/txn", {"success": [{"request_delete_range": {"key": base64.b64encode(key).decode()}}]}, None)


# -- what stands in etcd


def test_the_value_of_the_key_is_the_name_of_the_leader(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "node-a")
        grant = await renewed(a, await win(a))
        keys = a.line.model.keys
        assert keys[LEADER].value == b"node-a"
        assert json.loads(keys[LEADER + b"/term"].value) == {
            "holder": str(a.me),
            "fence": grant.fence,
            "ttl": 15.0,
            "nonce": grant.nonce,
        }
        assert json.loads(keys[LEADER + b"/fence"].value) == {"fence": grant.fence, "returned": []}
        assert keys[LEADER].lease == keys[LEADER + b"/term"].lease == a.store.lease_id
        assert keys[LEADER + b"/fence"].lease == 0

    run_virtual(story)


def test_a_dead_holder_is_forgotten_after_the_ttl_and_its_fence_is_not(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        await b.host.clock.sleep(14.9)
        assert isinstance(await b.store.observe(), Seen)
        await b.host.clock.sleep(0.2)
        assert await b.store.observe() == Vacant(grant.fence)
        assert (await win(b)).fence > grant.fence

    run_virtual(story)


def test_a_renewal_extends_the_lease_by_a_whole_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        a, b = (node(etcd, name) for etcd in [model()] for name in "ab")
        grant = await win(a)
        for _ in range(5):
            await a.host.clock.sleep(10)
            grant = await renewed(a, grant)
        assert isinstance(await b.store.observe(), Seen)
        assert grant.expires_at == a.host.clock.now().wall + TTL

    run_virtual(story)


def test_two_nodes_of_one_name_are_told_apart(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, twin = node(etcd, "same"), node(etcd, "same")
        twin.me = Holder("same", "another token")
        grant = await win(a)
        answer = await twin.store.acquire(twin.me, TTL, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == a.me
        await renewed(a, grant)

    run_virtual(story)


# -- leases that are not what was asked for


@pytest.mark.parametrize(
    "reply", [{"result": {"header": {"revision": "9"}, "ID": "7"}}, {"result": {"TTL": "-644865"}}]
)
def test_b31_a_keepalive_without_a_ttl_means_that_the_lease_is_lost(
    model: Any, node: Any, answering: Answering, reply: Any
) -> None:
    async def story() -> None:
        a = node(model(), "a")
        grant = await win(a)
        a.line.before = lambda url, path, body: answering(reply) if path.endswith("keepalive") else None
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)

    run_virtual(story)


def test_b25_a_key_that_outlives_its_lease_is_taken_back_by_its_own_process_and_by_no_other(
    model: Any, node: Any, answering: Answering
) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        etcd.leases[etcd.keys[LEADER].lease] = (15, float("inf"))
        a.line.before = lambda url, path, body: answering({"result": {}}) if path.endswith("keepalive") else None
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)
        await b.host.clock.sleep(100)
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        assert (await win(a)).fence > grant.fence

    run_virtual(story)


def test_b36_a_ttl_beyond_what_was_asked_for_is_not_believed(model: Any, node: Any, answering: Answering) -> None:
    async def story() -> None:
        a = node(model(), "a")
        grant = await win(a)
        reply = {"result": {"ID": "1", "TTL": "9223372036"}}
        a.line.before = lambda url, path, body: answering(reply) if path.endswith("keepalive") else None
        assert (await renewed(a, grant)).ttl == TTL

    run_virtual(story)


def test_a_ttl_below_what_was_asked_for_is_honoured_and_recovers(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        etcd.longest = 4
        a = node(etcd, "a")
        grant = await win(a)
        assert grant.ttl == 4
        etcd.leases[a.store.lease_id] = (15, etcd.now + 4)
        etcd.longest = 1 << 40
        assert (await renewed(a, grant)).ttl == TTL

    run_virtual(story)


def test_a_lease_revoked_by_hand_ends_the_term_at_the_next_renewal(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await win(a)
        etcd.revoke(a.store.lease_id)
        assert await a.store.renew(grant, nonce="n") == Vacant(grant.fence)
        assert (await win(a)).fence > grant.fence

    run_virtual(story)


def test_a_race_that_is_lost_leaves_no_lease_behind(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")

        async def overtake(url: str, path: str, body: Any) -> None:
            if path.endswith("grant") and not etcd.keys:
                await win(b)

        a.line.after = overtake
        assert isinstance(await a.store.acquire(a.me, TTL, nonce="n"), Seen)
        assert list(etcd.leases) == [b.store.lease_id]

    run_virtual(story)


def test_a_term_that_came_and_went_between_a_look_and_a_win_has_a_lower_fence(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        between: list[Grant] = []

        async def come_and_go(url: str, path: str, body: Any) -> None:
            if path.endswith("grant") and not between:
                between.append(await win(b))
                await b.store.release(between[0], ())

        a.line.after = come_and_go
        assert (await win(a)).fence > between[0].fence

    run_virtual(story)


# -- answers that are lost


def test_an_acquisition_whose_answer_is_lost_leaves_nothing_or_is_adopted(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")

        def lose(url: str, path: str, body: Any) -> None:
            if path.endswith("txn") and etcd.keys:
                a.line.cut = "refused"
                raise TimeoutError("lost")

        a.line.after = lose
        with pytest.raises(StoreUnavailable) as failure:
            await a.store.acquire(a.me, TTL, nonce="n1")
        assert failure.value.ambiguous
        a.line.cut, a.line.after = None, lambda url, path, body: None
        stands = await a.store.observe()
        assert isinstance(stands, Seen)
        record = stands.record
        assert (record.holder, record.nonce) == (a.me, "n1")
        adopted = Grant(record.holder, record.fence, record.nonce, record.ttl)
        assert (await renewed(a, adopted)).fence == record.fence

    run_virtual(story)


def test_a_renewal_that_is_sent_twice_counts_once(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a", members=2)
        grant = await win(a)
        lost: list[str] = []

        def lose(url: str, path: str, body: Any) -> None:
            if path.endswith("txn") and not lost:
                lost.append(url)
                raise TimeoutError("lost")

        a.line.after = lose
        again = await a.store.renew(grant, nonce="n2")
        assert isinstance(again, Held)
        assert (again.grant.nonce, etcd.keys[LEADER].mod) == ("n2", again.grant.data.mod)  # type: ignore[attr-defined]
        await renewed(a, again.grant)

    run_virtual(story)


# -- somebody else's writes


def test_b24_a_key_that_vanished_under_its_holder_and_was_won_by_another_refuses_the_first_ones_renewal(
    model: Any, node: Any
) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await renewed(a, await win(a))
        etcd.revoke(a.store.lease_id)
        second = await win(b)
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert (answer.record.holder, answer.record.fence) == (b.me, second.fence)
        await renewed(b, second)

    run_virtual(story)


def test_a_key_deleted_by_hand_is_not_taken_while_its_lease_lives(model: Any, node: Any) -> None:
    """Its holder may act until its next renewal tells it."""

    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        delete_by_hand(etcd, LEADER)
        seen = await b.store.observe()
        assert isinstance(seen, Seen)
        assert seen.record.holder == a.me
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)
        assert (await win(a)).fence > grant.fence

    run_virtual(story)


def test_a_key_deleted_by_hand_whose_holder_is_dead_is_free_after_the_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        delete_by_hand(etcd, LEADER)
        await b.host.clock.sleep(TTL + 0.1)
        assert await b.store.observe() == Vacant(grant.fence)
        assert (await win(b)).fence > grant.fence

    run_virtual(story)


def test_a_key_deleted_under_a_clone_is_not_taken_back_by_the_original(model: Any, node: Any) -> None:
    """They share the lease, and the clone wrote last: it may act."""

    async def story() -> None:
        etcd = model()
        a, clone = node(etcd, "a"), node(etcd, "a")
        grant = await win(a)
        assert isinstance(await clone.store.renew(grant, nonce="the clone's"), Held)
        delete_by_hand(etcd, LEADER)
        assert isinstance(await a.store.acquire(a.me, TTL, nonce="n"), Seen)

    run_virtual(story)


def test_a_clock_that_is_years_behind_lowers_no_fence(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        await a.store.release(grant, ())
        b.host.clock.step_wall(-10 * 365 * 86400)
        assert (await win(b)).fence == grant.fence + 1

    run_virtual(story)


def test_everything_deleted_by_hand_does_not_lower_the_fence(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        b.host.clock.step_wall(-10 * 365 * 86400)
        first = await win(a)
        await b.store.observe()
        for key in list(etcd.keys):
            delete_by_hand(etcd, key)
        assert (await win(b)).fence > first.fence

    run_virtual(story)


def test_a_value_put_by_hand_ends_the_term_and_is_removed_after_one_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        put_by_hand(etcd, LEADER, b"somebody")
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
        assert (await win(b)).fence > grant.fence

    run_virtual(story)


def test_a_value_that_is_put_again_and_again_by_hand_is_left_alone(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        for number in range(40):
            put_by_hand(etcd, LEADER, b"%d" % number)
            assert isinstance(await b.store.observe(), Seen)
            await b.host.clock.sleep(5)
        assert LEADER in etcd.keys

    run_virtual(story)


def test_a_value_that_is_put_again_while_it_is_removed_stays(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        put_by_hand(etcd, LEADER, b"one")
        await b.store.observe()
        await b.host.clock.sleep(TTL + 1)

        def put_again(url: str, path: str, body: Any) -> None:
            if "request_delete_range" in str(body):
                put_by_hand(etcd, LEADER, b"two")

        b.line.before = put_again
        assert isinstance(await b.store.observe(), Seen)
        assert etcd.keys[LEADER].value == b"two"

    run_virtual(story)


def test_row_41_the_same_value_under_a_foreign_lease_is_somebody_else(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await win(a)
        foreign = int(etcd.lease_grant({"TTL": "15"})["ID"])
        put_by_hand(etcd, LEADER, b"a", foreign)
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
        grant = await win(a)
        put_by_hand(etcd, LEADER, b"x", a.store.lease_id)
        answer = await a.store.renew(grant, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("x", "")

    run_virtual(story)


def test_a_clones_renewal_is_noticed_by_its_nonce(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, clone = node(etcd, "a"), node(etcd, "a")
        grant = await win(a)
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
        grant = await win(a)
        put_by_hand(etcd, LEADER + b"/term", value, a.store.lease_id)
        etcd.keys[LEADER + b"/term"].mod = etcd.keys[LEADER].mod
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert answer.record.holder == Holder("a", "")
        await renewed(a, grant)
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert answer.record.holder == a.me

    run_virtual(story)


@pytest.mark.parametrize("value", [b"", b"no number", b'{"fence": "x"}', b'{"fence": true}'])
def test_a_fence_document_that_is_damaged_costs_no_fence(model: Any, node: Any, value: bytes) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await win(a)
        await a.store.release(grant, ())
        put_by_hand(etcd, LEADER + b"/fence", value)
        b = node(etcd, "b")
        assert await b.store.observe() == Vacant(None)
        await b.host.clock.sleep(1)
        assert (await win(b)).fence > grant.fence

    run_virtual(story)


def test_a_term_document_put_by_hand_is_no_wedge(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        b = node(etcd, "b")
        put_by_hand(etcd, LEADER + b"/term", b"x")
        assert isinstance(await b.store.observe(), Seen)
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        await b.host.clock.sleep(TTL + 1)
        assert isinstance(await b.store.observe(), Vacant)
        await win(b)

    run_virtual(story)


def test_a_holder_that_may_not_write_any_more_does_not_keep_the_key_from_the_others(model: Any, node: Any) -> None:
    """etcd takes a keepalive from anybody who knows the lease."""

    async def story() -> None:
        etcd = model()
        etcd.users["cron"] = "old"
        a, b = node(etcd, "a", password="old"), node(etcd, "b", password="new")
        grant = await win(a)
        etcd.users["cron"] = "new"
        etcd.tokens.clear()
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                await a.store.renew(grant, nonce=a.nonce())
            await a.host.clock.sleep(1)
        assert (await win(b)).fence > grant.fence

    run_virtual(story)


# -- release


def test_a_release_after_the_key_was_deleted_by_hand_ends_the_lease(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        delete_by_hand(etcd, LEADER)
        await a.store.release(grant, ())
        assert await b.store.observe() == Vacant(grant.fence)

    run_virtual(story)


def test_a_release_ends_the_lease_and_keeps_fence_and_run_ids(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await win(a)
        await a.store.release(grant, ["r1"])
        assert etcd.leases == {}
        assert list(etcd.keys) == [LEADER + b"/fence"]
        assert await a.store.observe() == Vacant(grant.fence, ("r1",))

    run_virtual(story)


def test_an_etcd_out_of_space_leaves_no_leader_and_still_lets_one_go(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await win(a)
        etcd.full = True
        with pytest.raises(StoreUnavailable, match="database space exceeded"):
            await a.store.renew(grant, nonce="n")
        with pytest.raises(StoreUnavailable, match="database space exceeded"):
            await a.store.release(grant, ())
        assert isinstance(await a.store.observe(), Vacant)
        with pytest.raises(StoreUnavailable):
            await a.store.acquire(a.me, TTL, nonce="n")
        assert etcd.leases == {}

    run_virtual(story)


# -- watching


def test_a_release_is_seen_at_once_by_who_watches(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        grant = await win(a)
        assert isinstance(await b.store.observe(), Seen)
        answers: list[tuple[float, Any]] = []

        async def wait() -> None:
            answer = await b.store.observe()
            answers.append((etcd.now, answer))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await a.host.clock.sleep(1)
            grant = await renewed(a, grant)
            await a.host.clock.sleep(2)
            assert answers == []
            await a.store.release(grant, ())
        assert answers == [(3.0, Vacant(grant.fence))]
        assert b.line.watches == 1

    run_virtual(story)


def test_a_watch_ends_by_itself_and_what_stands_there_is_read_afresh(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        grant = await win(a)
        await b.store.observe()
        grant = await renewed(a, grant)
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert (etcd.now, answer.record.nonce) == (5.0, grant.nonce)

    run_virtual(story)


def test_a_watch_that_fails_is_made_up_for_by_polling(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        await win(a)

        async def broken(request: Any) -> Any:
            yield b'{"error": {"grpc_code": 7, "message": "permission denied"}}'

        etcd.watch = broken
        for _ in range(5):
            assert isinstance(await b.store.observe(), Seen)
        assert (etcd.now, b.line.watches) == (0.0, 1)

    run_virtual(story)


def test_a_host_without_streams_polls(model: Any, node: Any) -> None:
    class NoStreams:
        def __init__(self, line: Any) -> None:
            self.request = line.request

    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        await win(a)
        b.host.http = NoStreams(b.line)
        for _ in range(5):
            assert isinstance(await b.store.observe(), Seen)
        assert etcd.now == 0.0

    run_virtual(story)


# -- marks


def test_marks_of_old_job_sets_are_pruned_and_those_of_the_live_one_never(
    model: Any, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cronstable_etcd.reboot.KEPT", 4)

    async def story() -> None:
        a = node(model(), "a")
        grant = await win(a)
        for scope in ("old", "live"):
            for number in range(5):
                assert await a.store.mark_reboot(grant, scope, f"job-{number}", nonce=f"{scope}{number}")
        assert len(await node(a.line.model, "b").store.reboot_marks("old")) == 5
        assert len(await a.store.reboot_marks("live")) == 5
        assert await a.store.reboot_marks("old") == frozenset()
        assert len(await a.store.reboot_marks("live")) == 5

    run_virtual(story)


def test_a_mark_of_a_term_that_ended_is_refused_also_for_a_grant_that_was_rebuilt(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await win(a)
        rebuilt = replace(grant, data=None)
        assert await a.store.mark_reboot(rebuilt, "set", "one", nonce="m1")
        etcd.revoke(a.store.lease_id)
        await win(b)
        assert not await a.store.mark_reboot(rebuilt, "set", "two", nonce="m2")
        assert not await a.store.mark_reboot(grant, "set", "two", nonce="m2")

    run_virtual(story)
