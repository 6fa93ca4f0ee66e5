"""The whole backend on virtual time over the model: start, handover, faults, the view."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from cronstable_etcd.backend import make, timing_of
from cronstable_etcd.settings import parse

from cronstable.api import Election, HttpResponse, Observable, PluginError, RebootLedger
from cronstable.testing.clock import VirtualClock, always, run_virtual, until
from cronstable.testing.host import FakeHost

Answering = Callable[..., HttpResponse]
LEADER = b"cronstable/leader"


class Running:
    """An election under way."""

    def __init__(self, node: Any, etcd: Any, name: str, **settings: Any) -> None:
        self.line = node(etcd, name).line
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock, name, http=self.line)
        self.settings = parse({"endpoints": ["http://member-1:2379"], "ttl": 15, **settings})
        self.election = make(self.host.context("etcd", self.settings), self.host)
        self.scope = anyio.CancelScope()

    @property
    def leads(self) -> bool:
        return self.election.view().is_leader

    @property
    def quorate(self) -> bool:
        return self.election.view().quorate

    async def run(self, *, task_status: Any) -> None:
        with self.scope:
            await self.election.run(self.host, task_status=task_status)


@pytest.fixture
def elections(node: Any) -> Callable[..., Any]:
    """``async with elections(etcd, "a", "b") as (a, b)``: started one after the other, stopped at the end."""

    @asynccontextmanager
    async def start(etcd: Any, *names: str, **settings: Any) -> AsyncIterator[list[Running]]:
        nodes = [Running(node, etcd, name, **settings) for name in names]
        async with anyio.create_task_group() as tasks:
            for one in nodes:
                await tasks.start(one.run)
            yield nodes
            for one in nodes:
                one.scope.cancel()

    return start


def virtually(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


def test_the_first_node_leads_once_it_is_ready_and_the_second_follows(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            assert a.leads
            assert (b.leads, b.quorate, b.election.view().leader) == (False, True, "a")

    virtually(story)


def test_a_ready_election_says_where_and_as_whom(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a") as (a,):
            (line,) = a.host.logged("election ready")
            assert line.startswith("cluster: etcd election ready at http://member-1:2379 (election=cronstable/leader, ")
            assert line.endswith("ttl=15)")

    virtually(story)


def test_the_lease_view_has_lease_and_expiry_only_while_this_node_holds_it(model: Any, elections: Any) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a", "b") as (a, b):
            mine, theirs = a.election.view().lease, b.election.view().lease
            assert mine.fields == (("electionName", "cronstable/leader"), ("leaseId", str(etcd.keys[LEADER].lease)))
            assert (mine.identity, mine.holder, mine.fence) == ("a", "a", None)
            assert mine.expiry == a.host.clock.now().wall + 15
            assert theirs.fields == (("electionName", "cronstable/leader"), ("leaseId", None))
            assert (theirs.identity, theirs.holder, theirs.expiry) == ("b", "a", None)
            a.line.cut = "refused"
            await a.host.clock.sleep(15)
            assert a.election.view().lease.expiry is None

    virtually(story)


def test_a_graceful_stop_hands_over_at_once_through_the_watch(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b", "c") as (a, b, c):
            # Long enough for the followers to be somewhere inside a watch, wherever that is.
            for phase in (0.0, 1.3, 2.9, 4.1):
                await a.host.clock.sleep(phase)
            a.scope.cancel()
            await until(lambda: b.leads or c.leads, within=0.05, what="the takeover after a release")

    virtually(story)


def test_a_leader_that_stops_while_etcd_stands_still_is_replaced_once_it_answers_again(
    model: Any, elections: Any
) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            asked = len(a.line.calls)
            a.line.cut = "silent"
            a.scope.cancel()
            await a.host.clock.sleep(3)
            assert len(a.line.calls) - asked <= 2 * 3 + 1
            assert not b.leads
            a.line.cut = None
            await until(lambda: b.leads, within=3, what="the takeover after a release")

    virtually(story)


@pytest.mark.parametrize("cut", ["silent", "refused"])
@pytest.mark.parametrize("ttl", [15, 60, 300])
def test_a_leader_that_stops_while_etcd_is_away_ends_within_five_seconds_whatever_its_ttl(
    model: Any, elections: Any, ttl: int, cut: str
) -> None:
    async def story() -> None:
        async with elections(model(), "a", ttl=ttl) as (a,):
            a.line.cut = cut
            begun = a.clock.now().boot
        assert a.clock.now().boot - begun <= 5
        assert a.host.logged("was not released and runs out by itself")

    virtually(story)


@pytest.mark.parametrize("cut", ["silent", "refused"])
def test_a_leader_that_is_to_hurry_waits_no_longer_for_an_etcd_that_is_away(
    model: Any, elections: Any, cut: str
) -> None:
    async def story() -> None:
        async with elections(model(), "a", ttl=60) as (a,):
            a.line.cut = cut
            begun = a.clock.now().boot
            a.election.hurry()
        assert a.clock.now().boot - begun <= 1
        assert a.host.logged("was not released and runs out by itself")

    virtually(story)


def test_a_dead_leader_is_replaced_within_ttl_and_two_seconds(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            a.line.cut = "silent"
            await until(lambda: not a.leads, within=14.01, what="standing down")
            assert not b.leads
            await until(lambda: b.leads, within=3.1, what="the takeover")

    virtually(story)


def test_two_nodes_never_lead_at_one_instant_while_each_is_cut_off_now_and_then(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b", ttl=3) as nodes:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hiccups, nodes)
                await always(lambda: sum(n.leads for n in nodes) <= 1, during=300, every=0.05)
                tasks.cancel_scope.cancel()
            for one in nodes:
                one.line.cut = None
            await until(lambda: sum(n.leads for n in nodes) == 1, within=3 + 2, what="one leader when all is well")

    async def hiccups(nodes: list[Running]) -> None:
        while True:
            for number, one in enumerate(nodes):
                one.line.cut = ("silent", "refused")[number % 2]
                await one.host.clock.sleep(5)
                one.line.cut = None
                await one.host.clock.sleep(7)

    virtually(story)


def test_b32_a_lease_that_ran_out_while_the_network_was_away_is_won_again_as_a_new_term(
    model: Any, elections: Any
) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a") as (a,):
            first = etcd.keys[LEADER].lease
            a.line.cut = "silent"
            await a.host.clock.sleep(20)
            assert not a.leads
            assert not a.quorate
            etcd.expire()
            a.line.cut = None
            await until(lambda: a.leads, within=5, what="leading again")
            assert etcd.keys[LEADER].lease != first

    virtually(story)


def test_b42_an_etcd_that_is_away_for_less_than_the_margin_changes_no_leader(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            for _ in range(4):
                a.line.cut = b.line.cut = "refused"
                await always(lambda: a.leads and not b.leads, during=3)
                a.line.cut = b.line.cut = None
                await always(lambda: a.leads and not b.leads, during=17)
            assert not a.host.logged("leadership lost")

    virtually(story)


def test_a_keepalive_whose_answer_is_lost_costs_nothing_while_there_is_time(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            lost: list[float] = []

            def lose(url: str, path: str, body: Any) -> None:
                if path.endswith("keepalive") and len(lost) % 3:
                    lost.append(0)
                    raise TimeoutError("lost")
                if path.endswith("keepalive"):
                    lost.append(1)

            a.line.after = lose
            await always(lambda: a.leads and not b.leads, during=120)
            assert lost.count(0) > 10

    virtually(story)


@pytest.mark.parametrize("error", [OSError("refused"), ConnectionResetError("hung up"), TimeoutError("silent")])
def test_l4_a_dead_etcd_is_asked_twice_a_second_at_most(model: Any, elections: Any, error: OSError) -> None:
    def fail(url: str, path: str, body: Any) -> None:
        raise error

    async def story() -> None:
        async with elections(model(), "a", "b") as nodes:
            for one in nodes:
                one.line.before = fail
                one.line.calls.clear()
            await nodes[0].host.clock.sleep(60)
            for one in nodes:
                assert 10 < len(one.line.calls) <= 120

    virtually(story)


def test_l4_a_quiet_follower_asks_for_little(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (_, b):
            await b.host.clock.sleep(30)
            b.line.calls.clear()
            await b.host.clock.sleep(60)
            # Two looks around each watch of ttl / 3, and the marks once a minute.
            assert len(b.line.calls) <= 2 * 12 + 3

    virtually(story)


def test_b21_an_answer_to_the_acquisition_that_comes_after_the_ttl_makes_no_leader(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        a = Running(node, etcd, "a")

        async def stall(url: str, path: str, body: Any) -> None:
            if path.endswith("txn") and LEADER in etcd.keys:
                a.line.after = lambda url, path, body: None
                a.clock.advance(20)

        a.line.after = stall
        async with anyio.create_task_group() as tasks:
            await tasks.start(a.run)
            assert not a.leads
            await until(lambda: a.leads, within=20, what="a term of its own time")
            a.scope.cancel()

    virtually(story)


def test_a_key_deleted_by_hand_elects_one_leader_again_and_never_two(model: Any, elections: Any) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a", "b") as (a, b):
            etcd.revision += 1
            etcd.remove(LEADER, etcd.revision)
            etcd.wake()
            await always(lambda: a.leads + b.leads <= 1, during=5.5, every=0.01)
            assert a.leads
            await until(lambda: LEADER in etcd.keys, within=5)
            assert not [text for level, text in a.host.log_lines if level == "ERROR"]

    virtually(story)


def test_a_value_put_by_hand_stops_the_leader_and_is_gone_after_a_ttl(model: Any, elections: Any) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a", "b") as (a, b):
            etcd.revision += 1
            stored = etcd.keys[LEADER]
            stored.value, stored.lease, stored.mod = b"x", 0, etcd.revision
            await until(lambda: not a.leads, within=5.1, what="standing down")
            await always(lambda: not a.leads and not b.leads, during=9)
            await until(lambda: a.leads or b.leads, within=15 + 5 + 2, what="a leader again")
            assert etcd.keys[LEADER].value in (b"a", b"b")

    virtually(story)


def test_row_38_a_ttl_that_collapses_closes_leadership_until_it_recovers(model: Any, elections: Any) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a") as (a,):
            etcd.longest = 2
            await until(lambda: not a.leads, within=6, what="standing down")
            await always(lambda: not a.leads, during=60)
            assert len(a.host.logged("below 3 s: not leading")) == 1
            etcd.longest = 1 << 40
            await until(lambda: a.leads, within=15, what="leading again")

    virtually(story)


def test_row_36_a_new_leader_does_not_know_what_ran_before_it_has_read_it(model: Any, elections: Any) -> None:
    async def story() -> None:
        async with elections(model(), "a", "b") as (a, b):
            assert await a.election.mark_reboot_ran("once")
            assert a.election.reboot_ran("once") is True
            a.scope.cancel()
            seen: list[bool | None] = []

            def led() -> bool:
                if b.leads:
                    seen.append(b.election.reboot_ran("once"))
                return bool(seen) and seen[-1] is True

            await until(led, within=5, every=0.001, what="knowing that it ran")
            assert False not in seen
            assert not await b.election.mark_reboot_ran("once")

    virtually(story)


def test_nodes_of_one_name_elect_one_leader_all_the_same(model: Any, node: Any) -> None:
    async def story() -> None:
        etcd = model()
        twins = [Running(node, etcd, "same"), Running(node, etcd, "same")]
        twins[1].host.ids = type(twins[1].host.ids)("another process")
        twins[1].election = make(twins[1].host.context("etcd", twins[1].settings), twins[1].host)
        async with anyio.create_task_group() as tasks:
            for one in twins:
                await tasks.start(one.run)
            await always(lambda: twins[0].leads and not twins[1].leads, during=60)
            twins[0].scope.cancel()
            await until(lambda: twins[1].leads, within=1)
            twins[1].scope.cancel()

    virtually(story)


def test_b22_a_lease_that_etcd_extends_at_its_own_elections_only_delays_the_successor(
    model: Any, elections: Any
) -> None:
    async def story() -> None:
        etcd = model()
        async with elections(etcd, "a", "b") as (a, b):
            a.line.cut = "silent"
            for _ in range(2):
                await a.host.clock.sleep(12)
                etcd.leases = {lease: (ttl, etcd.now + ttl) for lease, (ttl, _) in etcd.leases.items()}
            assert not a.leads
            assert not b.leads
            await until(lambda: b.leads, within=15 + 2, what="the takeover")

    virtually(story)


def test_certificates_that_do_not_load_refuse_the_start_with_the_name_of_the_file(
    model: Any, node: Any, tmp_path: Path
) -> None:
    async def story() -> None:
        path = tmp_path / "absent.pem"
        a = Running(node, model(), "a", endpoints=["https://member-1:2379"], tls={"ca": str(path)})
        with pytest.raises(PluginError, match=r"absent\.pem cannot be read"), anyio.fail_after(60):
            await a.election.run(a.host, task_status=anyio.TASK_STATUS_IGNORED)
        with pytest.raises(PluginError, match=r"absent\.pem cannot be read"):
            await a.election.rehearse()
        assert a.line.calls == []

    virtually(story)


def test_certificates_that_rotate_are_used_within_a_minute_and_cost_no_leadership(
    model: Any, elections: Any, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))

    async def story() -> None:
        def refuse_first(url: str, path: str, body: Any) -> None:
            if "member-1" in url:
                raise OSError("refused")

        settings = {"endpoints": ["https://member-1:2379", "http://member-2:2379"], "tls": {"ca": str(path)}}
        async with elections(model(), "a", **settings) as (a,):
            before = a.line.tls
            assert before is not None
            path.unlink()
            trustme.CA().cert_pem.write_to_path(str(path))
            os.utime(path, (1, 1))
            await always(lambda: a.leads, during=60)
            assert a.line.tls not in (None, before)
            a.line.before = refuse_first
            await always(lambda: a.leads, during=20)
            assert a.line.tls is None

    virtually(story)


def test_an_etcd_that_is_away_at_the_start_is_waited_for(model: Any, node: Any) -> None:
    async def story() -> None:
        a = Running(node, model(), "a")
        a.line.cut = "refused"
        async with anyio.create_task_group() as tasks:
            await tasks.start(a.run)
            assert not a.quorate
            a.line.cut = None
            await until(lambda: a.leads, within=5)
            a.scope.cancel()

    virtually(story)


def test_the_election_has_all_optional_sides(model: Any, node: Any) -> None:
    async def story() -> None:
        election: Election = Running(node, model(), "a").election
        assert isinstance(election, RebootLedger)
        assert isinstance(election, Observable)

    virtually(story)


def test_settings_of_another_parser_are_refused_without_being_shown() -> None:
    async def story() -> None:
        host = FakeHost(VirtualClock.of_loop(), "a")
        with pytest.raises(PluginError, match="was not parsed by this plugin: dict"):
            make(host.context("etcd", {"password": "hunter2"}), host)

    virtually(story)


@pytest.mark.parametrize(("ttl", "post"), [(15, 1.8), (9, 1.0), (5, 0.467), (3, 0.2), (600, 10.0)])
def test_a_request_gets_a_fifth_of_the_round(ttl: float, post: float) -> None:
    timing, budget = timing_of(ttl, 10.0)
    assert budget == pytest.approx(post, abs=0.001)
    assert timing.renew_every + timing.op_timeout <= ttl - timing.margin + 1e-9
    assert timing.watch + timing.op_timeout < ttl
