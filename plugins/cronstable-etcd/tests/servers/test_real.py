"""Real etcd servers: killed, paused, restarted, one and three, with authentication and with TLS."""

from __future__ import annotations

import base64
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from cronstable_etcd.backend import make
from cronstable_etcd.gateway import Credentials
from cronstable_etcd.settings import TlsFiles, parse
from cronstable_etcd.state import EtcdStateStore

from cronstable.api import (
    Grant,
    Held,
    Holder,
    PluginError,
    SecretSource,
    Seen,
    StoreUnavailable,
    Taken,
    Vacant,
    Won,
)
from cronstable.runtime.system import SystemClock
from cronstable.runtime.threads import ThreadLanes

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

A, B = Holder("node-a", "aaaaaaaaaaaa"), Holder("node-b", "bbbbbbbbbbbb")
LONG = 60.0
"""A ttl that no test outlives."""

PATIENCE = 60.0
"""Seconds for what takes milliseconds on an idle machine."""


async def win(store: Any, me: Holder = A, ttl: float = LONG, nonce: str = "n0") -> Grant:
    answer = await store.acquire(me, ttl, nonce=nonce)
    assert isinstance(answer, Held), answer
    return answer.grant


async def renewed(store: Any, grant: Grant, nonce: str) -> Grant:
    answer = await store.renew(grant, nonce=nonce)
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


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await SystemClock().sleep(0.05)


def started(election: Any, host: Any) -> Any:
    async def run(*, task_status: Any) -> None:
        await election.run(host, task_status=task_status)

    return run


async def until_vacant(store: Any) -> Vacant:
    with anyio.fail_after(PATIENCE):
        while True:
            answer = await store.observe()
            if isinstance(answer, Vacant):
                return answer


# -- one member


async def test_a_release_ends_the_watch_of_a_waiting_node(shared_etcd: Any, real: Any) -> None:
    await shared_etcd.ready()
    leader = real(shared_etcd.urls, "watched", ttl=LONG).store
    # If the watch did not tell, nobody would look again before the deadline of this test.
    waiting = real(shared_etcd.urls, "watched", ttl=LONG, watch=10 * PATIENCE).store
    grant = await win(leader)
    assert isinstance(await waiting.observe(), Seen)
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await waiting.observe())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for number in range(5):
                grant = await renewed(leader, grant, f"n{number}")
            assert answers == []
            await leader.release(grant, ["r1"])
    assert answers == [Vacant(grant.fence, ("r1",))]


async def test_a_dead_holders_key_goes_with_its_lease_and_the_watch_tells(shared_etcd: Any, real: Any) -> None:
    await shared_etcd.ready()
    dead = real(shared_etcd.urls, "expires", ttl=3.0).store
    waiting = real(shared_etcd.urls, "expires", ttl=3.0, watch=10 * PATIENCE).store
    grant = await win(dead, ttl=3.0)
    vacant = await until_vacant(waiting)
    assert vacant == Vacant(grant.fence)
    assert (await win(waiting, B, ttl=3.0)).fence > grant.fence


async def test_a_lease_revoked_by_hand_is_noticed_at_the_next_renewal(shared_etcd: Any, real: Any) -> None:
    await shared_etcd.ready()
    store = real(shared_etcd.urls, "revoked", ttl=LONG).store
    grant = await win(store)
    await shared_etcd.call("/v3/lease/revoke", {"ID": str(store.lease_id)}, timeout=20)
    assert await store.renew(grant, nonce="n1") == Vacant(grant.fence)
    assert (await win(store, nonce="n2")).fence > grant.fence


async def test_a_key_put_by_hand_is_removed_after_one_ttl_and_not_before(shared_etcd: Any, real: Any) -> None:
    await shared_etcd.ready()
    one = real(shared_etcd.urls, "by-hand", ttl=3.0)
    key, value = (base64.b64encode(text).decode() for text in (b"by-hand", b"me"))
    await shared_etcd.call("/v3/kv/put", {"key": key, "value": value}, timeout=20)
    before = one.host.clock.now().boot
    seen = await one.store.observe()
    assert isinstance(seen, Seen)
    assert seen.record.holder == Holder("me", "")
    await until_vacant(one.store)
    assert one.host.clock.now().boot - before >= 3.0
    await win(one.store)


async def test_a_key_deleted_by_hand_waits_for_its_lease(shared_etcd: Any, real: Any) -> None:
    await shared_etcd.ready()
    holder, other = (real(shared_etcd.urls, "deleted", ttl=6.0).store for _ in range(2))
    grant = await win(holder, ttl=6.0)
    await shared_etcd.call("/v3/kv/deleterange", {"key": base64.b64encode(b"deleted").decode()}, timeout=20)
    answer = await other.acquire(B, 6.0, nonce="n1")
    assert isinstance(answer, Seen)
    assert answer.record.holder == A
    assert await until_vacant(other) == Vacant(grant.fence)
    await win(other, B)


async def test_an_etcd_that_was_killed_and_comes_back_keeps_the_term(make_cluster: Any, real: Any) -> None:
    cluster = make_cluster()
    await cluster.ready()
    one = real(cluster.urls, ttl=LONG)
    grant = await win(one.store)
    cluster.stop()
    with pytest.raises(StoreUnavailable):
        await one.store.renew(grant, nonce="n1")
    cluster.start()
    again = await eventually(lambda: one.store.renew(grant, nonce="n2"))
    assert isinstance(again, Held)
    assert again.grant.fence == grant.fence


async def test_an_etcd_that_is_paused_is_unavailable_until_it_wakes(make_cluster: Any, real: Any) -> None:
    cluster = make_cluster()
    await cluster.ready()
    one = real(cluster.urls, ttl=LONG, post_timeout=2.0)
    grant = await win(one.store)
    cluster.members[0].send(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="no answer within 2 s"):
        await one.store.renew(grant, nonce="n1")
    cluster.members[0].send(signal.SIGCONT)
    # Whether the first try landed is nobody's guess: its nonce is among those that were tried.
    unsure = Grant(grant.holder, grant.fence, grant.nonce, grant.ttl, tried=("n1",), data=grant.data)
    again = await eventually(lambda: one.store.renew(unsure, nonce="n2"))
    assert isinstance(again, Held)


# -- three members


async def raft_leader(cluster: Any) -> int:
    """Index of the member that leads among etcd's own."""
    with anyio.fail_after(PATIENCE):
        while True:
            for number, member in enumerate(cluster.members):
                status = await cluster.call("/v3/maintenance/status", {}, timeout=5, only=member)
                if status["header"]["member_id"] == status.get("leader"):
                    return number
            await SystemClock().sleep(0.1)


async def test_of_three_members_the_leading_one_may_be_paused_and_killed_while_a_majority_is_left(
    make_cluster: Any, real: Any
) -> None:
    cluster = make_cluster(3)
    await cluster.ready()
    number = await raft_leader(cluster)
    # Asked first, so that it is the one that fails.
    urls = cluster.urls[number:] + cluster.urls[:number]
    leader, follower = (real(urls, ttl=LONG, post_timeout=3.0).store for _ in range(2))
    grant = await win(leader)
    assert isinstance(await leader.append(grant, 1, b"1"), Won)
    paused, *others = cluster.members[number:] + cluster.members[:number]
    paused.send(signal.SIGSTOP)
    answer = await eventually(lambda: leader.append(grant, 2, b"2"))
    assert isinstance(answer, Won) or answer == Taken(b"2")
    renewed_ = await eventually(lambda: leader.renew(grant, nonce="n1"))
    assert isinstance(renewed_, Held)
    assert renewed_.grant.fence == grant.fence
    assert isinstance(await eventually(follower.observe), Seen)
    paused.send(signal.SIGCONT)
    for member in others:
        member.stop()
    with pytest.raises(StoreUnavailable):
        await leader.append(grant, 3, b"3")
    others[0].start(cluster.initial)
    answer = await eventually(lambda: leader.append(grant, 3, b"3"))
    assert isinstance(answer, Won) or answer == Taken(b"3")
    await eventually(follower.span)
    assert [await follower.read(number) for number in (1, 2, 3, 4)] == [b"1", b"2", b"3", None]
    await eventually(lambda: leader.release(renewed_.grant, ()))
    assert (await eventually(lambda: win(follower, B))).fence > grant.fence


# -- authentication


def cron(password: str = "s3cret") -> Credentials:
    return Credentials("cron", SecretSource(value=password))


async def test_a_user_elects_below_its_own_prefix_and_nowhere_else(
    make_cluster: Any, real: Any, with_users: Any
) -> None:
    cluster = make_cluster()
    await cluster.ready()
    await with_users(cluster)
    store = real(cluster.urls, "cron/leader", ttl=LONG, credentials=cron()).store
    waiting = real(cluster.urls, "cron/leader", ttl=LONG, credentials=cron(), watch=10 * PATIENCE).store
    grant = await renewed(store, await win(store), "n1")
    assert await store.mark_reboot(grant, "set", "job", nonce="m")
    await waiting.observe()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.observe)
            await store.release(grant, ())
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await real(cluster.urls, "elsewhere", credentials=cron()).store.observe()
    with pytest.raises(StoreUnavailable, match="does not accept the user cron"):
        await real(cluster.urls, "cron/leader", credentials=cron("wrong")).store.observe()
    with pytest.raises(StoreUnavailable, match="user name is empty"):
        await real(cluster.urls, "cron/leader").store.observe()


async def test_b28_b29_a_token_that_expired_is_replaced_and_the_lease_kept(
    make_cluster: Any, real: Any, with_users: Any
) -> None:
    cluster = make_cluster(extra=["--auth-token-ttl", "1"])
    await cluster.ready()
    await with_users(cluster)
    one = real(cluster.urls, "cron/leader", ttl=LONG, credentials=cron())
    grant = await win(one.store)
    lease, token = one.store.lease_id, one.gateway._token
    range_ = {"key": base64.b64encode(b"cron/x").decode()}
    with anyio.fail_after(PATIENCE):
        while True:
            # A look with the token would refresh it: wait for longer than it lives between two looks.
            await SystemClock().sleep(2.5)
            answer = await cluster.call("/v3/kv/range", range_, timeout=20, headers={"authorization": token})
            if answer["status"] == 401:
                break
    grant = await renewed(one.store, grant, "n1")
    assert one.gateway._token != token
    assert (one.store.lease_id, grant.fence) == (lease, grant.fence)


async def test_authentication_that_is_switched_on_later_is_met_with_a_token(
    make_cluster: Any, real: Any, with_users: Any
) -> None:
    cluster = make_cluster()
    await cluster.ready()
    one = real(cluster.urls, "cron/leader", ttl=LONG, credentials=cron())
    grant = await win(one.store)
    assert one.host.logged("no authentication enabled")
    await with_users(cluster)
    await renewed(one.store, grant, "n1")


# -- TLS


@dataclass
class Authority:
    """Certificates of one CA on disk, for servers and clients."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.issue()

    def issue(self, common_name: str | None = None) -> None:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(self.directory / "ca.pem"))
        for name, leaf in (
            ("server", ca.issue_cert("127.0.0.1", "localhost")),
            ("client", ca.issue_cert("client.example", common_name=common_name)),
        ):
            leaf.cert_chain_pems[0].write_to_path(str(self.directory / f"{name}.pem"))
            leaf.private_key_pem.write_to_path(str(self.directory / f"{name}.key"))

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(*(str(self.directory / name) for name in ("ca.pem", "client.pem", "client.key")))

    @property
    def flags(self) -> list[str]:
        paths = [str(self.directory / name) for name in ("server.pem", "server.key", "ca.pem")]
        return [
            *("--cert-file", paths[0], "--key-file", paths[1]),
            *("--client-cert-auth", "--trusted-ca-file", paths[2]),
        ]

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.ca)
        assert self.files.cert is not None
        context.load_cert_chain(self.files.cert, self.files.key)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


async def test_members_and_clients_prove_themselves(
    make_cluster: Any, real: Any, authority: Authority, tmp_path: Path
) -> None:
    cluster = make_cluster(scheme="https", extra=authority.flags)
    await cluster.ready(tls=authority.context())
    one = real(cluster.urls, ttl=LONG, files=authority.files)
    await one.tls.load()
    grant = await win(one.store)
    waiting = real(cluster.urls, ttl=LONG, files=authority.files, watch=10 * PATIENCE)
    await waiting.tls.load()
    await waiting.store.observe()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.store.observe)
            await one.store.release(grant, ())
    stranger = real(cluster.urls, files=Authority(tmp_path / "others").files)
    await stranger.tls.load()
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await stranger.store.observe()
    nobody = real(cluster.urls, files=TlsFiles(ca=authority.files.ca))
    await nobody.tls.load()
    with pytest.raises(StoreUnavailable):
        await nobody.store.observe()


async def test_certificates_that_are_rotated_cost_neither_lease_nor_term(
    make_cluster: Any, real: Any, authority: Authority
) -> None:
    cluster = make_cluster(scheme="https", extra=authority.flags)
    await cluster.ready(tls=authority.context())
    one = real(cluster.urls, ttl=LONG, files=authority.files)
    await one.tls.load()
    grant = await win(one.store)
    lease = one.store.lease_id
    authority.issue()
    cluster.stop()
    cluster.start()
    await cluster.ready(tls=authority.context())
    with pytest.raises(StoreUnavailable):
        await one.store.renew(grant, nonce="n1")
    await one.tls.refresh()
    grant = await renewed(one.store, grant, "n2")
    assert one.store.lease_id == lease


async def test_b38_a_certificate_with_a_common_name_under_auth_is_explained(
    make_cluster: Any, real: Any, with_users: Any, authority: Authority
) -> None:
    plain = authority.context()
    cluster = make_cluster(scheme="https", extra=authority.flags)
    await cluster.ready(tls=plain)
    await with_users(cluster, tls=plain)
    good = real(cluster.urls, "cron/leader", files=authority.files, credentials=cron(), ttl=LONG)
    await good.tls.load()
    await win(good.store)
    authority.issue(common_name="cron")
    cluster.stop()
    cluster.start()
    named = real(cluster.urls, "cron/leader", files=authority.files, ttl=LONG)
    await named.tls.load()
    said: list[str] = []
    with anyio.fail_after(PATIENCE):
        while not any("takes no client certificate that has a common name" in text for text in said):
            with pytest.raises(StoreUnavailable) as refusal:
                await named.store.observe()
            said.append(str(refusal.value))


async def test_the_backend_as_configured_leads_with_user_and_tls_and_survives_a_new_password(
    make_cluster: Any, real: Any, with_users: Any, authority: Authority, tmp_path: Path
) -> None:
    cluster = make_cluster(scheme="https", extra=authority.flags)
    await cluster.ready(tls=authority.context())
    await with_users(cluster, tls=authority.context())
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    files = authority.files
    settings = parse(
        {
            "endpoints": list(cluster.urls),
            "electionName": "cron/leader",
            "ttl": 9,
            "username": "cron",
            "password": {"fromFile": str(password)},
            "tls": {"ca": files.ca, "cert": files.cert, "key": files.key},
        }
    )
    host = real(cluster.urls).host
    host.threads = ThreadLanes()
    election = make(host.context("etcd", settings), host)
    with anyio.fail_after(2 * PATIENCE):
        async with anyio.create_task_group() as tasks:
            await tasks.start(started(election, host))
            await until(lambda: election.view().is_leader)
            root = (
                await cluster.call(
                    "/v3/auth/authenticate", {"name": "root", "password": "r00t"}, timeout=20, tls=authority.context()
                )
            )["token"]
            password.write_text("n3w\n")
            changed = await cluster.call(
                "/v3/auth/user/changepw",
                {"name": "cron", "password": "n3w"},
                timeout=20,
                tls=authority.context(),
                headers={"authorization": root},
            )
            assert changed["status"] == 200
            before: Any = election.view().lease

            def shown() -> Any:
                return election.view().lease

            # Renewed twice: whatever was under way when the password changed was not all.
            await until(lambda: (shown().expiry or 0) > before.expiry + 4)
            assert election.view().is_leader
            assert shown().fields == before.fields
            tasks.cancel_scope.cancel()
    assert "s3cret" not in str(host.log_lines)
    assert not host.logged("leadership lost: the")


async def test_a_key_that_does_not_fit_its_certificate_is_said_at_the_start(real: Any, authority: Authority) -> None:
    files = TlsFiles(authority.files.ca, authority.files.cert, str(authority.directory / "server.key"))
    with pytest.raises(PluginError, match=r"tls\.cert.*cannot be used"):
        await real(["https://127.0.0.1:1"], files=files).tls.load()


# -- state


async def call_ok(cluster: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await cluster.call(path, body, timeout=20)
    assert answer["status"] == 200, (path, answer)
    return answer


async def test_a_state_store_in_an_etcd_that_fills_up_and_stops_loses_nothing_acknowledged(
    make_cluster: Any, real: Any
) -> None:
    cluster = make_cluster(extra=["--quota-backend-bytes", str(4 << 20)])
    await cluster.ready()
    one = real(cluster.urls)
    store = EtcdStateStore(one.host, one.gateway, one.tls, "cronstable/state", "here")
    await store.open()
    kept: list[bytes] = []

    async def fill() -> None:
        for number in range(200):
            data = b"%03d" % number + b"x" * 100_000
            await store.append("logs/a", data)
            kept.append(data)

    with pytest.raises(StoreUnavailable, match="database space exceeded"):
        await fill()
    # The one that crossed the line may be there although it was refused.
    there = [record.data for record in await store.read("logs/a")]
    assert there[: len(kept)] == kept
    assert len(there) <= len(kept) + 1
    # What an operator does: make room, compact, defragment, disarm.
    await store.trim("logs/a", 1)
    found = await call_ok(cluster, "/v3/kv/range", {"key": "eA=="})
    await call_ok(cluster, "/v3/kv/compaction", {"revision": found["header"]["revision"], "physical": True})
    await call_ok(cluster, "/v3/maintenance/defragment", {})
    (alarm,) = (await call_ok(cluster, "/v3/maintenance/alarm", {"action": "GET"}))["alarms"]
    await call_ok(cluster, "/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    name = await eventually(lambda: store.append("logs/a", b"after"))
    (member,) = cluster.members
    member.stop()
    with pytest.raises(StoreUnavailable):
        await store.append("logs/a", b"lost")
    member.start(cluster.initial)
    await eventually(store.open)
    last = (await store.read("logs/a"))[-1]
    assert (last.name, last.data) == (name, b"after")


async def test_a_release_in_an_etcd_that_is_full_ends_the_lease_and_is_no_failure(make_cluster: Any, real: Any) -> None:
    cluster = make_cluster(extra=["--quota-backend-bytes", str(4 << 20)])
    await cluster.ready()
    one = real(cluster.urls, ttl=LONG)
    grant = await win(one.store)
    state = EtcdStateStore(one.host, one.gateway, one.tls, "cronstable/state", "here")
    await state.open()

    async def fill() -> None:
        for _ in range(200):
            await state.append("logs/a", b"x" * 100_000)

    with pytest.raises(StoreUnavailable, match="database space exceeded"):
        await fill()
    # If it were tried again, that would go on for the whole ttl, and then raise.
    with anyio.fail_after(PATIENCE):
        await one.store.release(grant, ())
    assert await one.store.observe() == Vacant(grant.fence)


async def test_a_user_keeps_state_below_its_own_prefix_and_nowhere_else(shared_users_etcd: Any, real: Any) -> None:
    await shared_users_etcd.as_root("/v3/kv/range", {"key": "eA=="})
    one = real(shared_users_etcd.urls, credentials=cron())
    store = EtcdStateStore(one.host, one.gateway, one.tls, "cron/state", "here")
    await store.open()
    await store.append("s", b"1")
    await store.trim("s", 0)
    assert list(await store.streams()) == []
    assert isinstance(await store.lease("l").acquire(A, LONG, nonce="n"), Held)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await EtcdStateStore(one.host, one.gateway, one.tls, "elsewhere", "here").open()
