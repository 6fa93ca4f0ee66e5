"""The store on bad days, over the model of etcd in virtual time. Names say what goes wrong."""

from __future__ import annotations

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


# -- what stands in etcd


def test_the_value_of_the_key_is_the_name_of_the_leader(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "node-a")
        grant = await a.renewed(await a.win())
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
        grant = await a.win()
        await b.host.clock.sleep(14.9)
        assert isinstance(await b.store.observe(), Seen)
        await b.host.clock.sleep(0.2)
        assert await b.store.observe() == Vacant(grant.fence)
        assert (await b.win()).fence > grant.fence

    run_virtual(story)


def test_a_renewal_extends_the_lease_by_a_whole_ttl(model: Any, node: Any) -> None:
    async def story() -> None:
        a, b = (node(etcd, name) for etcd in [model()] for name in "ab")
        grant = await a.win()
        for _ in range(5):
            await a.host.clock.sleep(10)
            grant = await a.renewed(grant)
        assert isinstance(await b.store.observe(), Seen)
        assert grant.expires_at == a.host.clock.now().wall + TTL

    run_virtual(story)


def test_two_nodes_of_one_name_are_told_apart(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, twin = node(etcd, "same"), node(etcd, "same")
        twin.me = Holder("same", "another token")
        grant = await a.win()
        answer = await twin.store.acquire(twin.me, TTL, nonce="n")
        assert isinstance(answer, Seen)
        assert answer.record.holder == a.me
        await a.renewed(grant)

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
        grant = await a.win()
        a.line.before = lambda url, path, body: answering(reply) if path.endswith("keepalive") else None
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)

    run_virtual(story)


def test_b25_a_key_that_outlives_its_lease_is_taken_back_by_its_own_process_and_by_no_other(
    model: Any, node: Any, answering: Answering
) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.leases[etcd.keys[LEADER].lease] = (15, float("inf"))
        a.line.before = lambda url, path, body: answering({"result": {}}) if path.endswith("keepalive") else None
        assert isinstance(await a.store.renew(grant, nonce="n"), Vacant)
        await b.host.clock.sleep(100)
        assert isinstance(await b.store.acquire(b.me, TTL, nonce="n"), Seen)
        assert (await a.win()).fence > grant.fence

    run_virtual(story)


def test_b36_a_ttl_beyond_what_was_asked_for_is_not_believed(model: Any, node: Any, answering: Answering) -> None:
    async def story() -> None:
        a = node(model(), "a")
        grant = await a.win()
        reply = {"result": {"ID": "1", "TTL": "9223372036"}}
        a.line.before = lambda url, path, body: answering(reply) if path.endswith("keepalive") else None
        assert (await a.renewed(grant)).ttl == TTL

    run_virtual(story)


def test_a_ttl_below_what_was_asked_for_is_honoured_and_recovers(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        etcd.longest = 4
        a = node(etcd, "a")
        grant = await a.win()
        assert grant.ttl == 4
        etcd.leases[a.store.lease_id] = (15, etcd.now + 4)
        etcd.longest = 1 << 40
        assert (await a.renewed(grant)).ttl == TTL

    run_virtual(story)


def test_a_lease_revoked_by_hand_ends_the_term_at_the_next_renewal(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        etcd.revoke(a.store.lease_id)
        assert await a.store.renew(grant, nonce="n") == Vacant(grant.fence)
        assert (await a.win()).fence > grant.fence

    run_virtual(story)


def test_a_race_that_is_lost_leaves_no_lease_behind(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")

        async def overtake(url: str, path: str, body: Any) -> None:
            if path.endswith("grant") and not etcd.keys:
                await b.win()

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
                between.append(await b.win())
                await b.store.release(between[0], ())

        a.line.after = come_and_go
        assert (await a.win()).fence > between[0].fence

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
        assert (await a.renewed(adopted)).fence == record.fence

    run_virtual(story)


def test_a_renewal_that_is_sent_twice_counts_once(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a", members=2)
        grant = await a.win()
        lost: list[str] = []

        def lose(url: str, path: str, body: Any) -> None:
            if path.endswith("txn") and not lost:
                lost.append(url)
                raise TimeoutError("lost")

        a.line.after = lose
        again = await a.store.renew(grant, nonce="n2")
        assert isinstance(again, Held)
        assert (again.grant.nonce, etcd.keys[LEADER].mod) == ("n2", again.grant.data.mod)  # type: ignore[attr-defined]
        await a.renewed(again.grant)

    run_virtual(story)


# -- release


def test_a_release_after_the_key_was_deleted_by_hand_ends_the_lease(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b")
        grant = await a.win()
        etcd.delete_by_hand(LEADER)
        await a.store.release(grant, ())
        assert await b.store.observe() == Vacant(grant.fence)

    run_virtual(story)


def test_a_release_ends_the_lease_and_keeps_fence_and_run_ids(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        await a.store.release(grant, ["r1"])
        assert etcd.leases == {}
        assert list(etcd.keys) == [LEADER + b"/fence"]
        assert await a.store.observe() == Vacant(grant.fence, ("r1",))

    run_virtual(story)


def test_an_etcd_out_of_space_leaves_no_leader_and_still_lets_one_go(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        etcd.full = True
        with pytest.raises(StoreUnavailable, match="database space exceeded"):
            await a.store.renew(grant, nonce="n")
        begun = etcd.now
        await a.store.release(grant, ())
        assert etcd.now == begun
        assert isinstance(await a.store.observe(), Vacant)
        with pytest.raises(StoreUnavailable):
            await a.store.acquire(a.me, TTL, nonce="n")
        assert etcd.leases == {}

    run_virtual(story)


@pytest.mark.parametrize("code", [3, 7, 16])
def test_a_release_that_etcd_denies_is_not_tried_again(model: Any, node: Any, answering: Answering, code: int) -> None:
    async def story() -> None:
        etcd = model()
        a = node(etcd, "a")
        grant = await a.win()
        denied = {"error": "no", "message": "no", "code": code}
        a.line.before = lambda url, path, body: answering(denied, 403)
        asked = len(a.line.calls)
        with pytest.raises(StoreUnavailable):
            await a.store.release(grant, ())
        assert etcd.now == 0.0
        assert len(a.line.calls) - asked == 2, "the write, and the end of the lease"

    run_virtual(story)


def test_a_release_by_a_user_who_is_not_accepted_any_more_is_not_tried_again(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        etcd.users = {"cron": "old"}
        a = node(etcd, "a", password="old")
        grant = await a.win()
        etcd.users, etcd.tokens = {"cron": "new"}, set()
        with pytest.raises(StoreUnavailable, match="does not accept the user"):
            await a.store.release(grant, ["r1"])
        assert etcd.now == 0.0

    run_virtual(story)


# -- watching


def test_a_release_is_seen_at_once_by_who_watches(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        grant = await a.win()
        assert isinstance(await b.store.observe(), Seen)
        answers: list[tuple[float, Any]] = []

        async def wait() -> None:
            answer = await b.store.observe()
            answers.append((etcd.now, answer))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await a.host.clock.sleep(1)
            grant = await a.renewed(grant)
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
        grant = await a.win()
        await b.store.observe()
        grant = await a.renewed(grant)
        answer = await b.store.observe()
        assert isinstance(answer, Seen)
        assert (etcd.now, answer.record.nonce) == (5.0, grant.nonce)

    run_virtual(story)


def test_a_watch_that_fails_is_made_up_for_by_polling(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a, b = node(etcd, "a"), node(etcd, "b", watch=5.0)
        await a.win()

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
        await a.win()
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
        grant = await a.win()
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
        grant = await a.win()
        rebuilt = replace(grant, data=None)
        assert await a.store.mark_reboot(rebuilt, "set", "one", nonce="m1")
        etcd.revoke(a.store.lease_id)
        await b.win()
        assert not await a.store.mark_reboot(rebuilt, "set", "two", nonce="m2")
        assert not await a.store.mark_reboot(grant, "set", "two", nonce="m2")

    run_virtual(story)
