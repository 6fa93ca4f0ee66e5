"""Members that fail, tokens that die, answers that are none: over the model, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from cronstable_etcd.gateway import Refused

from cronstable.api import HttpResponse, StoreUnavailable
from cronstable.testing.clock import run_virtual

Answering = Callable[..., HttpResponse]
RANGE: dict[str, Any] = {"success": [{"request_range": {"key": "eA=="}}]}


async def read(node: Any) -> Any:
    return await node.gateway.call("/v3/kv/txn", RANGE)


def members(node: Any) -> list[str]:
    return [url.removeprefix("http://member-").removesuffix(":2379") for url, _, _ in node.line.calls]


def paths(node: Any) -> list[str]:
    return [path.rpartition("/")[2] for _, path, _ in node.line.calls]


# -- members


@pytest.mark.parametrize(
    "answer",
    [
        (503, {"error": "etcdserver: request timed out", "message": "etcdserver: request timed out", "code": 14}),
        (504, {"error": "deadline", "code": 4}),
        (200, {"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: leader changed"}}),
        (429, {"error": "etcdserver: too many requests", "code": 8}),
        (500, {"error": "boom", "code": 2}),
        (502, b"<html>Bad gateway</html>"),
        (200, b"<html>a proxy's front page</html>"),
        (200, b'{"header": {"revision": "3"}, "respon'),
        (200, b"[1]"),
        (200, b"[" * 100_000),
        (200, b"\xff\xfe"),
    ],
)
def test_b35_a_member_without_a_usable_answer_is_left_for_the_next_one(
    model: Any, node: Any, answering: Answering, answer: Any
) -> None:
    async def story() -> None:
        a = node(model(), "a", members=3)
        a.line.before = lambda url, path, body: answering(answer[1], answer[0]) if "member-1" in url else None
        assert "header" in await read(a)
        assert members(a) == ["1", "2"]
        await read(a)
        assert members(a) == ["1", "2", "2"]

    run_virtual(story)


def test_calls_at_the_same_time_find_the_one_member_that_answers(model: Any, node: Any) -> None:
    """A state store asks several things at once: one call's failure must not lead another one past that member."""

    async def story() -> None:
        a = node(model(), "a", members=4)

        async def slow(url: str, path: str, body: Any) -> None:
            await a.host.clock.sleep(0.1)
            if "member-3" not in url:
                raise OSError("refused")

        a.line.before = slow
        answers: list[Any] = []

        async def ask(after: float) -> None:
            await a.host.clock.sleep(after)
            answers.append(await read(a))

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(ask, 0.03 * number)
        assert len(answers) == 12
        a.line.calls.clear()
        await read(a)
        assert members(a) == ["3"]

    run_virtual(story)


def test_calls_at_the_same_time_share_one_new_token(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        etcd.users["cron"] = "secret"
        a = node(etcd, "a", password="secret")
        await read(a)
        etcd.tokens.clear()
        a.line.calls.clear()

        async def slow(url: str, path: str, body: Any) -> None:
            await a.host.clock.sleep(0.1)

        a.line.before = slow
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(read, a)
        assert paths(a).count("authenticate") == 1
        assert paths(a).count("txn") == 16

    run_virtual(story)


def test_b35_a_member_that_hangs_costs_its_share_of_the_round_and_no_more(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a", members=2)

        async def hang(url: str, path: str, body: Any) -> None:
            if "member-1" in url:
                await anyio.Event().wait()

        a.line.before = hang
        await read(a)
        assert a.line.model.now == pytest.approx(1.8)

    run_virtual(story)


def test_b34_an_older_raft_term_of_a_member_does_not_matter(model: Any, node: Any, answering: Answering) -> None:
    async def story() -> None:
        a = node(model(), "a", members=3)
        old = {"header": {"revision": "1", "raft_term": "1"}, "succeeded": True}
        a.line.before = lambda url, path, body: answering(old) if "member-1" in url else None
        assert (await read(a))["header"]["raft_term"] == "1"
        a.line.before = lambda url, path, body: answering({"error": "x", "code": 14}, 503) if "1:" in url else None
        assert (await read(a))["header"]["raft_term"] == "2"

    run_virtual(story)


def test_when_no_member_answers_every_one_was_asked_once_and_all_are_named(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a", members=3)
        a.line.cut = "refused"
        with pytest.raises(StoreUnavailable, match=r"member-1.*member-2.*member-3") as failure:
            await read(a)
        assert failure.value.ambiguous
        assert members(a) == ["1", "2", "3"]

    run_virtual(story)


def test_a_refusal_is_not_taken_to_another_member(model: Any, node: Any, answering: Answering) -> None:
    async def story() -> None:
        a = node(model(), "a", members=3)
        denied = {"error": "etcdserver: permission denied", "message": "etcdserver: permission denied", "code": 7}
        a.line.before = lambda url, path, body: answering(denied, 403)
        with pytest.raises(Refused, match="permission denied") as refusal:
            await read(a)
        assert refusal.value.code == 7
        assert members(a) == ["1"]
        with pytest.raises(StoreUnavailable, match="kv/txn: etcdserver: permission denied"):
            await a.store.observe()

    run_virtual(story)


@pytest.mark.parametrize(
    "document",
    [
        {"header": {"revision": "1"}, "responses": "x"},
        {"header": {"revision": "1"}, "responses": [1]},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": [{"key": "%"}]}}]},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": [{"mod_revision": "x"}]}}]},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": [{"mod_revision": []}]}}]},
        {"header": {"revision": "x"}},
        {"header": 3},
        {},
        {"header": {"revision": "1"}, "succeeded": True, "responses": [{"response_range": {}}]},
        {"header": {"revision": "1"}, "responses": []},
    ],
)
def test_json_that_is_no_transactions_answer_is_unavailable_and_nothing_else(
    model: Any, node: Any, answering: Answering, document: Any
) -> None:
    async def story() -> None:
        a = node(model(), "a")
        a.line.before = lambda url, path, body: answering(document)
        with pytest.raises(StoreUnavailable):
            await a.store.observe()

    run_virtual(story)


@pytest.mark.parametrize("body", [b'{"ID": "x", "TTL": "15"}', b'{"TTL": "15"}', b'{"ID": "5"}', b'{"ID": []}'])
def test_a_grant_that_is_none_is_unavailable_and_not_used(
    model: Any, node: Any, answering: Answering, body: bytes
) -> None:
    async def story() -> None:
        a = node(model(), "a")
        a.line.before = lambda url, path, _: answering(body) if path.endswith("grant") else None
        with pytest.raises(StoreUnavailable):
            await a.store.acquire(a.me, 15.0, nonce="n")
        assert paths(a) == ["txn", "grant"]

    run_virtual(story)


# -- auth


def secured(model: Any) -> Any:
    etcd = model()
    etcd.users["cron"] = "secret"
    return etcd


def test_a_token_is_fetched_once_and_sent_as_it_is(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(secured(model), "a", password="secret")
        await read(a)
        await read(a)
        assert paths(a) == ["authenticate", "txn", "txn"]

    run_virtual(story)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, {"error": "etcdserver: invalid auth token", "message": "etcdserver: invalid auth token", "code": 16}),
        (400, {"error": "etcdserver: user name is empty", "message": "etcdserver: user name is empty", "code": 3}),
        (400, {"error": "etcdserver: revision of auth store is old", "code": 3}),
        (200, {"error": {"grpc_code": 16, "message": "etcdserver: invalid auth token"}}),
        (401, b"Unauthorized"),
    ],
)
def test_b28_a_dead_token_is_replaced_whatever_call_says_so(
    model: Any, node: Any, answering: Answering, status: int, error: Any
) -> None:
    async def story() -> None:
        etcd = secured(model)
        a = node(etcd, "a", password="secret")
        await read(a)
        dead = a.gateway._token
        a.line.before = lambda url, path, body: (
            answering(error, status) if a.gateway._token == dead and not path.endswith("authenticate") else None
        )
        await read(a)
        assert paths(a) == ["authenticate", "txn", "txn", "authenticate", "txn"]

    run_virtual(story)


def test_b27_a_connection_that_is_closed_without_a_byte_may_mean_a_dead_token(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = secured(model)
        a = node(etcd, "a", members=2, password="secret")
        await read(a)
        dead = a.gateway._token

        def hang_up(url: str, path: str, body: Any) -> None:
            if a.gateway._token == dead:
                raise ConnectionResetError("RemoteProtocolError: Server disconnected without sending a response.")

        a.line.before = hang_up
        await read(a)
        assert paths(a) == ["authenticate", "txn", "txn", "authenticate", "txn"]
        assert set(members(a)) == {"1"}

    run_virtual(story)


def test_b27_a_member_that_goes_on_hanging_up_is_left_after_one_more_try(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a", members=2)

        def hang_up(url: str, path: str, body: Any) -> None:
            if "member-1" in url:
                raise ConnectionResetError("ReadError: ")

        a.line.before = hang_up
        await read(a)
        assert members(a) == ["1", "1", "2"]

    run_virtual(story)


def test_a_token_that_is_refused_again_at_once_is_not_fetched_for_ever(
    model: Any, node: Any, answering: Answering
) -> None:
    async def story() -> None:
        a = node(secured(model), "a", password="secret")
        refusal = {"error": "etcdserver: invalid auth token", "code": 16}
        a.line.before = lambda url, path, body: answering(refusal, 401) if path.endswith("txn") else None
        with pytest.raises(StoreUnavailable, match="a token that it has just given"):
            await read(a)
        assert paths(a) == ["authenticate", "txn", "authenticate", "txn"]

    run_virtual(story)


def test_a_wrong_password_is_named_without_being_repeated(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(secured(model), "a", password="hunter2")
        with pytest.raises(StoreUnavailable, match="does not accept the user cron") as failure:
            await a.store.observe()
        assert "hunter2" not in str(failure.value)

    run_virtual(story)


def test_an_etcd_without_authentication_is_used_without_and_warned_about(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a", password="secret")
        await read(a)
        await read(a)
        assert paths(a) == ["authenticate", "txn", "txn"]
        assert len(a.host.logged("username and password go unused")) == 1
        a.line.model.users["cron"] = "secret"
        await read(a)
        assert paths(a)[3:] == ["txn", "authenticate", "txn"]

    run_virtual(story)


CN = "CommonName of client sending a request against gateway will be ignored and not used as expected"


@pytest.mark.parametrize("said", [{"error": CN, "message": CN, "code": 3}, CN.encode() + b"\n"])
def test_b38_a_client_certificate_with_a_common_name_is_explained(
    model: Any, node: Any, answering: Answering, said: Any
) -> None:
    async def story() -> None:
        a = node(model(), "a")
        a.line.before = lambda url, path, body: answering(said, 400)
        with pytest.raises(StoreUnavailable, match="takes no client certificate that has a common name"):
            await a.store.observe()

    run_virtual(story)


def test_64_bit_numbers_cross_the_wire_as_text(model: Any, node: Any) -> None:
    async def story() -> None:
        a = node(model(), "a")
        await a.store.acquire(a.me, 15.0, nonce="n")
        numbers: list[str] = []
        sent = [json.dumps(body) for _, _, body in a.line.calls]
        for body in sent:
            json.loads(body, parse_int=numbers.append)
        assert len(sent) == 3
        assert numbers == []

    run_virtual(story)
