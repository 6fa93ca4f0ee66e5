"""Who may do what: tokens, scopes, origins, and limits on what a client may do to the daemon."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cronstable.api import Shutdown, StartRun
from cronstable.builtin.web import app, kept, site
from cronstable.builtin.web.auth import Caller, Guard, Unauthorized, foreign_origin
from cronstable.builtin.web.settings import ALL_SCOPES, Token

pytestmark = pytest.mark.anyio

TOKENS: dict[str, Any] = {
    "authToken": {"value": "root"},
    "authTokens": [
        {"value": "seer", "scopes": ["view"], "label": "wallboard"},
        {"value": "doer", "scopes": ["control"]},
    ],
}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_without_tokens_everybody_may_do_everything_but_stop_the_daemon(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        me = await call("GET", "/whoami")
        start = await call("POST", "/jobs/a/start")
        stop = await call("POST", "/shutdown", bearer("anything"))
    assert me.json == {
        "authenticated": False, "label": "anonymous", "scopes": ["control", "view"], "allScopes": True,
    }  # fmt: skip
    assert start.status == 200
    assert stop.status == 403
    assert "authToken" in stop.json["error"]
    assert [type(command) for command, _ in host.commands] == [StartRun]


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer(""), {"Authorization": "Basic cm9vdA=="}, {"Authorization": "Bearer"}, bearer("röot")],
)
async def test_a_missing_or_wrong_token_is_401_and_says_nothing(serve: Any, headers: dict[str, str]) -> None:
    async with serve(**TOKENS) as call:
        reply = await call("GET", "/jobs", headers)
        nowhere = await call("GET", "/nowhere", headers)
    assert reply.status == nowhere.status == 401
    assert reply.json == nowhere.json == {"error": "a valid token is needed"}
    assert reply.headers["www-authenticate"] == 'Bearer realm="cronstable"'


@pytest.mark.parametrize(
    ("token", "label", "scopes"),
    [
        ("root", "authToken", ["control", "view"]),
        ("seer", "wallboard", ["view"]),
        ("doer", "authTokens[1]", ["control", "view"]),
    ],
)
async def test_a_token_has_its_label_and_scopes(serve: Any, token: str, label: str, scopes: list[str]) -> None:
    async with serve(**TOKENS) as call:
        reply = await call("GET", "/whoami", {"Authorization": f"bEaReR {token}"})
    assert reply.json == {"authenticated": True, "label": label, "scopes": scopes, "allScopes": len(scopes) == 2}


async def test_a_lacking_scope_is_403_naming_label_and_scope(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(**TOKENS) as call:
        reply = await call("POST", "/jobs/a/start", bearer("seer"))
    assert (reply.status, reply.json) == (403, {"error": "token 'wallboard' lacks the scope 'control' that this needs"})
    assert host.commands == []


async def test_a_command_carries_the_label_of_its_token(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(**TOKENS) as call:
        await call("POST", "/jobs/a/start", bearer("doer"))
        stop = await call("POST", "/shutdown", bearer("root"))
    assert stop.json == {"shuttingDown": True}
    assert [(type(c), by.label, by.channel) for c, by in host.commands] == [
        (StartRun, "authTokens[1]", "api"),
        (Shutdown, "authToken", "api"),
    ]


async def test_anonymous_viewers_may_look_and_not_touch(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve(**TOKENS, anonymousScopes=["view"]) as call:
        me = await call("GET", "/whoami")
        look = await call("GET", "/jobs")
        touch = await call("POST", "/jobs/a/start")
        stop = await call("POST", "/shutdown")
        wrong = await call("GET", "/jobs", bearer("wrong"))
    assert me.json == {"authenticated": False, "label": "anonymous", "scopes": ["view"], "allScopes": False}
    assert look.status == 200
    assert touch.status == stop.status == wrong.status == 401


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost", 200),
        ("https://ops.example.org", 200),
        ("HTTPS://OPS.example.org:443", 200),
        ("https://ops.example.org.evil.example", 403),
        ("https://header.example", 200),
        (None, 200),
    ],
)
async def test_only_pages_of_trusted_sites_may_start_jobs(
    serve: Any, host: Any, make_job: Any, origin: str | None, status: int
) -> None:
    host.add(make_job("a"))
    site = {
        "allowedOrigins": ["https://ops.example.org/"],
        "headers": {"Access-Control-Allow-Origin": "https://header.example"},
    }
    async with serve(**site) as call:
        reply = await call("POST", "/jobs/a/start", {"Origin": origin} if origin else {})
        read = await call("GET", "/jobs", {"Origin": origin} if origin else {})
    assert reply.status == status
    assert len(host.commands) == (status == 200)
    assert ("error" in reply.json) == (status == 403)
    assert read.status == 200


def test_a_star_switches_the_origin_rule_off() -> None:
    assert foreign_origin("POST", "http://evil.example", "h:1", frozenset())
    assert not foreign_origin("POST", "http://evil.example", "h:1", frozenset({"*"}))
    assert not foreign_origin("POST", "https://h:1", "H:1", frozenset())
    assert foreign_origin("POST", "https://h:2", "h:1", frozenset())
    assert foreign_origin("POST", "https://h", None, frozenset())


async def test_ten_thousand_wrong_tokens_are_a_few_log_lines_without_the_token(
    host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    guard = Guard([Token("t", ALL_SCOPES, b"right")], frozenset(), host.clock, host.log)
    for number in range(10_000):
        assert isinstance(guard.identify(f"Bearer guess-{number}", "10.0.0.9"), Unauthorized)
    host.clock.advance(61)
    guard.identify("Bearer guess-last", "10.0.0.9")
    assert len(caplog.records) == 2
    assert "guess" not in caplog.text
    assert "9999 more" in caplog.text
    assert guard.identify("Bearer right", "10.0.0.9") == Caller("t", ALL_SCOPES, authenticated=True)


async def test_configured_headers_are_sent_and_never_replace_the_content_type(serve: Any) -> None:
    async with serve(headers={"X-Site": "berlin", "content-TYPE": "text/evil"}) as call:
        good = await call("GET", "/cluster")
        bad = await call("GET", "/nowhere")
    assert good.headers["x-site"] == "berlin"
    assert good.headers["content-type"] == "application/json"
    assert "x-site" not in bad.headers


async def test_a_body_that_is_too_large_is_413_and_the_job_is_not_started(serve: Any, host: Any, make_job: Any) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call("POST", "/jobs/a/start", body=b"x" * (64 * 1024 + 1))
        fits = await call("POST", "/jobs/a/start", body=b"x" * (64 * 1024))
    assert reply.status == 413
    assert "65536" in reply.json["error"]
    assert fits.status == 200
    assert len(host.commands) == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /jobs HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_400_and_the_next_client_is_served(serve: Any, request_bytes: bytes) -> None:
    async with serve() as call:
        broken = await call.raw(request_bytes)
        fine = await call("GET", "/version")
    assert broken.status == 400
    assert fine.status == 200


async def test_a_client_that_reads_nothing_does_not_hold_up_others_or_the_end(
    serve: Any, host: Any, make_job: Any
) -> None:
    host.add(*(make_job(f"job {n}", command="x" * 2000) for n in range(1000)))
    with anyio.fail_after(15):
        async with serve() as call:
            _, slow = await call.open()
            slow.write(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
            await slow.drain()
            fine = await call("GET", "/version")
        slow.close()
    assert fine.status == 200


async def test_a_reader_that_takes_nothing_is_dropped_at_the_deadline(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept, "WRITE_TIMEOUT", 0.05)
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(1000)))
    async with serve() as call:
        reader, slow = await call.open()
        slow.transport.pause_reading()
        slow.write(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        with anyio.fail_after(10):
            while "does not take its answer" not in caplog.text:
                await anyio.lowlevel.checkpoint()
        slow.transport.resume_reading()
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(9_000_000)
        slow.close()
        fine = await call("GET", "/version")
    assert fine.status == 200


async def test_a_client_that_leaves_before_its_answer_is_no_error(
    serve: Any, host: Any, make_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    host.add(*(make_job(f"job {n}", command="x" * 9000) for n in range(1000)))
    async with serve() as call:
        _, leaving = await call.open()
        leaving.write(b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        await leaving.drain()
        leaving.transport.abort()
        with anyio.fail_after(10):
            while "went away" not in caplog.text:
                await anyio.lowlevel.checkpoint()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_command_that_takes_too_long_is_504(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "COMMAND_TIMEOUT", 0.01)
    host.add(make_job("a"))
    host.stuck = True
    async with serve() as call:
        reply = await call("POST", "/jobs/a/start")
    assert reply.status == 504
    assert "may still take effect" in reply.json["error"]


async def test_a_body_that_does_not_arrive_is_408(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "READ_TIMEOUT", 0.01)
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call.raw(
            b"POST /jobs/a/start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nab"
        )
    assert reply.status == 408
    assert host.commands == []


@pytest.mark.parametrize(
    "rest", [b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
async def test_a_body_that_belies_its_headers_is_400_and_starts_nothing(
    serve: Any, host: Any, make_job: Any, rest: bytes
) -> None:
    host.add(make_job("a"))
    async with serve() as call:
        reply = await call.raw(b"POST /jobs/a/start HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + rest)
    assert reply.status == 400
    assert host.commands == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000 + b"\r\n\r\n",
        b"POST /jobs/a/start HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_leaves_no_error_in_the_log(
    serve: Any, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    async with serve() as call:
        reply = await call.raw(request_bytes)
    assert reply.status == 400
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
