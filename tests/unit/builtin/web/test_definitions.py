"""What jobs are, as configured: the same for everybody but for seals, which are for who may do anything."""

from __future__ import annotations

from typing import Any

import pytest

from cronstable.api import seal, sealing_key

pytestmark = pytest.mark.anyio

TOKENS: dict[str, Any] = {
    "authToken": {"value": "root"},
    "authTokens": [
        {"value": "seer", "scopes": ["view"], "label": "wallboard"},
        {"value": "doer", "scopes": ["control"]},
    ],
}
WEBHOOK = {"onFailure": {"report": {"webhook": {"url": {"value": "https://hooks.example/T0"}, "method": "PUT"}}}}


@pytest.fixture
def secretive(make_job: Any) -> Any:
    return make_job("back/up", environment=(("PIN", "1234"),), raw=WEBHOOK, shell="/bin/bash")


async def test_a_definition_says_all_but_secrets(serve: Any, host: Any, make_job: Any, secretive: Any) -> None:
    host.add(make_job("plain", command=("a", "b c")), secretive)
    async with serve() as call:
        every, one, none = [
            await call("GET", path) for path in ("/definitions", "/jobs/back%2Fup/definition", "/jobs/x/definition")
        ]
    assert every.json == {
        "node_name": "node-a",
        "job_set_id": "v1:" + "a" * 64,
        "nonce": None,
        "jobs": [
            {"name": "plain", "source": "", "keys": {"command": ["a", "b c"], "schedule": "0 3 * * *"}, "hidden": {}},
            {
                "name": "back/up",
                "source": "",
                "keys": {
                    "command": "true",
                    "schedule": "0 3 * * *",
                    "shell": "/bin/bash",
                    "environment": {"PIN": "<redacted>"},
                    "onFailure": {"report": {"webhook": {"url": {"value": "<redacted>"}, "method": "PUT"}}},
                },
                "hidden": {"environment": None, "onFailure": None},
            },
        ],
    }
    assert one.json == {**every.json, "jobs": every.json["jobs"][1:]}
    assert none.status == 404
    assert b"1234" not in every.body
    assert b"hooks.example" not in every.body


@pytest.mark.parametrize("token", ["root", "doer"])
async def test_who_may_do_anything_can_compare_what_is_masked(
    serve: Any, host: Any, secretive: Any, token: str
) -> None:
    host.add(secretive)
    async with serve(**TOKENS) as call:
        replies = [await call("GET", "/definitions", {"Authorization": f"bearer  {token}"}) for _ in range(2)]
    nonces = [reply.json["nonce"] for reply in replies]
    assert nonces[0] != nonces[1]
    for nonce, reply in zip(nonces, replies, strict=True):
        hidden = reply.json["jobs"][0]["hidden"]
        key = sealing_key(token.encode(), nonce)
        assert hidden["environment"] == seal(key, "back/up", "environment", b'[["PIN","1234"]]')
        assert hidden["environment"] != seal(key, "back/up", "environment", b'[["PIN","1235"]]')


async def test_who_may_only_look_gets_no_seal(serve: Any, host: Any, secretive: Any) -> None:
    host.add(secretive)
    async with serve(**TOKENS, anonymousScopes=["view"]) as call:
        for headers in ({}, {"Authorization": "Bearer seer"}):
            for path in ("/definitions", "/jobs/back%2Fup/definition"):
                found = (await call("GET", path, headers)).json
                assert (found["nonce"], found["jobs"][0]["hidden"]) == (None, {"environment": None, "onFailure": None})


class NotedThreads:
    def __init__(self, threads: Any) -> None:
        self._threads = threads
        self.lanes: list[str] = []

    async def run(self, call: Any, *, timeout: float, lane: str = "default") -> Any:
        self.lanes.append(lane)
        return await self._threads.run(call, timeout=timeout, lane=lane)


async def test_all_definitions_are_made_where_no_other_answer_waits(serve: Any, host: Any, secretive: Any) -> None:
    host.add(secretive)
    host.threads = noted = NotedThreads(host.threads)
    async with serve() as call:
        noted.lanes.clear()
        await call("GET", "/definitions")
        await call("GET", "/jobs/back%2Fup/definition")
    assert noted.lanes == ["definitions", "web"]


async def test_who_has_no_token_where_one_is_needed_gets_nothing(serve: Any, host: Any, secretive: Any) -> None:
    host.add(secretive)
    async with serve(**TOKENS) as call:
        assert (await call("GET", "/definitions")).status == 401
