"""A stand-in for a kube-apiserver, as far as Leases go: in memory for tests, or as a process of its own.

It answers as a real one does, the odd answers first of all; the tests that hold it to that also run against a real
apiserver. As a process: ``python apiserver.py --port 8001 [--token T] [--cert FILE --key FILE]``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

GROUP = "/apis/coordination.k8s.io/v1"
ALL_VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete"})
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(?:Z|[+-]\d\d:\d\d)")
NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
MOST_ANNOTATIONS = 256 * 1024


class Refusal(Exception):
    """An answer that is a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        if details is not None:
            self.body["details"] = dict(details)


@dataclass(frozen=True)
class Reply:
    """An answer: JSON, or text as it is."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode() + b"\n"


def about(name: str, kind: str = "leases", group: str = "coordination.k8s.io") -> dict[str, Any]:
    return {"name": name, "group": group, "kind": kind} if group else {"name": name, "kind": kind}


class ApiServer:
    """Leases in memory. ``now``: wall seconds.

    ``tokens``: bearer tokens that are known, empty: all are let in. ``verbs``: what their role allows.
    """

    def __init__(self, now: Callable[[], float], namespaces: tuple[str, ...] = ("default",)) -> None:
        self._now = now
        self.namespaces = set(namespaces)
        self.tokens: set[str] = set()
        self.verbs = set(ALL_VERBS)
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100
        self.compacted = 0
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self._made = 0
        self._changed = asyncio.Event()

    # -- by hand

    def lease(self, name: str = "cronstable-leader", namespace: str = "default") -> dict[str, Any]:
        """As ``kubectl get lease -o json``; a copy."""
        found: dict[str, Any] = json.loads(json.dumps(self.leases[namespace, name]))
        return found

    def edit(self, change: Callable[[dict[str, Any]], object], name: str = "cronstable-leader") -> None:
        """As ``kubectl edit``."""
        lease = self.lease(name)
        change(lease)
        self._store("MODIFIED", "default", name, lease)

    def delete(self, name: str = "cronstable-leader", namespace: str = "default") -> None:
        """As ``kubectl delete``."""
        gone = self.leases.pop((namespace, name), None)
        if gone is not None:
            self.version += 1
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._tell("DELETED", gone)

    def compact(self) -> None:
        """Forget what happened so far: a watch from before is too old."""
        self.compacted = self.version
        self.history.clear()

    # -- requests

    def handle(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """One exchange that is not a watch. ``headers`` have lower-case names."""
        try:
            reply = self._route(method, url, headers, content)
        except Refusal as refusal:
            reply = Reply(refusal.code, refusal.body)
        return Reply(reply.status, reply.body, {"date": formatdate(self._now(), usegmt=True), **reply.headers})

    def is_watch(self, url: str) -> bool:
        return parse_qs(urlsplit(url).query).get("watch") in (["true"], ["1"])

    def may_watch(self, url: str, headers: Mapping[str, str]) -> Reply | None:
        """Why a watch does not begin, None when it does."""
        try:
            user = self._authenticate(headers)
            namespace, _ = self._split(url)
            self._authorize(user, "watch", namespace, "")
        except Refusal as refusal:
            return Reply(refusal.code, refusal.body)
        return None

    async def watch(self, url: str) -> AsyncIterator[bytes]:
        """The lines of a watch that was let in."""
        namespace, _ = self._split(url)
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        seen = int(query.get("resourceVersion", "0"))
        if seen < self.compacted:
            gone = Refusal(410, "Expired", f"too old resource version: {seen} ({self.version})")
            yield line("ERROR", gone.body)
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds", "3600"))
        while True:
            changed = self._changed
            for version, kind, lease in [event for event in self.history if event[0] > seen]:
                seen = version
                meta = lease["metadata"]
                if meta["namespace"] == namespace and name in ("", meta["name"]):
                    yield line(kind, lease)
            try:
                async with asyncio.timeout_at(end):
                    await changed.wait()
            except TimeoutError:
                if query.get("allowWatchBookmarks") == "true":
                    meta = {"resourceVersion": str(self.version), "creationTimestamp": None}
                    yield line("BOOKMARK", {"kind": "Lease", "apiVersion": GROUP[6:], "metadata": meta, "spec": {}})
                return

    def _route(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        path = urlsplit(url).path
        if path in ("/readyz", "/livez", "/healthz"):
            return Reply(200, "ok")
        user = self._authenticate(headers)
        if not path.startswith(f"{GROUP}/namespaces/"):
            return Reply(404, "404 page not found\n", {"content-type": "text/plain; charset=utf-8"})
        namespace, name = self._split(url)
        verb = {"GET": "get" if name else "list", "POST": "create", "PUT": "update"}.get(method, method.lower())
        self._authorize(user, verb, namespace, name)
        if verb == "get":
            return Reply(200, self._get(namespace, name))
        if verb == "list":
            items = [lease for (space, _), lease in sorted(self.leases.items()) if space == namespace]
            meta = {"resourceVersion": str(self.version)}
            return Reply(200, {"kind": "LeaseList", "apiVersion": GROUP[6:], "metadata": meta, "items": items})
        if verb == "delete":
            self._get(namespace, name)
            self.delete(name, namespace)
            return Reply(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
        if verb not in ("create", "update"):
            raise Refusal(405, "MethodNotAllowed", f"the stand-in has no {method}")
        lease = decoded(content)
        return self._create(namespace, lease) if verb == "create" else self._update(namespace, name, lease)

    def _split(self, url: str) -> tuple[str, str]:
        rest = urlsplit(url).path.removeprefix(f"{GROUP}/namespaces/")
        namespace, _, name = rest.partition("/leases")
        return unquote(namespace), unquote(name.lstrip("/"))

    def _authenticate(self, headers: Mapping[str, str]) -> str:
        if not self.tokens:
            return "admin"
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            return "system:anonymous"
        if kind != "Bearer" or token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return "cronstable"

    def _authorize(self, user: str, verb: str, namespace: str, name: str) -> None:
        if user == "system:anonymous" or verb not in self.verbs:
            which = f' "{name}"' if name else ""
            message = (
                f'leases.coordination.k8s.io{which} is forbidden: User "{user}" cannot {verb} resource "leases" in API '
                f'group "coordination.k8s.io" in the namespace "{namespace}"'
            )
            raise Refusal(403, "Forbidden", message, about(name))

    def _get(self, namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) not in self.leases:
            raise Refusal(404, "NotFound", f'leases.coordination.k8s.io "{name}" not found', about(name))
        return self.lease(name, namespace)

    def _create(self, namespace: str, lease: dict[str, Any]) -> Reply:
        meta = lease["metadata"]
        if meta.get("resourceVersion"):
            raise Refusal(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if namespace not in self.namespaces:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found', about(namespace, "namespaces", ""))
        name = meta.get("name", "")
        self._validate(name, lease)
        if (namespace, name) in self.leases:
            message = f'leases.coordination.k8s.io "{name}" already exists'
            raise Refusal(409, "AlreadyExists", message, about(name))
        return Reply(201, self._make(namespace, name, lease))

    def _update(self, namespace: str, name: str, lease: dict[str, Any]) -> Reply:
        meta, old = lease["metadata"], self.leases.get((namespace, name))
        if not meta.get("resourceVersion"):
            message = f'Lease "{name}" is invalid: metadata.resourceVersion: must be specified for an update'
            raise Refusal(422, "Invalid", message, about(name, "Lease"))
        self._validate(name, lease)
        if old is None:
            if meta.get("uid"):
                raise self._conflict(
                    name, f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
                )
            meta.pop("resourceVersion")
            return Reply(201, self._make(namespace, name, lease))
        if meta.get("uid") not in (None, "", old["metadata"]["uid"]):
            raise self._conflict(name, "Precondition failed: UID in precondition and in object meta differ")
        if meta["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise self._conflict(name, "the object has been modified; please apply your changes to the latest version")
        kept = {key: old["metadata"][key] for key in ("uid", "creationTimestamp", "resourceVersion")}
        lease["metadata"] = {**meta, **kept, "name": name, "namespace": namespace}
        if lease == old:
            return Reply(200, self.lease(name, namespace))
        return Reply(200, self._store("MODIFIED", namespace, name, lease))

    @staticmethod
    def _conflict(name: str, why: str) -> Refusal:
        message = f'Operation cannot be fulfilled on leases.coordination.k8s.io "{name}": {why}'
        return Refusal(409, "Conflict", message, about(name))

    def _validate(self, name: str, lease: Mapping[str, Any]) -> None:
        spec, wrong = lease["spec"], []
        if len(name) > 253 or not NAME.fullmatch(name):
            wrong.append(f'metadata.name: Invalid value: "{name}"')
        annotations = lease["metadata"].get("annotations") or {}
        if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > MOST_ANNOTATIONS:
            wrong.append(f"metadata.annotations: Too long: must have at most {MOST_ANNOTATIONS} bytes")
        if spec.get("leaseDurationSeconds", 1) <= 0:
            wrong.append("spec.leaseDurationSeconds: must be greater than 0")
        if spec.get("leaseTransitions", 0) < 0:
            wrong.append("spec.leaseTransitions: must be greater than or equal to 0")
        if wrong:
            raise Refusal(422, "Invalid", f'Lease "{name}" is invalid: {"; ".join(wrong)}', about(name, "Lease"))

    def _make(self, namespace: str, name: str, lease: dict[str, Any]) -> dict[str, Any]:
        self._made += 1
        created = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        uid = f"00000000-0000-4000-8000-{self._made:012d}"
        given = {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": created}
        lease["metadata"] = {**lease["metadata"], **given}
        return self._store("ADDED", namespace, name, lease)

    def _store(self, kind: str, namespace: str, name: str, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.leases[namespace, name] = lease
        self._tell(kind, self.lease(name, namespace))
        return self.lease(name, namespace)

    def _tell(self, kind: str, lease: dict[str, Any]) -> None:
        self.history.append((self.version, kind, lease))
        del self.history[:-1000]
        self._changed.set()
        self._changed = asyncio.Event()


def line(kind: str, document: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode()


def decoded(content: bytes) -> dict[str, Any]:
    """A Lease as the apiserver reads it: strict about types, before anything is looked at."""

    def bad(text: str) -> Refusal:
        return Refusal(400, "BadRequest", f'Lease in version "v1" cannot be handled as a Lease: {text}')

    try:
        lease = json.loads(content)
    except ValueError:
        raise bad("it is not JSON") from None
    if not isinstance(lease, dict) or lease.get("kind") != "Lease" or lease.get("apiVersion") != GROUP[6:]:
        raise Refusal(400, "BadRequest", "the object provided is unrecognized")
    meta, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    annotations = meta.get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise bad("v1.ObjectMeta.Annotations: ReadString: expects a string")
    for key in ("acquireTime", "renewTime"):
        if spec.get(key) is not None:
            spec[key] = micro_time(spec[key], bad)
    for key in ("leaseDurationSeconds", "leaseTransitions"):
        if spec.get(key) is not None and (not isinstance(spec[key], int) or isinstance(spec[key], bool)):
            raise bad(f"v1.LeaseSpec.{key}: readUint32: unexpected character")
    if spec.get("holderIdentity") is not None and not isinstance(spec["holderIdentity"], str):
        raise bad("v1.LeaseSpec.HolderIdentity: ReadString: expects a string")
    meta = {key: value for key, value in meta.items() if value not in (None, {}, "")}
    return {**lease, "metadata": meta, "spec": {key: value for key, value in spec.items() if value is not None}}


def micro_time(value: Any, bad: Callable[[str], Refusal]) -> str:
    if not isinstance(value, str) or not MICRO_TIME.fullmatch(value):
        raise bad(f'parsing time {value!r} as "2006-01-02T15:04:05.000000Z07:00"')
    return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# -- as a process ------------------------------------------------------------------------------------------------------


def serve(arguments: list[str]) -> None:
    """Serve on loopback until killed; say so in a line on stdout once it does."""
    import time

    from aiohttp import web

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", action="append", default=[])
    parser.add_argument("--verbs", default=",".join(sorted(ALL_VERBS)))
    parser.add_argument("--cert")
    parser.add_argument("--key")
    options = parser.parse_args(arguments)

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        url = str(request.rel_url)
        if server.is_watch(url):
            refused = server.may_watch(url, headers)
            if refused is None:
                return await streamed(request, url)
            return web.Response(status=refused.status, body=refused.content, content_type="application/json")
        reply = server.handle(request.method, url, headers, await request.read())
        plain = isinstance(reply.body, str)
        return web.Response(
            status=reply.status, body=reply.content, content_type="text/plain" if plain else "application/json"
        )

    async def streamed(request: web.Request, url: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for text in server.watch(url):
                await response.write(text + b"\n")
        return response

    async def main() -> None:
        context = None
        if options.cert:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(options.cert, options.key)
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", options.port, ssl_context=context).start()
        print("ready", flush=True)
        await asyncio.Event().wait()

    server = ApiServer(time.time)
    server.tokens = set(options.token)
    server.verbs = set(options.verbs.split(","))
    asyncio.run(main())


if __name__ == "__main__":
    serve(sys.argv[1:])
