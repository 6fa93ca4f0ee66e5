"""A real kube-apiserver: its roles, a restart, an etcd that hangs, watches; and Kubernetes' own client."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from cronstable_k8s import library
from cronstable_k8s.settings import parse

from cronstable.api import Grant, Held, Holder, PluginError, Seen, StoreUnavailable, Vacant, Won
from cronstable.runtime.system import SystemClock

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kubernetes,
    pytest.mark.anyio,
    # A TLS handshake with a server that is just going down leaves its socket to the garbage collector (anyio, httpx).
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

A, B = Holder("node-a", "aaaaaaaaaaaa"), Holder("node-b", "bbbbbbbbbbbb")
PATIENCE = 60.0
RULES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


async def win(store: Any, me: Holder = A, nonce: str = "n0") -> Grant:
    answer = await store.acquire(me, 60.0, nonce=nonce)
    assert isinstance(answer, Held), answer
    return answer.grant


async def eventually(call: Callable[[], Awaitable[Any]]) -> Any:
    """What ``call`` gives once the store is available again."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await SystemClock().sleep(0.1)


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Any:
    """The apiserver of our own; whatever a kubeconfig names is not to be stopped or given roles."""
    if request.getfixturevalue("foreign"):
        pytest.skip("needs an apiserver of its own, and KUBECONFIG names another")
    return request.getfixturevalue("cluster")


@pytest.fixture
def down(own: Any) -> Iterator[Any]:
    """What is stopped in a test runs after it."""
    yield own
    own.stop()
    own.start_etcd()
    own.start_apiserver()
    own.wait_ready()


async def grant_role(real: Any, name: str, verbs: list[str]) -> None:
    admin = await real()
    about = {"metadata": {"name": name}, "apiVersion": "rbac.authorization.k8s.io/v1"}
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [{**lease, "resourceNames": [name], "verbs": verbs}, {**lease, "verbs": ["create"]}]
    subject = {"kind": "User", "name": "cronstable", "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    for kind, body in (("Role", {"rules": rules}), ("RoleBinding", {"subjects": [subject], "roleRef": ref})):
        answer = await admin.call("POST", "", {**about, "kind": kind, **body}, path=f"{RULES}/{kind.lower()}s")
        assert answer.status == 201, answer


async def allowed(store: Any) -> Any:
    """The first observation under a role that was just made."""
    return await eventually(store.observe)


async def test_the_smallest_role_is_enough_and_polls(own: Any, real: Any) -> None:
    await grant_role(real, "test-small", ["get", "update"])
    client = await real("plain-token")
    one, two = client.store("test-small"), client.store("test-small", watch=30.0, pace=0.2)
    assert await allowed(one) == Vacant(None)
    grant = await win(one)
    with anyio.fail_after(PATIENCE):
        for _ in range(3):
            assert isinstance(await two.observe(), Seen)
    assert client.host.logged("the role allows no watch")
    await one.put_entry(b"entry")
    assert isinstance(await one.append(grant, 1, b"r"), Won)
    await one.release(grant, ("r1",))
    assert await two.observe() == Vacant(grant.fence, ("r1",))


async def test_the_role_of_the_example_allows_the_watch_of_that_one_lease(own: Any, real: Any) -> None:
    await grant_role(real, "test-watch", ["get", "update", "watch"])
    client = await real("plain-token")
    one, two = client.store("test-watch"), client.store("test-watch", watch=10 * PATIENCE)
    await allowed(one)
    grant = await win(one)
    assert isinstance(await two.observe(), Seen)
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await two.observe())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await one.put_entry(b"an entry is no news")
            assert answers == []
            await one.release(grant, ("r1",))
    assert answers == [Vacant(grant.fence, ("r1",))]


async def test_without_a_role_or_with_a_bad_token_nothing_is_vacant(own: Any, real: Any) -> None:
    for token, code in (("plain-token", "403"), ("no-such-token", "401")):
        store = (await real(token)).store("test-forbidden")
        for call in (store.observe, lambda store=store: store.acquire(A, 60.0, nonce="n1")):
            with pytest.raises(StoreUnavailable, match=code):
                await call()


async def test_a_missing_namespace_is_no_vacancy_that_can_be_filled(real: Any) -> None:
    client = await real()
    client.namespace = "test-nowhere"
    with pytest.raises(StoreUnavailable, match="is there a namespace test-nowhere"):
        await client.store("test-lost").acquire(A, 60.0, nonce="n1")


async def test_a_term_outlives_a_restart_of_the_apiserver(down: Any, real: Any) -> None:
    client = await real()
    store = client.store("test-restart", timeout=3.0)
    grant = await win(store)
    down.kill("apiserver")
    with pytest.raises(StoreUnavailable):
        await store.renew(grant, nonce="n1")
    down.start_apiserver()
    answer = await eventually(lambda: store.renew(grant, nonce="n2"))
    assert isinstance(answer, Held)
    assert answer.grant.fence == grant.fence


async def test_an_etcd_that_hangs_costs_a_request_its_own_deadline_and_no_term(down: Any, real: Any) -> None:
    client = await real()
    grant = await win(client.store("test-hang"))
    store = client.store("test-hang", timeout=1.0)
    # So that the next request is the write: a new handle reads first.
    assert isinstance(await eventually(store.observe), Seen)
    down.send("etcd", signal.SIGSTOP)
    with anyio.fail_after(PATIENCE), pytest.raises(StoreUnavailable) as caught:
        await store.renew(grant, nonce="n1")
    assert caught.value.ambiguous
    down.send("etcd", signal.SIGCONT)
    unsure = Grant(grant.holder, grant.fence, grant.nonce, grant.ttl, tried=("n1",))
    answer = await eventually(lambda: store.renew(unsure, nonce="n2"))
    assert isinstance(answer, Held)


async def test_a_window_of_claims_fits_into_a_real_lease(real: Any) -> None:
    client = await real()
    store = client.store("test-claims")
    grant = await win(store)
    for number in range(1, 41):
        record = json.dumps(
            {"n": f"nonce-{number}", "s": [[f"job-{i:04d}", 60 * number, 0] for i in range(50)]}
        ).encode()
        assert isinstance(await store.append(grant, number, record), Won)
    other = client.store("test-claims")
    assert (await other.span()).last == 40
    assert json.loads(await other.read(40))["n"] == "nonce-40"
    await store.trim(grant, 39)
    assert (await other.span()).first == 39
    await client.call("DELETE", "test-claims")


# -- Kubernetes' own client


async def test_the_library_speaks_the_same(real: Any, kubeconfig: Any) -> None:
    client = await real()
    settings = parse({"kubeconfig": str(kubeconfig()), "clientLibrary": "library"})
    transport = await library.connect(client.host, settings)
    one = client.store("test-library", transport=transport)
    two = client.store("test-library", transport=transport, watch=PATIENCE)
    assert await one.observe() == Vacant(None)
    grant = await win(one)
    assert isinstance(await two.observe(), Seen)
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await two.observe())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            renewed = await one.renew(grant, nonce="n1")
            assert isinstance(renewed, Held)
    assert isinstance(answers[0], Seen)
    assert answers[0].record.nonce in ("n0", "n1")
    assert isinstance(await one.append(grant, 1, b"r"), Won)
    await one.release(renewed.grant, ("r1",))
    assert await one.observe() == Vacant(grant.fence, ("r1",))
    await client.call("DELETE", "test-library")
    assert await one.observe() == Vacant(None)


async def test_the_library_raises_nothing_but_what_a_transport_may(own: Any, real: Any, kubeconfig: Any) -> None:
    client = await real()
    settings = parse({"kubeconfig": str(kubeconfig("no-such-token")), "clientLibrary": "library"})
    transport = await library.connect(client.host, settings)
    with pytest.raises(StoreUnavailable, match="401"):
        await client.store("test-library", transport=transport).observe()
    nowhere = parse({"kubeconfig": str(kubeconfig()), "apiServer": "https://127.0.0.1:1", "clientLibrary": "library"})
    transport = await library.connect(client.host, nowhere)
    with pytest.raises(StoreUnavailable, match="the client library"):
        await client.store("test-library", transport=transport, timeout=3.0).observe()
    with pytest.raises(PluginError, match="found no credentials"):
        await library.connect(client.host, parse({"kubeconfig": "/nowhere/kubeconfig"}))
