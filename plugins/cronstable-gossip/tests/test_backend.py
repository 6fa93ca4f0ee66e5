"""What the election does around its node: tags and repeats, hostile answers, rotation, pushes, a new instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from cronstable_gossip.wire import Caller, Reply

from cronstable.api import PeerStatus
from cronstable.testing.clock import always, until

Play = Callable[..., Any]


def status_of(c: Any, node: str, index: int) -> PeerStatus:
    found: PeerStatus = c.members[node].election.view().peers[index].status
    return found


async def led(c: Any) -> None:
    await until(lambda: c.leaders() == ["a"], within=4, what="a to lead")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(304, '"x"', None), "304 to a question without a tag"),
        (Reply(200, '"x"', b"{}"), "`node_name` of the answer"),
        (Reply(200, None, b"[" * 90_000), "no JSON"),
        (Reply(200, None, None), "no JSON"),
    ],
    ids=["unasked 304", "empty", "deep", "no body"],
)
def test_an_answer_that_is_none_makes_its_peer_unreachable_and_nothing_else(
    cluster: Play, reply: Reply, why: str
) -> None:
    class Hostile:
        def peer(self, caller: Caller) -> Reply:
            return reply

        def take(self, body: bytes) -> bool:
            return True

    async def story(c: Any) -> None:
        await led(c)
        await c.stop("c")
        c.network.open["c"] = Hostile()
        c.members["a"].election._forget(1)
        await until(lambda: status_of(c, "a", 1) is PeerStatus.UNREACHABLE, within=3)
        await until(lambda: why in (c.members["a"].election.view().peers[1].last_error or ""), within=3)
        await led(c)

    assert cluster(story).double == []


def test_what_nobody_thought_of_in_an_answer_costs_that_peer_and_is_said_once(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        a = c.members["a"]
        read = a.election._read

        def overlooked(index: int, reply: Reply) -> Any:
            if index == 1:
                raise TypeError("unhashable type: 'list'")
            return read(index, reply)

        a.election._read = overlooked
        await until(lambda: status_of(c, "a", 1) is PeerStatus.UNREACHABLE, within=3)
        await c.pause(5)
        assert a.election.view().peers[1].last_error == "its answer cannot be read: TypeError: unhashable type: 'list'"
        assert len(a.host.logged("the answer of c:1 cannot be read")) == 1
        assert len(a.host.logged("c:1 (c) is unreachable: its answer cannot be read")) == 1
        await led(c)

    assert cluster(story).double == []


def test_a_peer_whose_connection_is_reset_is_asked_once_more_and_then_at_its_usual_time(cluster: Play) -> None:
    """The kernel of a process that is killed may take a connection and reset it before it refuses the next."""
    asked: list[float] = []

    class Resetting:
        def peer(self, caller: Caller) -> Reply:
            if caller.instance_id == first[0]:
                asked.append(anyio.current_time())
            raise ConnectionResetError("reset")

        def take(self, body: bytes) -> bool:
            return True

    first: list[str] = []

    async def story(c: Any) -> None:
        await led(c)
        await c.pause(2)
        first.append(c.members["a"].election._node.me.instance_id)
        await c.stop("c")
        c.network.open["c"] = Resetting()
        await c.pause(4)
        await led(c)

    assert cluster(story).double == []
    once, again, later, *_ = asked
    assert again - once < 0.15, "a tenth of an interval"
    assert 0.8 < later - again < 1.1


def test_a_repeated_answer_is_held_against_the_live_job_set(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await c.pause(3)
        c.network.asked.clear()
        c.members["a"].job_set_id = "v1:1"
        await c.members["a"].election.refresh()
        assert status_of(c, "a", 0) is PeerStatus.SYNCING
        assert ("a", "b", 304) in c.network.asked, "what b says did not change, what we are did"

    cluster(story)


def test_an_answer_without_a_tag_is_not_repeated(cluster: Play) -> None:
    class Tagless:
        def __init__(self, real: Any) -> None:
            self.real = real
            self.tags: list[str | None] = []

        def peer(self, caller: Caller) -> Reply:
            self.tags.append(caller.etag)
            reply: Reply = self.real.peer(Caller(None, caller.instance_id))
            return Reply(reply.status, None, reply.body)

        def take(self, body: bytes) -> bool:
            return True

    async def story(c: Any) -> None:
        await led(c)
        tagless = c.network.open["c"] = Tagless(c.network.open["c"])
        await c.pause(6)
        assert tagless.tags[-2:] == [None, None]
        assert status_of(c, "a", 1) is PeerStatus.AGREED

    assert cluster(story).double == []


def test_the_certificates_are_looked_at_once_a_minute(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await c.pause(185)
        assert c.members["a"].election._transport.rotations == 3

    assert cluster(story).double == []


@pytest.mark.parametrize("hangs_up", [True, False], ids=["hanging up", "silently"])
@pytest.mark.parametrize("name", ["a", "c"])
def test_a_rebuilt_election_is_another_instance_and_holds_until_it_is_known(
    cluster: Play, name: str, hangs_up: bool
) -> None:
    """Silently: its peers see no connection end, and the instance of before counts as fresh for a while."""

    async def story(c: Any) -> None:
        c.network.hangs_up = hangs_up
        await led(c)
        await until(lambda: c.members[name].election.view().settled, within=60)
        await c.pause(40)
        before = c.members[name].election._node.me.instance_id
        await c.stop(name)
        await c.start(name, "abc")
        member = c.members[name]
        assert member.election._node.me.instance_id != before
        assert not member.election.view().settled
        assert not member.election.view().available, "not everybody at once, on a blank view"
        await always(
            lambda: not member.election.view().settled or member.election.view().available == (name == "a"), during=1
        )
        assert member.election.view().settled, "who calls is asked back at once"

    cluster(story, interval=30.0, timeout=10.0)


def test_a_node_that_no_peer_can_ask_is_held_for_an_interval_and_not_until_it_has_asked_three_times(
    cluster: Play,
) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await c.stop("c")
        await until(lambda: status_of(c, "a", 1) is PeerStatus.UNREACHABLE, within=60)
        c.network.errors = {("a", "c"), ("b", "c")}
        await c.start("c", "abc")
        member = c.members["c"]
        await always(lambda: not member.election.view().available, during=29.9)
        await until(lambda: member.election.view().settled, within=31)
        assert member.election.view().available, "never skip: it cannot know better"

    cluster(story, interval=30.0, timeout=10.0)


def test_a_caller_that_nobody_lists_has_everybody_asked_once(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await c.pause(40)
        c.network.asked.clear()
        for _ in range(20):
            c.network.open["a"].peer(Caller(None, "stranger"))
            await c.pause(1)
        assert [link[:2] for link in c.network.asked if link[0] == "a"][:2] == [("a", "b"), ("a", "c")]
        assert len([link for link in c.network.asked if link[0] == "a"]) <= 4, "and at their usual time"

    cluster(story, interval=30.0, timeout=10.0)


def test_a_malformed_push_is_refused_and_one_of_another_job_set_ignored(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await until(lambda: c.members["a"].election.view().settled, within=3)
        election = c.members["a"].election
        assert not election.take(b"no")
        assert not election.take(b'{"job_set_id": "", "names": ["x"]}')
        assert election.take(b'{"job_set_id": "v1:9", "names": ["x"]}')
        assert election.reboot_ran("x") is False
        assert election.take(b'{"job_set_id": "v1:0", "names": ["x", "", 7]}')
        assert election.reboot_ran("x") is True

    cluster(story)


def test_a_transport_that_cannot_open_is_a_failed_start(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await led(c)
        await c.stop("c")

        async def refuse(responder: object) -> None:
            raise OSError("cluster.listen 0.0.0.0:1: in use")

        from_now = c.members["c"].election._transport
        from_now.open = refuse
        with pytest.raises(OSError, match="in use"):
            await c.members["c"].election.run(c.members["c"].host, task_status=None)
        assert not c.members["c"].election.view().quorate

    cluster(story)
