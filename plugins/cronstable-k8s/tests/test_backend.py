"""The backend as the daemon makes it, in virtual time: how long things take, what is shown, what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cronstable_k8s.backend import KubernetesElection, timing_of
from cronstable_k8s.settings import KubernetesSettings, parse

from cronstable.api import Claims, Won
from cronstable.testing.clock import VirtualClock, always, run_virtual, until
from cronstable.testing.host import FakeHost

DURATION, RETRY = 15.0, 2.0


class Member:
    """One node: host, line, election, and a scope that ends it without a word."""

    def __init__(self, server: Any, line: Any, name: str, settings: KubernetesSettings) -> None:
        self.line = line(server)
        self.clock = VirtualClock.of_loop()
        self.host = FakeHost(self.clock, name, http=self.line)
        self.election = KubernetesElection(self.host.context("kubernetes", settings), self.host, settings)
        self.scope = anyio.CancelScope()

    async def run(self, *, task_status: Any) -> None:
        with self.scope:
            await self.election.run(self.host, task_status=task_status)

    @property
    def leads(self) -> bool:
        return self.election.view().is_leader

    @property
    def claims(self) -> Claims:
        claims = self.election.claims
        assert claims is not None
        return claims


class Fleet:
    def __init__(self, server: Any, members: list[Member]) -> None:
        self.server, self.members = server, members

    @property
    def leaders(self) -> list[Member]:
        return [member for member in self.members if member.leads]

    def others(self, member: Member) -> list[Member]:
        return [other for other in self.members if other is not member]

    @property
    def now(self) -> float:
        return self.members[0].clock.now().boot

    async def replaced(self, old: Member, within: float) -> float:
        """Seconds until another one leads."""
        begun = self.now
        await until(lambda: any(m.leads for m in self.others(old)), within=within, what="another leader")
        return self.now - begun


@pytest.fixture
def story(server: Any, line: Any, tmp_path: Path) -> Callable[..., None]:
    """Run a story with three members, one of which leads. ``watch`` False: the smallest role."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, namespace: default}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:8001'}}]\n"
    )

    @asynccontextmanager
    async def fleet(watch: bool) -> AsyncIterator[Fleet]:
        api = server()
        api.verbs = {"get", "update", "create"} | ({"watch"} if watch else set())
        settings = parse({"kubeconfig": str(kubeconfig), "clientLibrary": "http"})
        async with anyio.create_task_group() as tasks:
            members = [Member(api, line, name, settings) for name in ("a", "b", "c")]
            for member in members:
                await tasks.start(member.run)
            made = Fleet(api, members)
            await until(lambda: len(made.leaders) == 1, within=5)
            # Into the steady state: the others have seen renewals.
            await made.members[0].clock.sleep(11.3)
            yield made
            tasks.cancel_scope.cancel()

    def run(function: Callable[[Fleet], Awaitable[None]], *, watch: bool = True) -> None:
        async def main() -> None:
            async with fleet(watch) as made:
                await function(made)

        run_virtual(main)

    return run


both = pytest.mark.parametrize("watch", [True, False], ids=["watching", "polling"])


@both
def test_a_dead_leader_is_replaced_within_the_bound(story: Any, watch: bool) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        old.line.cut = "silent"
        took = await fleet.replaced(old, DURATION + 1.2 * RETRY)
        assert took > DURATION - RETRY - 1
        assert not old.leads

    story(main, watch=watch)


@both
def test_a_leader_that_stops_is_replaced_at_once_or_within_a_retry_period(story: Any, watch: bool) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        old.scope.cancel()
        took = await fleet.replaced(old, RETRY + 0.5)
        assert took < 0.2 or not watch

    story(main, watch=watch)


def test_a_leader_that_stops_while_the_apiserver_stands_still_is_replaced_once_it_answers_again(story: Any) -> None:
    """A renewal that landed late and a release that did not made others wait for a whole duration from then on."""

    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        begun, calls = fleet.now, len(old.line.calls)
        old.line.cut = "silent"
        old.scope.cancel()
        await old.clock.sleep(3)
        assert len(old.line.calls) - calls <= 2 * (fleet.now - begun) + 1
        old.line.cut = None
        await fleet.replaced(old, within=RETRY + 1)

    story(main)


@pytest.mark.parametrize("cut", ["silent", "refused"])
@pytest.mark.parametrize("hurries", [False, True])
def test_a_leader_that_stops_while_the_apiserver_is_away_ends_within_five_seconds_or_one(
    story: Any, cut: str, hurries: bool
) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        old.line.cut = cut
        old.scope.cancel()
        if hurries:
            await old.clock.sleep(2)
            old.election.hurry()
        said = "was not released and runs out by itself"
        await until(lambda: bool(old.host.logged(said)), within=1.1 if hurries else 5.1)

    story(main)


@both
def test_a_lease_that_somebody_deleted_is_left_to_its_holder_for_its_duration(story: Any, watch: bool) -> None:
    """Reference 13, row 37: whoever recreates it at once would lead beside the old holder."""

    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        fence = old.claims.term.fence  # type: ignore[union-attr]
        old.line.cut = "silent"
        fleet.server.delete()
        took = await fleet.replaced(old, 2 * DURATION)
        assert took > DURATION - RETRY - 1
        (new,) = fleet.leaders
        assert new.claims.term is not None
        assert new.claims.term.fence > fence

    story(main, watch=watch)


def test_a_holder_whose_lease_was_deleted_begins_a_new_term_itself(story: Any) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        term = old.claims.term
        fleet.server.delete()
        await until(lambda: old.claims.term not in (term, None), within=RETRY + 1)
        await always(lambda: len(fleet.leaders) <= 1, during=2 * DURATION)
        assert fleet.leaders == [old]

    story(main)


def test_an_outage_shorter_than_the_deadline_changes_nothing(story: Any) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        for member in fleet.members:
            member.line.cut = "refused"
        await always(lambda: fleet.leaders == [old], during=DURATION - 1 - RETRY - 0.5)
        for member in fleet.members:
            member.line.cut = None
        await always(lambda: fleet.leaders == [old], during=DURATION)
        assert fleet.leaders == [old]

    story(main)


@both
@pytest.mark.parametrize("cut", ["refused", "silent"])
def test_an_apiserver_that_fails_is_asked_twice_a_second_at_most(story: Any, watch: bool, cut: str) -> None:
    async def main(fleet: Fleet) -> None:
        for member in fleet.members:
            member.line.cut = cut
        before = [len(member.line.calls) for member in fleet.members]
        await until(lambda: not fleet.leaders, within=DURATION)
        begun = fleet.now
        await fleet.members[0].clock.sleep(60)
        for member, count in zip(fleet.members, before, strict=True):
            assert len(member.line.calls) - count <= 2 * (fleet.now - begun + DURATION)
            view = member.election.view()
            assert not view.quorate
            assert view.available

    story(main, watch=watch)


@both
def test_a_waiting_node_asks_about_as_often_as_the_leader_renews(story: Any, watch: bool) -> None:
    async def main(fleet: Fleet) -> None:
        before = [len(member.line.calls) for member in fleet.members]
        await fleet.members[0].clock.sleep(100)
        for member, count in zip(fleet.members, before, strict=True):
            assert 45 <= len(member.line.calls) - count <= 60

    story(main, watch=watch)


def test_the_view_has_the_lease_of_the_reference(story: Any) -> None:
    async def main(fleet: Fleet) -> None:
        (leader,) = fleet.leaders
        follower = fleet.others(leader)[0]
        for member in (leader, follower):
            lease = member.election.view().lease
            assert lease is not None
            assert lease.fields == (("name", "cronstable-leader"), ("namespace", "default"))
            assert (lease.identity, lease.holder, lease.fence) == (member.host.name, leader.host.name, None)
            assert (lease.expiry is not None) == (member is leader)
        assert leader.host.logged("kubernetes election ready at Lease default/cronstable-leader (identity=a#")

    story(main)


def test_an_identity_of_its_own_is_what_the_lease_shows(story: Any, server: Any, line: Any, tmp_path: Path) -> None:
    async def main() -> None:
        api = server()
        settings = parse(
            {"kubeconfig": str(tmp_path / "kubeconfig"), "identity": "cron-1", "clientLibrary": "http"},
        )
        member = Member(api, line, "a", settings)
        async with anyio.create_task_group() as tasks:
            await tasks.start(member.run)
            assert api.lease()["spec"]["holderIdentity"].startswith("cron-1#")
            view = member.election.view()
            assert view.is_leader
            assert view.lease is not None
            assert view.lease.identity == "cron-1"
            tasks.cancel_scope.cancel()
        assert "holderIdentity" not in api.lease()["spec"]

    run_virtual(main)


def test_an_apiserver_that_forbids_for_a_moment_while_it_starts_costs_no_term(story: Any, status: Any) -> None:
    async def main(fleet: Fleet) -> None:
        (leader,) = fleet.leaders
        term = leader.claims.term
        for member in fleet.members:
            member.line.before = lambda method, url, content: status(403, "not yet")
        await leader.clock.sleep(3)
        for member in fleet.members:
            member.line.before = lambda method, url, content: None
        await always(lambda: fleet.leaders == [leader], during=DURATION)
        assert leader.claims.term == term

    story(main)


def test_what_was_claimed_and_given_back_reaches_the_next_leader(story: Any) -> None:
    async def main(fleet: Fleet) -> None:
        (old,) = fleet.leaders
        assert isinstance(await old.claims.append(1, b"claim"), Won)
        old.claims.give_back(("run-1",))
        old.scope.cancel()
        await fleet.replaced(old, RETRY)
        (new,) = fleet.leaders
        assert new.claims.term is not None
        assert new.claims.term.returned == ("run-1",)
        assert await new.claims.read(1) == (b"claim",)

    story(main)


def test_one_request_gets_a_quarter_of_a_renewal_and_never_more_than_the_connect_timeout() -> None:
    timing, request = timing_of(KubernetesSettings(), 10.0)
    assert (timing.ttl, timing.renew_every, timing.round_deadline, request) == (15.0, 2.0, 10.0, 2.5)
    assert timing_of(KubernetesSettings(), 1.0)[1] == 1.0
    shortest, request = timing_of(
        parse({"leaseDurationSeconds": 3, "renewDeadlineSeconds": 1.9, "retryPeriodSeconds": 1}), 10
    )
    assert shortest.renew_every < shortest.ttl - shortest.margin
    assert request == 1.9 / 4
