"""The lease under bad answers: conflicts, lost ones, refusals, hand-made changes, and a watch that ends."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from cronstable.api import Grant, Held, HttpResponse, Seen, StoreUnavailable, Vacant
from cronstable.testing.clock import run_virtual


def story(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


def spec_of(server: Any) -> Any:
    return server.lease()["spec"]


def test_a_lease_says_what_kubectl_shows(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b")
        grant = await one.win()
        spec = spec_of(api)
        assert spec["holderIdentity"] == str(one.me)
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 0)
        assert spec["acquireTime"] == spec["renewTime"] == "2027-01-15T08:00:00.000000Z"
        await one.host.clock.sleep(2)
        await one.renewed(grant)
        assert spec_of(api)["acquireTime"] == "2027-01-15T08:00:00.000000Z"
        assert spec_of(api)["renewTime"] == "2027-01-15T08:00:02.000000Z"
        seen = await two.store.observe()
        assert isinstance(seen, Seen)
        won = await two.store.acquire(two.me, 15.0, nonce="n2", over=seen)
        assert isinstance(won, Held)
        assert spec_of(api)["leaseTransitions"] == 1
        await two.store.release(won.grant, ())
        spec = spec_of(api)
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 1)
        assert not spec.keys() & {"holderIdentity", "acquireTime", "renewTime"}

    story(main)


def test_a_renewal_is_one_request(server: Any, node: Any) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()
        before = len(one.line.calls)
        await one.renewed(grant)
        assert [method for method, _ in one.line.calls[before:]] == ["PUT"]
        assert (await one.store.append(grant, 1, b"r")).at is not None
        assert [method for method, _ in one.line.calls[before:]] == ["PUT", "PUT"]

    story(main)


def test_a_conflict_that_still_shows_our_nonce_is_no_loss(server: Any, node: Any) -> None:
    """Claims 9: somebody wrote its own entry in between."""

    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b")
        grant = await one.win()
        await two.store.put_entry(b"draining")
        grant = await one.renewed(grant)
        assert await one.store.entries() == [b"draining"]
        await two.store.put_entry(b"still")
        assert await one.store.append(grant, 1, b"r") != b""
        assert await two.store.read(1) == b"r"

    story(main)


def test_a_lost_answer_of_a_renewal_is_made_good_by_the_nonce(server: Any, node: Any) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()

        def lose(method: str, url: str, content: bytes) -> HttpResponse | None:
            if method == "PUT":
                raise ConnectionResetError("broke")
            return None

        one.line.after = lose
        with pytest.raises(StoreUnavailable) as caught:
            await one.store.renew(grant, nonce="n1")
        assert caught.value.ambiguous
        one.line.after = lambda method, url, content: None
        answer = await one.store.renew(replace(grant, tried=("n1",)), nonce="n2")
        assert isinstance(answer, Held)
        assert answer.grant.nonce == "n2"

    story(main)


@pytest.mark.parametrize("code", [401, 403, 404, 410, 422, 429, 500, 502, 504])
def test_no_other_answer_is_taken_for_a_lease_or_for_its_absence(
    server: Any, node: Any, status: Any, code: int
) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()
        one.line.before = lambda method, url, content: status(code, "<html>a proxy's page</html>")
        for call in (
            one.store.observe,
            lambda: one.store.renew(grant, nonce="n1"),
            lambda: one.store.acquire(one.me, 15.0, nonce="n2"),
            lambda: one.store.append(grant, 1, b"r"),
            lambda: one.store.release(grant, ()),
        ):
            with pytest.raises(StoreUnavailable, match=str(code)):
                await call()

    story(main)


def test_a_504_may_have_landed(server: Any, node: Any, status: Any) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()
        one.line.after = lambda method, url, content: status(504, "timeout") if method == "PUT" else None
        with pytest.raises(StoreUnavailable) as caught:
            await one.store.append(grant, 1, b"r")
        assert caught.value.ambiguous
        one.line.after = lambda method, url, content: None
        assert await one.store.read(1) == b"r"
        assert await one.store.append(grant, 1, b"other") != await one.store.append(grant, 1, b"r")

    story(main)


def test_a_200_that_is_no_lease_is_no_answer(server: Any, node: Any, status: Any) -> None:
    async def main() -> None:
        one = node(server(), "a")
        await one.win()
        for body in ("ok", "[]", json.dumps({"kind": "Lease", "metadata": {}}), "[" * 100_000):
            one.line.before = lambda method, url, content, body=body: status(200, body)
            with pytest.raises(StoreUnavailable, match="not a Lease"):
                await one.store.observe()

    story(main)


def test_a_retry_after_is_waited_out_before_the_next_request(server: Any, node: Any, status: Any) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()
        one.line.before = lambda method, url, content: status(429, "slow down", {"retry-after": "3"})
        with pytest.raises(StoreUnavailable):
            await one.store.renew(grant, nonce="n1")
        one.line.before = lambda method, url, content: None
        begun = one.host.clock.now().boot
        await one.renewed(grant)
        assert one.host.clock.now().boot == pytest.approx(begun + 3)

    story(main)


def test_a_release_that_is_refused_once_is_sent_again(server: Any, node: Any, status: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        answers = [status(500, "sorry")]
        one.line.before = lambda method, url, content: answers.pop() if answers else None
        await one.store.release(grant, ("r1",))
        assert await node(api, "b").store.observe() == Vacant(grant.fence, ("r1",))

    story(main)


def test_a_release_that_an_apiserver_forbids_while_it_starts_is_tried_again(
    server: Any, node: Any, status: Any
) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        answers = [status(403, "not yet"), status(403, "not yet")]
        one.line.before = lambda method, url, content: answers.pop() if answers else None
        await one.store.release(grant, ("r1",))
        assert await node(api, "b").store.observe() == Vacant(grant.fence, ("r1",))

    story(main)


@pytest.mark.parametrize("code", [401])
def test_a_release_that_the_apiserver_denies_is_not_tried_again(server: Any, node: Any, status: Any, code: int) -> None:
    async def main() -> None:
        one = node(server(), "a")
        grant = await one.win()
        one.line.before = lambda method, url, content: status(code)
        asked, begun = len(one.line.calls), one.host.clock.now().boot
        with pytest.raises(StoreUnavailable, match=str(code)):
            await one.store.release(grant, ())
        assert one.host.clock.now().boot == begun
        assert len(one.line.calls) - asked == 1

    story(main)


def test_a_lease_deleted_under_its_holder_is_not_made_again_by_it(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        api.delete()
        assert await one.store.renew(grant, nonce="n1") == Vacant(None)
        await one.store.release(grant, ())
        assert api.leases == {}
        again = await one.store.acquire(one.me, 15.0, nonce="n2")
        assert isinstance(again, Held)
        assert again.grant.fence > grant.fence

    story(main)


def test_a_fence_is_never_below_the_unix_time_so_that_deleting_the_lease_does_not_lower_it(
    server: Any, node: Any
) -> None:
    async def main() -> None:
        api = server()
        first = await node(api, "a").win()
        api.delete()
        late = node(api, "b")
        await late.host.clock.sleep(30)
        assert (await late.win()).fence > first.fence >= 1_800_000_000

    story(main)


def test_a_holder_that_kubectl_wrote_is_respected_for_the_duration_it_stored(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()

        def take(lease: Any) -> None:
            lease["spec"] |= {"holderIdentity": "somebody", "leaseDurationSeconds": 40}

        api.edit(take)
        answer = await one.store.renew(grant, nonce="n1")
        assert isinstance(answer, Seen)
        assert (answer.record.holder.name, answer.record.holder.token, answer.record.ttl) == ("somebody", "", 40.0)
        assert answer.record.fence == grant.fence
        api.edit(lambda lease: lease["spec"].update(renewTime="2027-01-15T08:00:09.000000Z"))
        later = await one.store.observe()
        assert isinstance(later, Seen)
        assert later.record.mark != answer.record.mark

    story(main)


def test_an_entry_of_another_process_does_not_make_a_silent_holder_look_alive(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b")
        await one.win()
        seen = await two.store.observe()
        assert isinstance(seen, Seen)
        await node(api, "c").store.put_entry(b"draining")
        won = await two.store.acquire(two.me, 15.0, nonce="n1", over=seen)
        assert isinstance(won, Held)

    story(main)


def test_what_others_keep_in_the_lease_stays(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()

        def add(lease: Any) -> None:
            lease["metadata"]["annotations"]["example.com/note"] = "keep"
            lease["metadata"]["labels"] = {"app": "cronstable"}
            lease["spec"]["strategy"] = "OldestEmulationVersion"

        api.edit(add)
        await one.store.release(await one.renewed(grant), ())
        lease = api.lease()
        assert lease["metadata"]["annotations"]["example.com/note"] == "keep"
        assert lease["metadata"]["labels"] == {"app": "cronstable"}
        assert lease["spec"]["strategy"] == "OldestEmulationVersion"

    story(main)


def test_a_lease_that_changes_under_every_write_is_unavailable_in_the_end(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()

        def meddle(method: str, url: str, content: bytes) -> None:
            if method == "PUT":
                api.edit(lambda lease: lease["metadata"].setdefault("labels", {}).update(n=str(api.version)))

        one.line.before = meddle
        with pytest.raises(StoreUnavailable, match="changed 8 times"):
            await one.store.renew(grant, nonce="n1")

    story(main)


# -- waiting


def test_a_watch_shows_a_release_at_once(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b", watch=60.0)
        grant = await one.win()
        assert isinstance(await two.store.observe(), Seen)
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await two.store.observe())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await one.host.clock.sleep(7)
            begun = one.host.clock.now().boot
            await one.store.release(grant, ("r1",))
        assert one.host.clock.now().boot == begun
        assert answers == [Vacant(grant.fence, ("r1",))]

    story(main)


def test_while_renewals_are_seen_a_waiting_node_asks_for_nothing_but_the_next(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b", watch=5.0)
        grant = await one.win()
        await two.store.observe()

        async def renew(grant: Grant) -> None:
            for _ in range(5):
                await one.host.clock.sleep(2)
                grant = await one.renewed(grant)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew, grant)
            marks = [(await two.store.observe()).record.mark for _ in range(5)]
        assert len(set(marks)) == 5
        assert (two.line.count("GET"), two.line.count("WATCH")) == (2, 5)

    story(main)


def test_an_entry_is_no_reason_to_wake_a_waiting_node(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b", watch=5.0)
        await one.win()
        await two.store.observe()

        async def disturb() -> None:
            await one.host.clock.sleep(1)
            await one.store.put_entry(b"entry")

        begun = one.host.clock.now().boot
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            assert isinstance(await two.store.observe(), Seen)
        assert one.host.clock.now().boot >= begun + 5

    story(main)


def test_without_the_right_to_watch_a_node_polls_at_its_pace(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        api.tokens, api.verbs = set(), {"get", "update", "create"}
        one, two = node(api, "a"), node(api, "b", watch=5.0, pace=2.0)
        grant = await one.win()
        begun = one.host.clock.now().boot
        for _ in range(6):
            await two.store.observe()
        assert two.line.count("WATCH") == 1
        assert 8 <= one.host.clock.now().boot - begun <= 12
        await one.store.release(grant, ())
        begun = one.host.clock.now().boot
        assert isinstance(await two.store.observe(), Vacant)
        assert one.host.clock.now().boot - begun <= 2

    story(main)


@pytest.mark.parametrize(
    "lines", [[], [b'{"type":"ERROR","object":{"kind":"Status","code":410}}'], [b"<html>"], [b"{}"]]
)
def test_a_watch_that_ends_at_once_is_not_asked_for_again_and_again(
    server: Any, node: Any, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b", watch=5.0, pace=2.0)
        await one.win()

        async def ended(url: str) -> Any:
            for text in lines:
                yield text

        monkeypatch.setattr(api, "watch", ended)
        begun = one.host.clock.now().boot
        for _ in range(5):
            assert isinstance(await two.store.observe(), Seen)
        assert two.line.count("WATCH") == 1
        assert one.host.clock.now().boot - begun >= 6

    story(main)


def test_a_watch_from_too_long_ago_is_begun_anew_from_a_fresh_look(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b", watch=5.0)
        grant = await one.win()
        await two.store.observe()
        grant = await one.renewed(grant)
        api.compact()
        seen = await two.store.observe()
        assert isinstance(seen, Seen)
        assert seen.record.nonce == grant.nonce

    story(main)
