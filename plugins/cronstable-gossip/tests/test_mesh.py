"""``cluster.observability``: what nodes tell each other beside an election, and that it decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from cronstable_gossip.backend import GossipElection
from cronstable_gossip.load import NodeLoad
from cronstable_gossip.mesh import make
from cronstable_gossip.settings import Address, Settings, TlsFiles, mesh_problems, parse_mesh, problems
from cronstable_gossip.wire import Caller, Reply

from cronstable.api import ElectionContext, Severity
from cronstable.testing.clock import VirtualClock, run_virtual, until
from cronstable.testing.host import FakeHost

TLS = {"ca": "ca.pem", "cert": "n.pem", "key": "n.key"}
MESH: dict[str, Any] = {"listen": "0.0.0.0:8443", "tls": TLS, "peers": [{"host": "b:8443"}]}
FIGURES = MappingProxyType({"cpu_percent": 12.5, "cpu_count": 2.0, "proc_rss_bytes": 1024.0})


def said(found: Any) -> list[tuple[tuple[str | int, ...], str]]:
    return [(problem.path, problem.message) for problem in found if problem.severity is Severity.ERROR]


def test_beside_a_lease_the_mesh_needs_an_exchange_of_its_own() -> None:
    cluster: dict[str, Any] = {"backend": "etcd", "observability": {"shareNodeStats": True}}
    assert [message for _, message in said(mesh_problems(cluster))] == [
        "`observability` needs `listen`",
        "`observability` needs `tls`",
        "`observability` needs `peers`",
    ]
    assert said(mesh_problems({"backend": "etcd", "observability": MESH})) == []
    assert said(mesh_problems({"backend": "etcd"})) == []


def test_addresses_and_paths_of_the_mesh_are_held_to_the_same_rules() -> None:
    bad: dict[str, Any] = {**MESH, "listen": "::1:8443", "tls": {**TLS, "key": " "}, "peers": [{"host": "b"}]}
    assert [path for path, _ in said(mesh_problems({"observability": bad}))] == [
        ("cluster", "observability", "tls", "key"),
        ("cluster", "observability", "listen"),
        ("cluster", "observability", "peers", 0, "host"),
    ]
    assert parse_mesh(bad) is None


def test_under_gossip_the_mesh_has_no_exchange_of_its_own() -> None:
    gossip: dict[str, Any] = {**MESH, "observability": {"shareNodeStats": True, "listen": "0.0.0.0:1", "interval": 5}}
    assert [path for path, _ in said(problems(gossip))] == [
        ("cluster", "observability", "listen"),
        ("cluster", "observability", "interval"),
    ]
    assert parse_mesh({"shareNodeStats": True}) is None


def test_the_mesh_has_the_defaults_of_gossip() -> None:
    settings = parse_mesh(MESH)
    assert settings is not None
    assert (settings.exchange.interval, settings.exchange.drift_after, settings.connect_timeout) == (30.0, 3, 10.0)
    assert (settings.node_name, settings.share_node_stats) == (None, True)
    silent = parse_mesh({**MESH, "shareNodeStats": False, "nodeName": " a "})
    assert silent is not None
    assert (silent.node_name, silent.share_node_stats) == ("a", False)


class Nowhere:
    """No peers, and whoever asks is answered."""

    responder: Any = None

    async def rehearse(self) -> None: ...

    async def open(self, responder: Any) -> None:
        self.responder = responder

    async def close(self) -> None: ...

    async def ask(self, index: int, etag: str | None, timeout: float) -> Reply:
        raise OSError("nobody")

    async def push(self, index: int, body: bytes, timeout: float) -> None: ...

    async def decisions(self, index: int, job: str, limit: int, timeout: float) -> bytes:
        raise OSError("nobody")

    async def rotate(self) -> None: ...


class Ready:
    def started(self, value: None = None) -> None: ...


def answers(
    beside: Mapping[str, Any], play: Callable[[GossipElection, Nowhere, FakeHost], Any], read: Callable[[], Any]
) -> None:
    async def story() -> None:
        import anyio

        clock = VirtualClock.of_loop()
        host = FakeHost(clock, "a")
        context = ElectionContext(
            "gossip", "a", None, MappingProxyType({}), lambda: "v1:0", elect_leader=False, beside=beside
        )
        section = Settings(Address("0.0.0.0", 1), TlsFiles("", "", ""), ())
        network = Nowhere()
        election = GossipElection(context, host, section, lambda _: network, node_load=NodeLoad(host, read))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: election.run(host, task_status=Ready()))
            await anyio.sleep(0.1)
            await play(election, network, host)
            tasks.cancel_scope.cancel()

    run_virtual(story)


def test_peers_are_told_the_load_with_and_without_a_body_but_never_in_it() -> None:
    async def play(election: GossipElection, network: Nowhere, host: FakeHost) -> None:
        whole = network.responder.peer(Caller(None, None))
        again = network.responder.peer(Caller(whole.etag, None))
        assert (whole.status, again.status) == (200, 304)
        assert json.loads(whole.stats) == json.loads(again.stats) == dict(FIGURES)
        assert b"cpu_percent" not in whole.body

    answers({"observability": {}}, play, lambda: FIGURES)


def test_sharing_ends_and_begins_without_a_new_election() -> None:
    async def play(election: GossipElection, network: Nowhere, host: FakeHost) -> None:
        assert network.responder.peer(Caller(None, None)).stats is not None
        election.adjust({"observability": {"shareNodeStats": False}})
        assert network.responder.peer(Caller(None, None)).stats is None
        election.adjust({"observability": {}})
        assert network.responder.peer(Caller(None, None)).stats is not None
        election.adjust({})
        assert network.responder.peer(Caller(None, None)).stats is None

    answers({"observability": {}}, play, lambda: FIGURES)


def test_a_machine_that_cannot_be_looked_at_costs_the_figures_and_nothing_else() -> None:
    def broken() -> Mapping[str, float]:
        raise RuntimeError("no /proc here")

    async def play(election: GossipElection, network: Nowhere, host: FakeHost) -> None:
        reply = network.responder.peer(Caller(None, None))
        assert (reply.status, reply.stats) == (200, None)
        assert election.view().quorate

    answers({"observability": {}}, play, broken)


@pytest.mark.parametrize("beside", [{}, {"observability": {"shareNodeStats": False}}], ids=["no block", "switched off"])
def test_without_the_wish_to_share_nobody_looks(beside: Mapping[str, Any]) -> None:
    looked: list[int] = []

    def look() -> Mapping[str, float]:
        looked.append(1)
        return FIGURES

    async def play(election: GossipElection, network: Nowhere, host: FakeHost) -> None:
        assert network.responder.peer(Caller(None, None)).stats is None

    answers(beside, play, look)
    assert looked == []


def test_the_real_figures_are_the_documented_ones() -> None:
    from cronstable_gossip.load import _Psutil
    from cronstable_gossip.payload import NODE_STATS, build_stats, parse_stats

    figures = _Psutil().read()
    assert set(figures) == set(NODE_STATS)
    assert set(parse_stats(build_stats(figures))) == set(NODE_STATS)


# -- what is shown of the others --------------------------------------------------------------------------------------


def shown(c: Any, name: str = "a") -> dict[str, Any]:
    """Node stats by peer, as in GET /cluster."""
    return {peer.node_name: peer.node_stats for peer in c.members[name].election.view().peers}


def test_the_load_of_a_silent_node_is_shown_for_three_intervals_and_a_malformed_one_is_as_silence(cluster: Any) -> None:
    headers = {"b": '{"cpu_percent":7}', "c": None}

    async def story(c: Any) -> None:
        for name, header in headers.items():
            answer_with(c, name, header)
        await until(lambda: shown(c) == {"b": {"cpu_percent": 7.0}, "c": None}, within=3)
        answer_with(c, "b", "{nonsense")
        await c.pause(1.5)
        assert shown(c)["b"] == {"cpu_percent": 7.0}, "not yet old"
        await until(lambda: shown(c)["b"] is None, within=3)
        answer_with(c, "b", '{"cpu_percent":8}')
        await until(lambda: shown(c)["b"] == {"cpu_percent": 8.0}, within=2)
        c.network.cut("b", "ac", silent=True)
        await c.pause(2.5)
        assert shown(c)["b"] == {"cpu_percent": 8.0}
        await c.pause(8)
        assert shown(c)["b"] is None
        entry = next(node for node in c.members["a"].host.published[-1].nodes if node["node_name"] == "b")
        assert (entry["node_stats"], entry["jobs"]) == (None, {}), "runs stay with their time, the load does not"
        c.network.heal()
        await until(lambda: shown(c)["b"] is not None, within=5)
        answer_with(c, "b", None)
        await until(lambda: shown(c)["b"] is None, within=1.5, what="who shares no more to be shown no more")

    cluster(story)


def answer_with(c: Any, name: str, header: str | None) -> None:
    """Node ``name`` says of its load what stands in ``header``."""
    election = c.members[name].election

    class Answering:
        def peer(self, caller: Caller) -> Reply:
            reply: Reply = election.peer(caller)
            return replace(reply, stats=header)

        def take(self, body: bytes) -> bool:
            return bool(election.take(body))

    c.network.open[name] = Answering()


def test_a_mesh_that_cannot_start_is_said_once_and_tried_each_minute(tmp_path: Any) -> None:
    tries: list[float] = []

    async def story() -> None:
        import anyio

        clock = VirtualClock.of_loop()
        host = FakeHost(clock, "a")
        files: dict[str, Any] = {key: str(tmp_path / f"{key}.pem") for key in ("ca", "cert", "key")}
        settings = parse_mesh({**MESH, "tls": files})
        assert settings is not None
        mesh = make(settings, host)
        run = host.threads.run

        async def counted(call: Any, *, timeout: float, lane: str = "default") -> Any:
            tries.append(clock.now().boot)
            return await run(call, timeout=timeout, lane=lane)

        host.threads.run = counted  # type: ignore[method-assign]
        started: list[bool] = []

        class Told:
            def started(self, value: None = None) -> None:
                started.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: mesh.run(host, task_status=Told()))
            await anyio.sleep(150)
            assert started == [True], "whoever waits for services waits for no mesh"
            (line,) = host.logged("observability: cannot start")
            assert "cluster.observability.tls" in line or files["ca"] in line
            minutes = sorted({round((at - tries[0]) / 60) for at in tries})
            assert minutes == [0, 1, 2], "one try at the start and one each minute"
            tasks.cancel_scope.cancel()

    run_virtual(story)
    assert [round(at - tries[0]) for at in tries] == [0, 60, 120]
