"""Asking the peers why a job ran or did not, in virtual time: who answers, who does not and why, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from cronstable_gossip.asking import BURST, BUSY, DEADLINE, RATE, ROUNDS
from cronstable_gossip.decisions import MOST_DECISIONS, build
from cronstable_gossip.wire import NotTold

from cronstable.api import Decision, DecisionRecord, NodeDecisions, PeerStatus, Reason, Verdict
from cronstable.testing.clock import until

Play = Callable[..., Any]
SKIPPED = Decision(Verdict.SKIP, Reason.NOT_LEADER)


def remember(c: Any, name: str, *times: int, job: str = "backup") -> None:
    for t in times:
        c.members[name].host.ring.add(DecisionRecord(name, job, t, t + 0.25, SKIPPED))


async def ask(c: Any, name: str = "a", job: str = "backup", limit: int = 100) -> Sequence[NodeDecisions]:
    found: Sequence[NodeDecisions] = await c.members[name].host.published[-1].decisions(job, limit)
    return found


def short(found: Sequence[NodeDecisions]) -> list[tuple[str | None, list[Any], str | None]]:
    return [(one.node, [str(row["scheduled_at"])[14:19] for row in one.decisions], one.problem) for one in found]


def test_each_peer_tells_its_own_newest_decisions_on_the_job(cluster: Play) -> None:
    async def story(c: Any) -> None:
        remember(c, "a", 60)
        remember(c, "b", 60, 120, 180)
        remember(c, "c", 60)
        remember(c, "c", 600, job="other")
        found = await ask(c, limit=2)
        assert short(found) == [("b", ["03:00", "02:00"], None), ("c", ["01:00"], None)]
        assert [one.host for one in found] == ["b:1", "c:1"]
        assert short(await ask(c, job="nothing")) == [("b", [], None), ("c", [], None)]
        assert short(await ask(c, job="x" * 513))[0][2] == "not asked: the name of the job is longer than 512 bytes"
        await ask(c, limit=10_000)
        assert c.network.questions[-1] == ("a", "c", "backup", MOST_DECISIONS)

    cluster(story)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (NotTold(), "does not tell: it is of an older version"),
        (build("c", []), "it answers as c, and is known as b"),
        (build("a", []), "it answers as a, and is known as b"),
        (b"nonsense", "the answer is no JSON"),
        (OSError("answered 500"), "answered 500"),
        (OSError(), "OSError"),
    ],
    ids=repr,
)
def test_an_answer_that_is_none_is_a_line_that_says_why_and_the_others_count(
    cluster: Play, forged: bytes | Exception, why: str
) -> None:
    async def story(c: Any) -> None:
        remember(c, "c", 60)
        c.network.forged["b"] = forged
        assert short(await ask(c)) == [("b", [], why), ("c", ["01:00"], None)]

    cluster(story)


def test_a_silent_peer_costs_the_deadline_and_a_dead_one_nothing(cluster: Play) -> None:
    async def story(c: Any) -> None:
        remember(c, "c", 60)
        c.network.silent.add(("a", "b"))
        began = anyio.current_time()
        assert short(await ask(c)) == [("b", [], "no answer in time"), ("c", ["01:00"], None)]
        assert DEADLINE <= anyio.current_time() - began < DEADLINE + 0.1
        c.network.heal()

        def status() -> PeerStatus:
            found: PeerStatus = c.members["a"].election.view().peers[0].status
            return found

        await until(lambda: status() is PeerStatus.AGREED, within=5)
        c.network.hangs_up = False
        await c.stop("b")
        assert status() is PeerStatus.AGREED, "nobody has noticed yet"
        assert short(await ask(c))[0][2] == "refused"
        await until(lambda: status() is PeerStatus.UNREACHABLE, within=5)
        asked = len(c.network.questions)
        assert short(await ask(c)) == [("b", [], "not in contact: refused"), ("c", ["01:00"], None)]
        assert len(c.network.questions) == asked + 1, "who is out of contact is not asked"

    cluster(story)


def test_nobody_may_speak_under_a_name_that_two_nodes_have(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await c.start("d", "abcd", node_name="b")
        names = [one.node for one in await ask(c, "d")]
        assert names == ["a", "b", "c"]
        found = {one.node: one.problem for one in await ask(c, "d")}
        assert found["b"] == "not asked: more than one node calls itself b"
        assert found["a"] is None

    cluster(story, "abc")


def test_who_asks_the_same_at_the_same_time_gets_the_same_answer(cluster: Play) -> None:
    async def story(c: Any) -> None:
        remember(c, "b", 60)
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await ask(c))

        async with anyio.create_task_group() as many:
            for _ in range(50):
                many.start_soon(one)
        assert len(c.network.questions) == 2
        assert len(answers) == 50
        assert all(found is answers[0] for found in answers)

    cluster(story)


def test_whoever_gives_up_leaves_the_question_to_those_who_wait_for_it(cluster: Play) -> None:
    async def story(c: Any) -> None:
        remember(c, "c", 60)
        c.network.silent.add(("a", "b"))
        answers: list[Any] = []

        gone = anyio.CancelScope()

        async def first() -> None:
            with gone:
                await ask(c)

        async def second() -> None:
            answers.append(await ask(c))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await c.pause(0.5)
            tasks.start_soon(second)
            await c.pause(0.5)
            gone.cancel()
        assert [short(found)[1] for found in answers] == [("c", ["01:00"], None)]

    cluster(story)


def test_a_flood_of_questions_here_is_none_between_the_nodes(cluster: Play) -> None:
    async def story(c: Any) -> None:
        ended: list[str | None] = []

        async def one(number: int) -> None:
            ended.extend(line.problem for line in await ask(c, job=f"job{number}"))

        async def at_once(count: int, start: int) -> None:
            async with anyio.create_task_group() as many:
                for number in range(count):
                    many.start_soon(one, start + number)

        await at_once(1000, 0)
        assert len(c.network.questions) == 2 * ROUNDS
        assert ended.count(BUSY) == 2 * (1000 - ROUNDS)
        began = anyio.current_time()
        for number in range(1000):
            await one(number)
            if anyio.current_time() - began > 10:
                break
            await c.pause(0.001)
        spent = anyio.current_time() - began
        assert len(c.network.questions) <= 2 * ROUNDS + (spent + BURST) * RATE + 2

    cluster(story)
