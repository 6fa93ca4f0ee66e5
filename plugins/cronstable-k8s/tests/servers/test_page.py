"""What an apiserver does with a Lease: the stand-in and a real one, held to the same odd answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from cronstable.api import HttpResponse

pytestmark = pytest.mark.anyio

NUMBERS: Iterator[int] = itertools.count()
ALL = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NOW = "2026-11-30T12:00:00.000000Z"


class Door:
    """One Lease of its own, by bare HTTP. ``holder``: who asks."""

    def __init__(self, transport: Any, name: str) -> None:
        self._transport, self.name = transport, name

    async def call(self, method: str, path: str = ALL, body: Any = None) -> HttpResponse:
        content = b"" if body is None else json.dumps(body).encode()
        answer: HttpResponse = await self._transport.request(method, path, content, timeout=20)
        return answer

    async def post(self, spec: Any = None, **meta: Any) -> HttpResponse:
        return await self.call("POST", body=self.lease(spec, **meta))

    async def put(self, lease: Any) -> HttpResponse:
        return await self.call("PUT", f"{ALL}/{self.name}", lease)

    async def get(self) -> HttpResponse:
        return await self.call("GET", f"{ALL}/{self.name}")

    async def delete(self) -> None:
        await self.call("DELETE", f"{ALL}/{self.name}")

    async def made(self, spec: Any = None) -> dict[str, Any]:
        answer = await self.post(spec)
        assert answer.status == 201, answer
        found: dict[str, Any] = json.loads(answer.content)
        return found

    def lease(self, spec: Any = None, **meta: Any) -> dict[str, Any]:
        about = {"name": self.name, **meta}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": spec or {}}

    def stream(self, path: str) -> Any:
        return self._transport.stream(path, timeout=20, lasts=5)


@pytest.fixture(params=["stand-in", pytest.param("real", marks=[pytest.mark.integration, pytest.mark.kubernetes])])
async def door(request: pytest.FixtureRequest, server: Any, line: Any, real: Any) -> AsyncIterator[Door]:
    transport = line(server()) if request.param == "stand-in" else (await real()).transport
    made = Door(transport, f"test-{next(NUMBERS)}")
    yield made
    await made.delete()


def reason(answer: HttpResponse) -> Any:
    return json.loads(answer.content)["reason"]


@pytest.mark.parametrize("key", ["renewTime", "acquireTime"])
async def test_micro_times_have_six_digits_and_a_zone(door: Door, key: str) -> None:
    for bad in ("2026-11-30T12:00:00Z", "2026-11-30T12:00:00.000Z", "2026-11-30T12:00:00.000000", ""):
        assert (await door.post({key: bad})).status == 400, bad
    lease = await door.made({key: "2026-11-30T13:00:00.000000+01:00"})
    assert lease["spec"][key] == NOW
    lease["spec"][key] = None
    answer = await door.put(lease)
    assert answer.status == 200
    assert key not in json.loads(answer.content)["spec"]


async def test_durations_are_positive_whole_numbers(door: Door) -> None:
    assert [(await door.post({"leaseDurationSeconds": bad})).status for bad in (0, -1)] == [422, 422]
    assert [(await door.post({"leaseDurationSeconds": bad})).status for bad in (1.5, "15")] == [400, 400]
    assert (await door.post({"leaseTransitions": -1})).status == 422


async def test_names_and_annotations_have_limits(door: Door) -> None:
    assert (await door.post(name="Upper_Case")).status == 422
    assert (await door.post(annotations={"cronstable.io/x": "y" * 262_200})).status == 422
    assert (await door.post(annotations={"cronstable.io/x": "y" * 262_000})).status == 201


async def test_a_post_creates_once_and_takes_no_version(door: Door) -> None:
    assert (await door.post(resourceVersion="5")).status == 500
    await door.made()
    again = await door.post()
    assert (again.status, reason(again)) == (409, "AlreadyExists")


async def test_a_put_is_held_to_version_and_uid(door: Door) -> None:
    lease = await door.made({"leaseTransitions": 0})
    bare = json.loads(json.dumps(lease))
    del bare["metadata"]["resourceVersion"]
    assert (await door.put(bare)).status == 422
    lease["spec"]["leaseTransitions"] = 1
    assert (await door.put(lease)).status == 200
    stale = await door.put(lease)
    assert (stale.status, reason(stale)) == (409, "Conflict")
    fresh = json.loads((await door.get()).content)
    fresh["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert (await door.put(fresh)).status == 409


async def test_a_put_to_a_deleted_lease_makes_it_again_unless_it_carries_the_uid(door: Door) -> None:
    lease = await door.made()
    await door.delete()
    assert (await door.put(lease)).status == 409
    del lease["metadata"]["uid"]
    assert (await door.put(lease)).status == 201


async def test_an_identical_put_changes_no_version_and_a_put_without_annotations_drops_them(door: Door) -> None:
    answer = await door.post({"holderIdentity": "a"}, annotations={"cronstable.io/x": "y"})
    lease = json.loads(answer.content)
    again = json.loads((await door.put(lease)).content)
    assert again["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"]
    del again["metadata"]["annotations"]
    assert "annotations" not in json.loads((await door.put(again)).content)["metadata"]


async def test_a_404_says_what_is_missing(door: Door) -> None:
    absent = json.loads((await door.get()).content)
    assert (absent["kind"], absent["details"]["kind"], absent["details"]["name"]) == ("Status", "leases", door.name)
    answer = await door.call("POST", ALL.replace("default", "test-nowhere"), door.lease())
    assert (answer.status, json.loads(answer.content)["details"]["kind"]) == (404, "namespaces")


async def test_every_answer_tells_the_servers_clock(door: Door) -> None:
    assert "date" in (await door.get()).headers


async def test_a_watch_of_one_lease_tells_what_happens_to_it_in_order(door: Door) -> None:
    lease = await door.made({"holderIdentity": "a"})
    version = lease["metadata"]["resourceVersion"]
    for holder in ("b", "c"):
        lease["spec"]["holderIdentity"] = holder
        lease = json.loads((await door.put(lease)).content)
    await door.delete()
    query = f"watch=true&fieldSelector=metadata.name%3D{door.name}&resourceVersion={version}&timeoutSeconds=5"
    events = []
    with anyio.fail_after(30):
        async with door.stream(f"{ALL}?{query}") as stream:
            async for text in stream.lines:
                event = json.loads(text)
                events.append((event["type"], event["object"]["spec"].get("holderIdentity")))
                if len(events) == 3:
                    break
    assert events == [("MODIFIED", "b"), ("MODIFIED", "c"), ("DELETED", "c")]
