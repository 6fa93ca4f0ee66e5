"""The state store on bad days, and what it asks of etcd. Over the model, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cronstable_etcd.settings import StateSettings
from cronstable_etcd.state import EtcdStateStore, make

from cronstable.api import Held, HttpResponse, PluginError, StoreUnavailable, Topology
from cronstable.testing.clock import run_virtual

BELOW = b"cronstable/state/"

Story = Callable[[Any, Any], Awaitable[None]]


@pytest.fixture
def told(model: Any, node: Any) -> Callable[..., None]:
    """Run a story about a model and a node ``a`` whose ``state`` is an open store, in virtual time."""

    def tell(story: Story, **kw: Any) -> None:
        async def run() -> None:
            etcd = model()
            await story(etcd, await with_state(node(etcd, "a", **kw)))

        run_virtual(run)

    return tell


async def with_state(node: Any) -> Any:
    node.state = EtcdStateStore(node.host, node.gateway, node.tls, "cronstable/state", "the model")
    await node.state.open()
    node.line.calls.clear()
    return node


def lose_the_next_answer(node: Any, member: str) -> None:
    """What ``member`` is asked next it does, and says nothing."""
    lost: list[str] = []

    def lose(url: str, path: str, body: Any) -> None:
        if url == member and not lost:
            lost.append(path)
            raise TimeoutError

    node.line.after = lose


def test_an_append_to_a_stream_of_ones_own_is_one_request(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        names = [await a.state.append("runs/a", b"%d" % number) for number in range(3)]
        assert names == [f"{number:016d}" for number in (1, 2, 3)]
        assert len(a.line.calls) == 1 + 3

    told(story)


def test_two_nodes_that_append_to_one_stream_share_its_numbers(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        b = await with_state(node(etcd, "b"))
        for number in range(3):
            await a.state.append("s", b"a%d" % number)
            await b.state.append("s", b"b%d" % number)
        assert [record.data for record in await a.state.read("s")] == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]

    told(story)


@pytest.mark.parametrize("what", ["append", "put"])
def test_a_write_whose_answer_was_lost_is_known_again_by_the_next_member(told: Any, what: str) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.state.append("s", b"same")
        first = await a.state.put("d", b"same", None)
        lose_the_next_answer(a, "http://member-1:2379")
        if what == "append":
            await a.state.append("s", b"same")
            assert len(await a.state.read("s")) == 2
            assert len(a.line.calls) > 0
            await a.state.append("s", b"more")
            assert [record.data for record in await a.state.read("s")] == [b"same", b"same", b"more"]
        else:
            second = await a.state.put("d", b"same", first.version)
            assert second is not None
            assert await a.state.get("d") == second
            assert await a.state.put("d", b"x", first.version) is None

    told(story, members=2)


def test_a_write_that_nobody_answers_is_unclear(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.state.append("s", b"1")
        lose_the_next_answer(a, "http://member-1:2379")
        with pytest.raises(StoreUnavailable) as caught:
            await a.state.append("s", b"2")
        assert caught.value.ambiguous
        assert [record.data for record in await a.state.read("s")] == [b"1", b"2"]

    told(story)


def test_an_etcd_out_of_space_is_unavailable_for_writers_and_loses_nothing(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.state.append("s", b"1")
        document = await a.state.put("d", b"1", None)
        etcd.full = True
        for call in (a.state.append("s", b"2"), a.state.put("d", b"2", document.version)):
            with pytest.raises(StoreUnavailable, match="database space exceeded"):
                await call
        assert [record.data for record in await a.state.read("s")] == [b"1"]
        # What makes room is not refused.
        assert await a.state.delete("d", document.version)
        etcd.full = False
        await a.state.append("s", b"2")
        assert [record.data for record in await a.state.read("s")] == [b"1", b"2"]

    told(story)


def test_a_token_that_expired_between_two_writes_costs_nothing(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.state.append("s", b"1")
        etcd.tokens.clear()
        await a.state.append("s", b"2")
        assert [record.data for record in await a.state.read("s")] == [b"1", b"2"]

    async def with_users(etcd: Any, a: Any) -> None:
        etcd.users["cron"] = "secret"
        await story(etcd, a)

    told(with_users, password="secret")


def test_ten_thousand_streams_are_listed_by_their_names_alone(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for number in range(10_000):
            etcd.put_by_hand(BELOW + b"streams/runs%%2F%d" % number, b"7")
        found = await a.state.streams("runs/")
        assert len(found) == 10_000
        assert list(found) == sorted(found)
        assert len(a.line.calls) == 11
        assert all(body["success"][0]["request_range"]["keys_only"] for _, _, body in a.line.calls)

    told(story)


def test_the_newest_record_of_a_long_stream_is_read_without_the_others(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for number in range(60):
            await a.state.append("s", b"%d" % number)
        a.line.calls.clear()
        assert [record.data for record in await a.state.read("s", limit=1)] == [b"59"]
        assert len(a.line.calls) == 2

    told(story)


def test_a_limit_reaches_past_records_that_were_put_aside(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        names = [await a.state.append("s", b"%d" % number) for number in range(6)]
        for name in names[3:5]:
            await a.state.put_aside("s", name)
        assert [record.data for record in await a.state.read("s", limit=3)] == [b"1", b"2", b"5"]

    told(story)


def test_large_records_are_read_in_pieces(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for _ in range(20):
            await a.state.append("logs/a", b"x" * (512 * 1024))
        a.line.calls.clear()
        assert len(await a.state.read("logs/a")) == 20
        limits = [int(body["success"][0]["request_range"]["limit"]) for _, _, body in a.line.calls]
        assert max(limits) <= 8
        assert len(limits) >= 6

    told(story)


def test_a_long_stream_is_trimmed_in_pieces_and_keeps_the_newest(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        etcd.put_by_hand(BELOW + b"streams/s", b"2500")
        for number in range(1, 2501):
            etcd.put_by_hand(BELOW + b"records/s/%016d" % number, b"aaaaaaaaaaaa %d" % number)
        a.line.calls.clear()
        await a.state.trim("s", 3)
        assert [record.data for record in await a.state.read("s")] == [b"2498", b"2499", b"2500"]
        removals = [body for _, _, body in a.line.calls if "request_delete_range" in str(body)]
        assert len(removals) == 3
        await a.state.trim("s", 0)
        assert await a.state.append("s", b"after") == f"{2501:016d}"

    told(story)


def test_what_was_put_aside_is_bounded(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for number in range(260):
            await a.state.put_aside("s", await a.state.append("s", b"%d" % number))
        aside = [key for key in etcd.keys if key.startswith(BELOW + b"aside/")]
        assert len(aside) == 256
        assert list(await a.state.streams()) == []

    told(story)


def test_more_than_a_record_may_have_is_refused_before_it_is_sent(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for call in (a.state.append("s", b"x" * (2**20 + 1)), a.state.put("d", b"x" * (2**20 + 1), None)):
            with pytest.raises(StoreUnavailable, match="1048577 bytes are more than the 1048576"):
                await call
        assert a.line.calls == []

    told(story)


@pytest.mark.parametrize("key", ["streams/s", "dropped"])
def test_a_number_that_is_damaged_by_hand_is_named(told: Any, key: str) -> None:
    async def story(etcd: Any, a: Any) -> None:
        etcd.put_by_hand(BELOW + key.encode(), b"many")
        with pytest.raises(StoreUnavailable, match=f"the etcd key cronstable/state/{key} is damaged"):
            await a.state.append("s", b"1")

    told(story)


def test_a_store_of_another_version_is_not_opened(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        etcd.put_by_hand(BELOW + b"meta", b'{"schemaVersion": "v9"}')
        with pytest.raises(StoreUnavailable, match="cronstable/state/meta is not of this version"):
            await with_state(node(etcd, "a"))
        assert set(etcd.keys) == {BELOW + b"meta"}

    run_virtual(story)


def test_what_an_operator_puts_there_is_handed_out_as_it_is(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        etcd.put_by_hand(BELOW + b"documents/d", b"by hand")
        document = await a.state.get("d")
        assert document.data == b"by hand"
        assert await a.state.put("d", b"ours", document.version) is not None

    told(story)


@pytest.mark.parametrize("version", ["", "0", "-1", "x", "9" * 40, "²"])
def test_what_is_no_version_matches_nothing(told: Any, version: str) -> None:
    async def story(etcd: Any, a: Any) -> None:
        assert await a.state.put("d", b"1", version) is None
        assert await a.state.delete("d", version) is False
        assert await a.state.get("d") is None

    told(story)


def test_a_lease_of_state_lives_for_the_ttl_that_was_asked_for(told: Any, node: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        store = a.state.lease("slots/a")
        answer = await store.acquire(a.me, 120.0, nonce="n1")
        assert isinstance(answer, Held)
        await a.host.clock.sleep(100)
        answer = await store.renew(answer.grant, nonce="n2")
        assert isinstance(answer, Held)
        assert answer.grant.ttl == 120.0
        await a.host.clock.sleep(100)
        b = await with_state(node(etcd, "b"))
        assert not isinstance(await b.state.lease("slots/a").acquire(b.me, 120.0, nonce="n3"), Held)
        await a.host.clock.sleep(21)
        assert isinstance(await b.state.lease("slots/a").acquire(b.me, 120.0, nonce="n4"), Held)

    told(story)


def test_the_factory_touches_nothing_and_the_store_says_where_it_is(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a")
        store = make(StateSettings(("http://member-1:2379",), prefix="here"), a.host)
        assert a.line.calls == []
        info = await store.open()
        assert (info.backend, info.topology) == ("etcd", Topology.SHARED)
        assert info.location == "http://member-1:2379 below here"

    run_virtual(story)


def test_settings_of_somebody_else_are_refused(node: Any, model: Any) -> None:
    async def story() -> None:
        with pytest.raises(PluginError, match=r"state\.etcd was not parsed by this plugin: dict"):
            make({}, node(model(), "a").host)

    run_virtual(story)


def test_an_answer_of_something_else_is_unavailable(told: Any, answering: Callable[..., HttpResponse]) -> None:
    answers: tuple[Any, ...] = (b"<html>", {"header": {"revision": "5"}, "succeeded": True}, {"header": {}})

    async def story(etcd: Any, a: Any) -> None:
        for wrong in map(answering, answers):
            a.line.before = lambda url, path, body, wrong=wrong: wrong
            for call in (a.state.read("s"), a.state.get("d"), a.state.streams(), a.state.trim("s", 1)):
                with pytest.raises(StoreUnavailable):
                    await call

    told(story)


# -- damage


async def found(store: Any, *, repair: bool) -> list[tuple[str, str, bool]]:
    return [(one.what, one.detail, one.repaired) async for one in store.inspect(repair=repair)]


DAMAGES = [
    ("streams/s", None, "stream s", "has records, and the etcd key cronstable/state/streams/s is missing"),
    ("streams/s", b"1", "the etcd key cronstable/state/streams/s", "ends before its record 0000000000000003"),
    ("streams/s", b"many", "the etcd key cronstable/state/streams/s", "ends before its record 0000000000000003"),
    ("dropped", b"many", "the etcd key cronstable/state/dropped", "is no number"),
    (
        "streams/a%2Fgone",
        b"7",
        "stream a/gone",
        "the etcd key cronstable/state/streams/a%2Fgone names a stream that has no records",
    ),
]


@pytest.mark.parametrize(("key", "value", "what", "detail"), DAMAGES)
def test_damage_is_found_and_repaired_and_appends_go_on_behind_what_was_there(
    told: Any, key: str, value: bytes | None, what: str, detail: str
) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for number in range(3):
            await a.state.append("s", b"%d" % number)
        if value is None:
            etcd.delete_by_hand(BELOW + key.encode())
        else:
            etcd.put_by_hand(BELOW + key.encode(), value)
        before = {key: stored.value for key, stored in etcd.keys.items()}
        assert await found(a.state, repair=False) == [(what, detail, False)]
        assert {key: stored.value for key, stored in etcd.keys.items()} == before
        assert await found(a.state, repair=True) == [(what, detail, True)]
        assert await found(a.state, repair=True) == []
        await a.state.open()
        await a.state.append("s", b"3")
        assert [record.data for record in await a.state.read("s")] == [b"0", b"1", b"2", b"3"]
        assert list(await a.state.streams()) == ["s"]

    told(story)


@pytest.mark.parametrize(
    "key", ["records/s/notes", "records/a/b/0000000000000001", "streams/a/b", "documents/a b", "streams/"]
)
def test_keys_of_somebody_else_are_named_and_left_alone(told: Any, key: str) -> None:
    async def story(etcd: Any, a: Any) -> None:
        await a.state.append("s", b"1")
        etcd.put_by_hand(BELOW + key.encode(), b"x")
        for repair in (False, True):
            assert await found(a.state, repair=repair) == [
                (f"the etcd key cronstable/state/{key}", "is no key of this store", False)
            ]
        assert BELOW + key.encode() in etcd.keys
        assert list(await a.state.documents()) == []
        await a.state.append("s", b"2")
        await a.state.trim("s", 2)
        assert [record.data for record in await a.state.read("s")] == [b"1", b"2"]

    told(story)


def test_a_number_that_was_set_back_by_hand_writes_over_nothing(told: Any) -> None:
    async def story(etcd: Any, a: Any) -> None:
        for number in range(3):
            await a.state.append("s", b"%d" % number)
        etcd.put_by_hand(BELOW + b"streams/s", b"1")
        with pytest.raises(StoreUnavailable, match="streams/s is damaged: the stream has records behind 1"):
            await a.state.append("s", b"over")
        assert [record.data for record in await a.state.read("s")] == [b"0", b"1", b"2"]

    told(story)
