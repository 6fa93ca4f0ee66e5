"""A model of etcd behind its JSON gateway, and stores over it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from cronstable_etcd.gateway import Credentials, Gateway
from cronstable_etcd.lease import EtcdLeaseStore
from cronstable_etcd.settings import TlsFiles
from cronstable_etcd.tls import Tls

from cronstable.api import Grant, Held, Holder, HttpResponse, HttpStream, SecretSource
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import FakeHost

EPOCH = 1_790_000_000
"""Wall seconds of the model's clock when the loop's is 0."""


@pytest.fixture
def anyio_backend() -> str:
    """The backend that the daemon runs on."""
    return "asyncio"


class GrpcError(Exception):
    """An error as etcd says it."""

    def __init__(self, code: int, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(slots=True)
class Stored:
    value: bytes
    create: int
    mod: int
    lease: int


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unb64(text: str) -> bytes:
    return base64.b64decode(text)


def slim(entries: Mapping[str, Any]) -> dict[str, Any]:
    """As proto3 writes JSON: 64-bit numbers are strings, and what is zero, false or empty is left out."""
    plain = {k: str(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in entries.items()}
    return {k: v for k, v in plain.items() if v not in ("0", "", False, None, [])}


class Model:
    """One etcd cluster in memory, on the running loop's time. ``shortest``, ``longest``: bounds of a granted ttl."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[bytes, Stored] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        self.deleted: list[tuple[int, bytes]] = []
        self.longest = 1 << 40
        self.users: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.full = False
        self._changed = asyncio.Event()
        self._issued = 7_587_000_000_000_000_000

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def next_end(self) -> float:
        return min((end for _, end in self.leases.values()), default=self.now + 3600)

    def wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def changed(self) -> None:
        with anyio.move_on_after(max(0.0, self.next_end() - self.now) + 0.001):
            await self._changed.wait()

    def expire(self) -> None:
        for lease, (_, end) in list(self.leases.items()):
            if end <= self.now:
                self.revoke(lease)

    def revoke(self, lease: int) -> None:
        del self.leases[lease]
        gone = [key for key, stored in self.keys.items() if stored.lease == lease]
        if gone:
            self.revision += 1
        for key in gone:
            self.remove(key, self.revision)
        self.wake()

    def remove(self, key: bytes, revision: int) -> None:
        if self.keys.pop(key, None) is not None:
            self.deleted.append((revision, key))

    # -- by hand

    def put_by_hand(self, key: bytes, value: bytes, lease: int = 0) -> None:
        """As ``etcdctl put`` does."""
        put = {"key": b64(key), "value": b64(value), "lease": str(lease)}
        self.serve("/v3/kv/txn", {"success": [{"request_put": put}]}, None)

    def delete_by_hand(self, key: bytes) -> None:
        """As ``etcdctl del`` does."""
        self.serve("/v3/kv/txn", {"success": [{"request_delete_range": {"key": b64(key)}}]}, None)

    # -- the calls

    def serve(self, path: str, body: Mapping[str, Any], token: str | None) -> dict[str, Any]:
        self.expire()
        name = path.removeprefix("/v3/").replace("/", "_")
        if self.users and name not in ("auth_authenticate", "lease_keepalive", "lease_grant", "lease_revoke"):
            if token is None:
                raise GrpcError(3, "etcdserver: user name is empty", 400)
            if token not in self.tokens:
                raise GrpcError(16, "etcdserver: invalid auth token", 401)
        call = getattr(self, name, None)
        if call is None:
            raise GrpcError(12, "Not Found", 404)
        found = call(body)
        return {"header": {"cluster_id": "1", "revision": str(self.revision), "raft_term": "2"}, **found}

    def auth_authenticate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not self.users:
            raise GrpcError(9, "etcdserver: authentication is not enabled", 400)
        if self.users.get(body["name"]) != body["password"]:
            raise GrpcError(3, "etcdserver: authentication failed, invalid user ID or password", 400)
        token = f"token-{len(self.tokens)}-{self._next_id()}"
        self.tokens.add(token)
        return {"token": token}

    def _next_id(self) -> int:
        self._issued += 1
        return self._issued

    def lease_grant(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ttl = min(int(body["TTL"]), self.longest)
        lease = self._next_id()
        self.leases[lease] = (ttl, self.now + ttl)
        return slim({"ID": lease, "TTL": ttl})

    def lease_keepalive(self, body: Mapping[str, Any]) -> dict[str, Any]:
        lease = int(body["ID"])
        ttl, _ = self.leases.get(lease, (0, 0.0))
        ttl = min(ttl, self.longest)
        if ttl:
            self.leases[lease] = (self.leases[lease][0], self.now + ttl)
        return slim({"ID": lease, "TTL": ttl})

    def lease_revoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if int(body["ID"]) not in self.leases:
            raise GrpcError(5, "etcdserver: requested lease not found", 404)
        self.revoke(int(body["ID"]))
        return {}

    def kv_txn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        succeeded = all(self._holds(compare) for compare in body.get("compare", []))
        operations = body.get("success" if succeeded else "failure", [])
        puts = [op["request_put"] for op in operations if "request_put" in op]
        either = (*body.get("success", []), *body.get("failure", []))
        if self.full and any("request_put" in op for op in either):
            # By what it would cost at most, before anything is compared.
            raise GrpcError(8, "etcdserver: mvcc: database space exceeded", 429)
        if any(int(put.get("lease", 0)) not in (0, *self.leases) for put in puts):
            raise GrpcError(5, "etcdserver: requested lease not found", 404)
        if any(op for op in operations if "request_range" not in op):
            self.revision += 1
            self.wake()
        return slim({"succeeded": succeeded, "responses": [self._do(operation) for operation in operations]})

    def _holds(self, compare: Mapping[str, Any]) -> bool:
        stored = self.keys.get(unb64(compare["key"]), Stored(b"", 0, 0, 0))
        assert compare["result"] == "EQUAL"
        field_, have = {
            "CREATE": ("create_revision", stored.create),
            "MOD": ("mod_revision", stored.mod),
            "LEASE": ("lease", stored.lease),
        }[compare["target"]]
        return int(compare[field_]) == have

    def _do(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        ((kind, request),) = operation.items()
        key = unb64(request["key"])
        if kind == "request_put":
            old = self.keys.get(key)
            create = old.create if old is not None else self.revision
            self.keys[key] = Stored(unb64(request["value"]), create, self.revision, int(request.get("lease", 0)))
            return {"response_put": {"header": {"revision": str(self.revision)}}}
        if kind == "request_delete_range":
            for gone in self._range(key, unb64(request.get("range_end", ""))):
                self.remove(gone, self.revision)
            return {"response_delete_range": {"header": {"revision": str(self.revision)}}}
        found = self._range(key, unb64(request.get("range_end", "")))
        if request.get("sort_target") == "CREATE":
            found.sort(key=lambda k: self.keys[k].create)
        if request.get("sort_order") == "DESCEND":
            found.reverse()
        bare, count = request.get("keys_only", False), len(found)
        shown = [] if request.get("count_only") else found[: int(request.get("limit", 0)) or None]
        return {
            "response_range": slim(
                {"kvs": [self._kv(k, bare) for k in shown], "count": count, "more": len(shown) < count}
            )
        }

    def _range(self, key: bytes, end: bytes) -> list[bytes]:
        return sorted(k for k in self.keys if (key <= k < end if end else k == key))

    def _kv(self, key: bytes, bare: bool) -> dict[str, Any]:
        s = self.keys[key]
        value = "" if bare else b64(s.value)
        entries = {"key": b64(key), "value": value, "create_revision": s.create, "mod_revision": s.mod}
        return slim({**entries, "version": 1, "lease": s.lease})

    async def watch(self, request: Mapping[str, Any]) -> AsyncIterator[bytes]:
        key, seen = unb64(request["key"]), int(request["start_revision"]) - 1
        assert request["filters"] == ["NOPUT"], "what the model cannot watch for"
        yield json.dumps({"result": {"header": {"revision": str(self.revision)}, "created": True}}).encode()
        while True:
            self.expire()
            news = [revision for revision, gone in self.deleted if gone == key and revision > seen]
            if news:
                event = {"type": "DELETE", "kv": {"key": b64(key), "mod_revision": str(news[-1])}}
                yield json.dumps({"result": {"header": {}, "events": [event]}}).encode()
                seen = news[-1]
            await self.changed()


Script = Callable[[str, str, dict[str, Any]], HttpResponse | None | Coroutine[Any, Any, HttpResponse | None]]


@dataclass
class Line:
    """One node's way to the model: an ``Http`` with ``HttpStreams``.

    ``before(url, path, body)`` sees each call and may answer in etcd's place, raise or hang; ``after`` the same once
    it has been carried out. ``calls``: (member, path, body) in order. ``cut``: None, "refused" or "silent".
    ``tls``: the context of the last call.
    """

    model: Model
    before: Script = lambda url, path, body: None
    after: Script = lambda url, path, body: None
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    cut: str | None = None
    watches: int = 0
    tls: ssl.SSLContext | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        assert method == "POST"
        member, slash, rest = url.partition("/v3/")
        path, body = slash + rest, json.loads(content)
        self.calls.append((member, path, body))
        self.tls = tls
        try:
            with anyio.fail_after(timeout):
                await self._reach()
                scripted = await _settle(self.before(member, path, body))
                answer = scripted or self._serve(path, body, headers.get("authorization"))
                return await _settle(self.after(member, path, body)) or answer
        except TimeoutError:
            raise TimeoutError(f"no answer from {member}") from None

    async def _reach(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.cut == "refused":
            raise OSError("ConnectError: All connection attempts failed")
        if self.cut == "silent":
            await anyio.Event().wait()

    def _serve(self, path: str, body: dict[str, Any], token: str | None) -> HttpResponse:
        try:
            result = self.model.serve(path, body, token)
        except GrpcError as error:
            document = {"error": error.message, "message": error.message, "code": error.code}
            return HttpResponse(error.status, {}, json.dumps(document).encode())
        if path == "/v3/lease/keepalive":
            result = {"result": result}
        date = formatdate(EPOCH + self.model.now, usegmt=True)
        return HttpResponse(200, {"date": date}, json.dumps(result).encode() + b"\n")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes = b"",
        timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[HttpStream]:
        with anyio.fail_after(timeout):
            await self._reach()
        self.watches += 1
        yield HttpStream(200, {}, self.model.watch(json.loads(content)["create_request"]))


async def _settle(value: Any) -> Any:
    return await value if isinstance(value, Coroutine) else value


@pytest.fixture
def answering() -> Callable[..., HttpResponse]:
    """An answer as a script gives it: ``answering({...}, status=200)`` or bytes as they are."""

    def make(document: Any, status: int = 200) -> HttpResponse:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        return HttpResponse(status, {}, content)

    return make


class Node:
    """One process on a model: its host, its line and its store. Make it inside the loop."""

    def __init__(self, model: Model, name: str, *, members: int = 1, watch: float = 0.0, ttl: float = 15.0, **kw: Any):
        self.line = Line(model)
        self.host = FakeHost(VirtualClock.of_loop(), name, http=self.line)
        self.me = Holder(name, self.host.ids.token())
        credentials = None
        if "password" in kw:
            credentials = Credentials("cron", SecretSource(value=kw["password"]))
        members_ = [f"http://member-{i + 1}:2379" for i in range(members)]
        self.tls = Tls(TlsFiles(), self.host)
        self.gateway = Gateway(self.host, members_, post_timeout=1.8, tls=self.tls, credentials=credentials)
        self.store = EtcdLeaseStore(self.host, self.gateway, "cronstable/leader", ttl=ttl, watch=watch)

    def nonce(self) -> str:
        return self.host.ids.token(8)

    async def win(self) -> Grant:
        answer = await self.store.acquire(self.me, 15.0, nonce=self.nonce())
        assert isinstance(answer, Held), answer
        return answer.grant

    async def renewed(self, grant: Grant) -> Grant:
        answer = await self.store.renew(grant, nonce=self.nonce())
        assert isinstance(answer, Held), answer
        return answer.grant


@pytest.fixture
def model() -> type[Model]:
    return Model


@pytest.fixture
def node() -> type[Node]:
    return Node
