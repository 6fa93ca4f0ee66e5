"""Whole clusters in virtual time: the shipped election over a network in memory, with every fault it can have."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cronstable_gossip.payload import BadReport

from cronstable.api import PeerStatus, hrw_owner
from cronstable.testing.clock import always, until

Play = Callable[..., Any]
MARK_DEADLINE, START_DEADLINE = 30.0, 60.0
"""Seconds that the host gives the mark of an @reboot run, and the start of an election."""


def one_leader(cluster: Any, name: str | None = None) -> Callable[[], bool]:
    return lambda: len(cluster.leaders()) == 1 and name in (None, *cluster.leaders())


async def leader(cluster: Any, name: str | None = None, *, within: float | None = None) -> str:
    bound = next(iter(cluster.members.values())).bound
    await until(one_leader(cluster, name), within=within or bound, what=f"one leader ({name or 'any'})")
    return str(cluster.leaders()[0])


@pytest.mark.parametrize("names", ["a", "abc", "abcde", "abcdefghi"])
def test_a_cluster_that_starts_at_once_elects_its_lowest_name_and_never_two(cluster: Play, names: str) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await always(one_leader(c, "a"), during=20)
        for member in c.members.values():
            view = member.election.view()
            assert view.quorate
            assert view.leader == "a"
            assert view.settled
            assert view.available == (member.host.name == "a")

    assert cluster(story, names).double == []


def test_a_leader_that_stops_is_replaced_within_an_interval_and_comes_back_without_two(cluster: Play) -> None:
    async def story(c: Any) -> None:
        for _ in range(6):
            await leader(c, "a")
            await c.stop("a")
            await leader(c, "b", within=1.3)
            await c.pause(1.7)
            await c.start("a", "abc")
            await leader(c, "a")

    assert cluster(story).double == []


@pytest.mark.parametrize("silent", [True, False])
def test_a_leader_that_is_cut_off_is_replaced_in_time_and_never_are_there_two(cluster: Play, silent: bool) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        for _ in range(5):
            c.network.cut("a", "bc", silent=silent)
            await until(one_leader(c, "b"), within=c.members["a"].bound + 0.5)
            assert not c.members["a"].election.view().quorate
            c.network.heal()
            await leader(c, "a")

    assert cluster(story).double == []


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_a_leader_that_two_peers_stop_answering_leads_on_although_a_job_is_due_each_second(
    cluster: Play, late: float
) -> None:
    """What is due on a view in doubt has everybody asked again; the question that finds who is silent must end."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        a = c.members["a"]

        async def decide() -> None:
            with anyio.move_on_after(a.timeout):
                await a.election.refresh()

        async with anyio.create_task_group() as tasks:

            async def due_each_second() -> None:
                while True:
                    if a.election.view().stale:
                        tasks.start_soon(decide)
                    await c.pause(1.0)

            tasks.start_soon(due_each_second)
            await c.pause(late)
            for other in "bc":
                c.network.cut("a", other, silent=True)
            await c.pause(1 + 3 * a.timeout)
            await always(one_leader(c, "a"), during=10, every=0.05)
            tasks.cancel_scope.cancel()

    assert cluster(story, "abcde").double == []


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_links_that_break_in_one_direction_has_two_leaders_among_four_or_fewer(
    cluster: Play, seed: int
) -> None:
    draw = random.Random(seed)
    names = "abcd"[: draw.choice([3, 4])]
    ways = [(x, y) for x in names for y in names if x != y]

    async def story(c: Any) -> None:
        for _ in range(25):
            for how in draw.sample(HOW, draw.choice([1, 1, 2])):
                getattr(c.network, how).update(draw.sample(ways, draw.randrange(1, 5)))
            await c.pause(draw.random() * 12)
            if draw.random() < 0.7:
                c.network.heal()
                await c.pause(draw.random() * 5)
        c.network.heal()
        await leader(c, "a", within=10)

    assert cluster(story, names).double == []


HOW = ["errors", "silent", "untrusted"]
"""It does not answer: there is no way to it, its answers do not come, or it has the certificate of another address."""


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_a_leader_that_can_ask_and_cannot_be_asked_is_replaced_in_time_and_lets_go_before(
    cluster: Play, names: str, how: str
) -> None:
    async def story(c: Any) -> None:
        for turn in range(5):
            await leader(c, "a")
            await c.pause(turn * 0.37)
            getattr(c.network, how).update((name, "a") for name in names[1:])
            begun = anyio.current_time()
            late = c.members["a"].timeout if how == "silent" else 0.0
            await until(lambda: not c.members["a"].leads, within=2.1 + late, what="a to let go by itself")
            assert not c.members["a"].election.view().quorate
            await leader(c, "b", within=begun + c.members["a"].bound + late + 0.5 - anyio.current_time())
            await always(one_leader(c, "b"), during=3)
            c.network.heal()
            await leader(c, "a")

    assert cluster(story, names).double == []


@pytest.mark.parametrize("how", HOW)
def test_a_leader_that_only_one_of_five_still_hears_is_replaced_in_time(cluster: Play, how: str) -> None:
    """What that one says of it does not make a majority."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        getattr(c.network, how).update((name, "a") for name in "bce")
        late = c.members["a"].timeout if how == "silent" else 0.0
        await leader(c, "b", within=c.members["a"].bound + late + 0.5)
        await always(one_leader(c, "b"), during=5)
        c.network.heal()
        await leader(c, "a")

    assert cluster(story, "abcde").double == []


def test_a_leader_that_may_have_a_majority_without_us_is_waited_for_as_long_as_it_asks(cluster: Play) -> None:
    """One member reaches both, which is too little for the other to be seen through it; but one of the two asks."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        links = {frozenset(pair) for pair in ("ad", "ae", "bc", "bd")}
        broken = {(x, y) for x in "abcde" for y in "abcde" if x != y and frozenset((x, y)) not in links}
        c.network.errors = broken - {("a", "b")}
        await always(lambda: not c.members["b"].leads, during=30)
        await leader(c, "a", within=0.1)
        c.network.heal()
        await leader(c, "a")

    assert cluster(story, "abcde").double == []


@pytest.mark.parametrize("how", HOW)
def test_an_owner_that_can_ask_and_cannot_be_asked_owns_nothing_soon_and_the_others_everything(
    cluster: Play, how: str
) -> None:
    async def story(c: Any) -> None:
        def owned(names: str) -> Callable[[], bool]:
            views = {n: m.election.view() for n, m in c.members.items()}
            return lambda: (
                [n for n, view in views.items() if view.owners] == list(names)
                and all(not view.owners or set(view.owners) == set(names) for view in views.values())
            )

        await until(lambda: owned("abc")(), within=4)
        getattr(c.network, how).update({("b", "a"), ("c", "a")})
        await until(lambda: owned("bc")(), within=4)
        await always(lambda: owned("bc")(), during=5)
        c.network.heal()
        await until(lambda: owned("abc")(), within=4)

    assert cluster(story, distribution="spread").double == []


def test_nodes_that_come_and_go_never_lead_together(cluster: Play) -> None:
    async def story(c: Any) -> None:
        for turn in range(40):
            name = "abcde"[turn * 3 % 5]
            c.network.cut(name, [n for n in "abcde" if n != name], silent=turn % 2 == 0)
            await c.pause(1.1 + turn * 0.37 % 4)
            c.network.heal()
            await c.pause(turn * 0.53 % 3)
        await leader(c, "a", within=10)

    assert cluster(story, "abcde").double == []


def test_restarts_in_any_order_leave_no_double_leader_and_a_leader_soon(cluster: Play) -> None:
    async def story(c: Any) -> None:
        for turn in range(40):
            name = "abcde"[turn * 2 % 5]
            await c.stop(name)
            await c.pause(turn * 0.31 % 2.5)
            await c.start(name, "abcde")
            await leader(c)

    assert cluster(story, "abcde").double == []


@pytest.mark.parametrize("seed", range(6))
def test_no_sequence_of_faults_that_chance_draws_has_two_leaders(cluster: Play, seed: int) -> None:
    draw = random.Random(seed)
    names = "abcdefg"[: draw.choice([3, 5, 7])]

    async def story(c: Any) -> None:
        for _ in range(15):
            name, what = draw.choice(names), draw.random()
            if what < 0.3:
                c.network.cut(name, [n for n in names if n != name], silent=draw.random() < 0.5)
                await c.pause(draw.random() * 6)
                c.network.heal()
            elif what < 0.6:
                await c.stop(name)
                await c.pause(draw.random() * 4)
                await c.start(name, names)
            elif what < 0.75:
                c.members[name].clock.advance(draw.random() * 8)
            else:
                side = draw.sample(names, len(names) // 2)
                silent = draw.random() < 0.5
                for one in side:
                    c.network.cut(one, [n for n in names if n not in side], silent=silent)
                await c.pause(draw.random() * 8)
                c.network.heal()
            await c.pause(draw.random() * 3)
        await leader(c, "a", within=10)

    assert cluster(story, names).double == []


def test_a_minority_skips_and_the_majority_goes_on(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        for name in "ab":
            c.network.cut(name, "cde", silent=True)
        await until(one_leader(c, "c"), within=c.members["a"].bound + 1)
        for name in "ab":
            view = c.members[name].election.view()
            assert not view.quorate
            assert view.leader is None
            assert view.available == (name == "a"), "PreferLeader never skips on doubt"

    assert cluster(story, "abcde").double == []


def test_a_suspended_leader_claims_nothing_until_it_has_asked_again(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        member = c.members["a"]
        since = member.election.view().since
        member.clock.advance(30)
        view = member.election.view()
        assert view.stale
        assert not view.is_leader
        assert not view.quorate
        assert view.leader is None
        assert view.available, "PreferLeader always decides"
        with anyio.fail_after(member.timeout):
            await member.election.refresh()
        assert not member.election.view().stale
        await leader(c, "a")
        assert member.election.view().since == since, "nobody else led meanwhile"
        assert member.host.logged("stood still")

    assert cluster(story).double == []


def test_a_leader_that_finds_a_successor_on_waking_has_a_new_term(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        member = c.members["a"]
        since = member.election.view().since
        c.network.cut("a", "bc", silent=True)
        await until(lambda: c.members["b"].leads, within=member.bound + 1)
        c.network.heal()
        member.clock.advance(30)
        await member.election.refresh()
        assert not member.leads
        await leader(c, "a")
        assert member.election.view().since > since + 30

    assert cluster(story).double == []


def test_a_refresh_ends_in_time_although_a_peer_hangs(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        c.network.cut("c", "ab", silent=True)
        c.members["a"].clock.advance(30)
        assert c.members["a"].election.view().stale
        with anyio.fail_after(c.members["a"].timeout):
            await c.members["a"].election.refresh()
        await leader(c, "a", within=0.1)

    assert cluster(story).double == []


def test_stepping_wall_clocks_moves_nothing(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        for step in (3600.0, -7200.0, 1e6):
            for member in c.members.values():
                member.clock.step_wall(step)
                await always(one_leader(c, "a"), during=3)

    assert cluster(story).double == []


def test_another_job_set_is_syncing_then_drifted_and_back_at_once(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        c.members["c"].job_set_id = "v1:1"

        def status() -> PeerStatus:
            found: PeerStatus = c.members["a"].election.view().peers[1].status
            return found

        await until(lambda: status() is PeerStatus.SYNCING, within=1.5)
        await until(lambda: status() is PeerStatus.DRIFTED, within=3)
        assert c.members["a"].leads, "two of three agree"
        assert not c.members["c"].election.view().quorate
        c.members["c"].job_set_id = "v1:0"
        await until(lambda: status() is PeerStatus.AGREED, within=1.5)

    cluster(story)


def test_a_reload_here_ends_the_agreement_at_once(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        c.members["a"].job_set_id = "v1:1"
        assert not c.members["a"].leads
        assert not c.members["a"].election.view().quorate

    cluster(story)


def test_without_election_everybody_attests_and_nobody_leads(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await c.pause(10)
        for member in c.members.values():
            view = member.election.view()
            assert view.quorate
            assert view.leader is None
            assert not view.elect_leader
            assert {peer.status for peer in view.peers} == {PeerStatus.AGREED}
        assert c.leaders() == []

    cluster(story, elect_leader=False)


def test_spread_gives_each_job_one_owner_and_moves_only_those_of_a_lost_node(cluster: Play) -> None:
    jobs = [f"job-{i}" for i in range(60)]

    def owned(c: Any) -> dict[str, list[str]]:
        views = {n: m.election.view() for n, m in c.members.items() if n in c.network.open}
        return {job: [n for n, v in views.items() if hrw_owner(job, v.owners) == n] for job in jobs}

    async def story(c: Any) -> None:
        await until(lambda: all(len(found) == 1 for found in owned(c).values()), within=c.members["a"].bound)
        before = owned(c)
        assert len({found[0] for found in before.values()}) == 3
        assert c.leaders() == []
        await c.stop("c")
        await until(lambda: not any("c" in m.election.view().owners for m in c.members.values()), within=3)
        after = owned(c)
        assert {job for job in jobs if before[job] != after[job]} == {j for j in jobs if before[j] == ["c"]}

    cluster(story, distribution="spread")


def test_two_nodes_of_one_name_close_the_leader_gate_until_one_goes(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.stop("c")
        await c.start("c", "abc", node_name="b")
        await until(lambda: c.members["a"].election.view().conflict_names == ("b",), within=3)
        await until(lambda: c.members["b"].election.view().conflict, within=3)
        assert c.members["a"].election.view().conflict
        await c.stop("c")
        await until(lambda: not c.members["a"].election.view().conflict, within=5)

    cluster(story)


def test_a_cluster_of_another_size_closes_the_gate(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.stop("c")
        await c.start("c", "abcde", job_set_id="v1:1")
        await until(lambda: c.members["a"].election.view().conflicting_sizes == (5,), within=3)
        await until(lambda: c.members["c"].election.view().conflicting_sizes == (3,), within=3)

    cluster(story)


def test_another_policy_closes_the_gate(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.stop("c")
        await c.start("c", "abc", distribution="spread", elect_leader=False)
        await until(lambda: bool(c.members["a"].election.view().conflicting_policies), within=3)
        assert c.members["a"].election.view().conflicting_policies == (
            "distribution 'spread' != 'single-leader'",
            "electLeader false != true",
        )

    cluster(story)


def test_a_peer_that_cannot_prove_itself_is_untrusted(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        c.network.untrusted = {("a", "c")}
        await until(lambda: c.members["a"].election.view().peers[1].status is PeerStatus.UNTRUSTED, within=1.5)
        assert c.members["a"].host.logged("is untrusted")
        await leader(c, "a", within=0.1)

    cluster(story)


@pytest.mark.parametrize(("elects", "names", "said"), [(True, "ab", 1), (False, "ab", 0), (True, "abc", 0)])
def test_two_nodes_that_list_themselves_to_be_three_are_warned_of_once(
    cluster: Play, elects: bool, names: str, said: int
) -> None:
    async def story(c: Any) -> None:
        await c.stop("a")
        await c.start("a", [*names, "a-itself"])
        c.network.open["a-itself"] = c.network.open["a"]
        member = c.members["a"]
        await until(lambda: member.election.view().peers[-1].status is PeerStatus.SELF, within=3)
        await c.pause(10)
        assert member.election.view().cluster_size == len(names)
        assert len(member.host.logged("HAS TWO NODES ONLY: a-itself:1")) == said

    cluster(story, names, elect_leader=elects)


def test_a_reboot_job_runs_once_in_the_cluster_and_again_under_another_job_set(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await until(lambda: all(m.election.view().settled for m in c.members.values()), within=3)
        a, b = c.members["a"].election, c.members["b"].election
        assert a.reboot_ran("warm-up") is False
        assert await a.mark_reboot_ran("warm-up")
        assert b.reboot_ran("warm-up") is True, "told before the run starts"
        assert not await b.mark_reboot_ran("warm-up")
        await c.stop("c")
        await c.start("c", "abc")
        await c.pause(0.01)
        assert c.members["c"].election.reboot_ran("warm-up") is True, "learned from those who agree"
        await until(lambda: c.members["c"].election.view().settled, within=3)
        c.members["c"].job_set_id = "v1:1"
        assert c.members["c"].election.reboot_ran("warm-up") is False

    cluster(story)


@pytest.mark.parametrize("error", [OSError("reset"), BadReport("too long")], ids=["no answer", "odd answer"])
def test_a_reboot_run_that_cannot_be_told_happens_all_the_same(cluster: Play, error: Exception) -> None:
    """It is remembered here: to fail now would make it a run that never was."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        await until(lambda: all(m.election.view().settled for m in c.members.values()), within=3)

        async def push(index: int, body: bytes, timeout: float) -> None:
            raise error

        c.members["a"].election._transport.push = push
        assert await c.members["a"].election.mark_reboot_ran("warm-up")

    cluster(story)


def test_a_reboot_run_waits_for_no_peer_longer_than_its_mark_may_take(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await until(lambda: all(m.election.view().settled for m in c.members.values()), within=3)
        c.network.silent = {("a", "c")}
        with anyio.fail_after(MARK_DEADLINE):
            assert await c.members["a"].election.mark_reboot_ran("warm-up")
        assert c.members["b"].election.reboot_ran("warm-up") is True

    cluster(story, timeout=45.0)


@pytest.mark.parametrize("timeout", [2.0, 60.0, 600.0])
def test_a_node_starts_in_time_beside_a_peer_that_says_nothing(cluster: Play, timeout: float) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.stop("c")
        c.network.silent = {("c", "a")}
        with anyio.fail_after(START_DEADLINE):
            await c.start("c", "abc")
        c.network.heal()
        await until(lambda: c.members["c"].election.view().leader == "a", within=timeout + 5)

    assert cluster(story, timeout=timeout).double == []


def test_steady_rounds_cost_a_304_each(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.pause(3)
        c.network.asked.clear()
        await c.pause(10)

    asked = cluster(story).network.asked
    assert {status for _, _, status in asked} == {304}
    assert 60 <= len(asked) <= 70, "six links, start to start, up to a tenth earlier"


def test_a_change_is_announced(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        seen: list[bool] = []

        async def watch() -> None:
            while True:
                await c.members["b"].election.wait_change()
                seen.append(c.members["b"].leads)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            await c.stop("a")
            await until(lambda: True in seen, within=1.5)
            tasks.cancel_scope.cancel()

    cluster(story)


def test_an_election_that_has_ended_claims_nothing(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.stop("a")
        view = c.members["a"].election.view()
        assert not view.is_leader
        assert not view.quorate
        assert not view.settled

    cluster(story)


def test_every_node_tells_what_it_knows_of_all_and_nothing_once_it_has_ended(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.pause(6)
        report = c.members["a"].host.published[-1]
        assert report.interval == 1.0
        assert [(n["node_name"], n["self"], n["status"], n["jobs"]) for n in report.nodes] == [
            ("a", True, "self", {}),
            ("b", False, "agreed", {}),
            ("c", False, "agreed", {}),
        ]
        seen = report.nodes[1]["as_of"]
        await c.stop("b")
        await c.pause(6)
        silent = c.members["a"].host.published[-1].nodes[1]
        assert (silent["status"], silent["jobs"]) == ("unreachable", {})
        assert silent["as_of"] >= seen
        await c.stop("a")
        assert c.members["a"].host.published[-1].nodes == ()

    cluster(story)


def test_what_is_shown_of_others_is_an_interval_and_five_seconds_old_at_most_and_costs_no_more_for_it(
    cluster: Play,
) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.pause(60)
        host = c.members["a"].host

        def fresh() -> bool:
            now = c.members["a"].clock.now().wall
            ages = [now - datetime.fromisoformat(node["as_of"]).timestamp() for node in host.published[-1].nodes]
            return all(age <= 30 + 5 for age in ages)

        before = len(host.published)
        await always(fresh, during=600)
        assert len(host.published) - before <= 20 * 1.12 + 1, "once a round"

    cluster(story, interval=30.0, timeout=10.0)


def test_a_node_alone_shows_itself_as_often_as_one_with_peers(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.pause(600)
        assert 16 <= len(c.members["a"].host.published) <= 22

    cluster(story, "a", interval=30.0, timeout=10.0)


@pytest.mark.parametrize("way", ["one by one", "all at once"])
def test_three_grow_to_five_on_a_connected_network_and_shrink_again_without_two_leaders(
    cluster: Play, way: str
) -> None:
    """The Leader gate is closed from the first node that counts five until the last one does; then it opens again."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        for names in ("abcde", "abc"):
            old, closed = set(c.network.open), False
            for name in sorted(old - set(names)):
                await c.stop(name)
            for name in names:
                if name in old:
                    await c.stop(name)
                await c.start(name, names)
                closed = closed or any(c.members[n].election.view().conflicting_sizes for n in c.network.open)
                if way == "one by one":
                    await c.pause(2.5)
                    assert len(c.leaders()) <= 1
            assert closed or way == "all at once", "the gate was closed on the way"
            bound = c.members["a"].bound
            await until(one_leader(c, "a"), within=2 * bound, what=f"one leader of {len(names)}")
            await until(whole(c, names), within=2 * bound, what="nobody in conflict")
            assert {c.members[n].election.view().quorum for n in names} == {len(names) // 2 + 1}

    assert cluster(story).double == []


def whole(c: Any, names: str) -> Callable[[], bool]:
    def look() -> bool:
        views = [c.members[name].election.view() for name in names]
        return all(view.quorate and not view.conflict and view.leader == "a" for view in views)

    return look


def test_a_node_that_lists_a_swapped_member_is_said_and_goes_on(cluster: Play) -> None:
    """It counts as many as the others, and one of them is somebody else: worth saying, closes no gate (DESIGN 4)."""

    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.start("x", "abx")
        await c.stop("b")
        await c.start("b", "abx")
        await until(lambda: bool(c.members["b"].host.logged("different members of the same number")), within=10)
        await c.pause(3)
        for name in "abc":
            assert (name, c.members[name].election.view().conflicting_policies) == (name, ())
        await leader(c, "a")

    assert cluster(story).double == []


def test_twenty_five_nodes_agree_soon_and_ask_no_more_than_one_question_each_way_and_interval(cluster: Play) -> None:
    names = "abcdefghijklmnopqrstuvwxy"

    async def story(c: Any) -> None:
        await leader(c, "a")
        await until(lambda: all(m.election.view().settled for m in c.members.values()), within=5)
        await c.pause(3)
        c.network.asked.clear()
        await c.pause(2)
        assert {status for _, _, status in c.network.asked} == {304}
        links = len(names) * (len(names) - 1)
        assert 2 * links * 0.9 <= len(c.network.asked) <= 2 * links * 1.15
        await c.stop("a")
        await leader(c, "b")
        assert all(m.election.view().leader == "b" for n, m in c.members.items() if n in c.network.open)

    assert cluster(story, names).double == []


class Ownership:
    """Who owns the shared jobs of a spread cluster, as each running node decides. ``longest``: seconds without anybody;
    ``shared``: the part of all looks at which a job had two.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._since: dict[str, float] = {}
        self._looks = self._double = 0
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            running = {
                n: m.election.view() for n, m in self._cluster.members.items() if n in self._cluster.network.open
            }
            now = anyio.current_time()
            for job in (f"job-{i}" for i in range(25)):
                owners = [n for n, view in running.items() if view.quorate and hrw_owner(job, view.owners) == n]
                self._looks += 1
                self._double += len(owners) > 1
                if owners:
                    self._since.pop(job, None)
                else:
                    self.longest = max(self.longest, now - self._since.setdefault(job, now))
            await self._cluster.pause(0.04)

    @property
    def shared(self) -> float:
        return self._double / self._looks


async def one_after_another(c: Any, draw: random.Random) -> None:
    """A node stays away for less than an interval or for several."""
    for _ in range(100):
        name = draw.choice("abcde")
        await c.stop(name)
        await c.pause(draw.random() * draw.choice((0.1, 1, 3)))
        await c.start(name, "abcde")
        await c.pause(draw.random() * draw.choice((0.1, 1, 3)))


async def two_at_a_time(c: Any, draw: random.Random) -> None:
    """Three of five always run, not always the same three."""

    async def restart(name: str) -> None:
        await c.pause(draw.random())
        await c.stop(name)
        await c.pause(draw.random() * draw.choice((0.1, 1, 3)))
        await c.start(name, "abcde")

    for _ in range(50):
        async with anyio.create_task_group() as both:
            for name in draw.sample("abcde", 2):
                both.start_soon(restart, name)
        await c.pause(draw.random())


@pytest.mark.parametrize(("hangs_up", "bound"), [(True, 0.3), (False, 1.5)], ids=["hanging up", "silently"])
@pytest.mark.parametrize("restarts", [one_after_another, two_at_a_time])
def test_a_hundred_restarts_leave_no_job_of_a_spread_cluster_without_an_owner_for_two_intervals(
    cluster: Play, restarts: Callable[[Any, random.Random], Any], hangs_up: bool, bound: float
) -> None:
    """The interval is a second. Silently: something between the nodes hides that a connection has ended."""
    found: list[Ownership] = []

    async def story(c: Any) -> None:
        c.network.hangs_up = hangs_up
        found.append(Ownership(c))

        def whole() -> bool:
            return all(len(m.election.view().owners) == 5 for m in c.members.values())

        await until(whole, within=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found[0].watch)
            await restarts(c, random.Random(100))
            tasks.cancel_scope.cancel()
        await until(whole, within=5)

    cluster(story, "abcde", distribution="spread")
    assert 0 < found[0].longest <= bound
    assert found[0].shared < 0.05, "owners change with the view, and no view is old for long"


@pytest.mark.parametrize("silent", [True, False])
def test_a_broken_link_in_a_spread_cluster_costs_each_other_link_a_few_more_questions(
    cluster: Play, silent: bool
) -> None:
    """Everybody else goes on to name whom one node has lost, for good: asking them again settles nothing."""

    async def story(c: Any) -> None:
        await until(lambda: all(len(m.election.view().owners) == 5 for m in c.members.values()), within=5)
        c.network.cut("a", "d", silent=silent)
        await c.pause(0.5)
        c.network.asked.clear()
        await c.pause(10)

    asked = cluster(story, "abcde", distribution="spread").network.asked
    counts = Counter((asker, of) for asker, of, _ in asked)
    assert len(counts) == 18
    assert max(counts.values()) <= 10 * 1.1 + 7


def test_a_loss_in_a_spread_cluster_whose_links_are_not_whole_is_settled_as_soon_as_in_one_with_all(
    cluster: Play,
) -> None:
    found: list[Ownership] = []

    async def story(c: Any) -> None:
        await until(lambda: all(len(m.election.view().owners) == 5 for m in c.members.values()), within=5)
        c.network.cut("a", "d", silent=False)
        await c.pause(20.39)
        found.append(Ownership(c))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found[0].watch)
            await c.stop("e")
            await c.pause(5)
            tasks.cancel_scope.cancel()

    cluster(story, "abcde", distribution="spread")
    assert 0 < found[0].longest <= 0.3


def test_a_node_that_ends_is_replaced_within_two_questions(cluster: Play) -> None:
    async def story(c: Any) -> None:
        for turn in range(10):
            await leader(c, "a")
            await c.pause(3 + turn * 0.13)
            await c.stop("a")
            await leader(c, "b", within=0.2)
            await c.start("a", "abc")

    assert cluster(story).double == []


def test_a_peer_that_hangs_up_after_each_answer_is_asked_twice_an_interval_at_most(cluster: Play) -> None:
    async def story(c: Any) -> None:
        await leader(c, "a")
        await c.pause(3)
        c.network.asked.clear()
        for _ in range(1000):
            c.members["a"].election.hung_up(0)
            await c.pause(0.01)
        assert 18 <= sum(link[:2] == ("a", "b") for link in c.network.asked) <= 22
        await leader(c, "a", within=0.01)

    assert cluster(story).double == []
