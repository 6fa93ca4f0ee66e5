"""Three real daemons that have only each other: kill, stop and freeze them, cut their links, change their papers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme

pytestmark = pytest.mark.integration

INTERVAL, TIMEOUT = 1.0, 2.0
BOUND = 2 * INTERVAL + TIMEOUT
"""L1 for gossip, in seconds."""
SLACK = 15.0
"""For a busy two-core machine; what is measured belongs in benchmarks, these tests only must not hang."""

Fleet = Any
Wait = Callable[[Callable[[], object], float, str], None]
MINUTELY = (
    "  - name: minutely\n"
    "    command: 'echo \"$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)\" >> STAMPS'\n"
    '    schedule: "* * * * *"\n'
    "    clusterPolicy: Leader\n"
)


class Link:
    """A TCP proxy in a thread of its own: what connects to ``port`` reaches ``target`` while the link is up."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up = True
        self._pipes: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._socket))
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            # As the target itself would answer: nobody listens.
            writer.transport.abort()
            return
        self._pipes |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._pipes -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if self.up:
                    writer.write(data)
        except OSError:
            writer.transport.abort()
        writer.close()

    async def _end(self) -> None:
        """Those who carry bytes end when both their ends do; some may only now be on their way to the target."""
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for pipe in self._pipes:
                pipe.transport.abort()
            await asyncio.wait(tasks, timeout=0.1)
        if self._server is not None:
            self._server.close()
        # A transport that was told to end closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Papers:
    """Certificates of one CA, in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()

    def issue(self, name: str, ca: trustme.CA | None = None, not_after: datetime | None = None) -> dict[str, Path]:
        paths = {key: self.directory / f"{name}-{key}.pem" for key in ("ca", "cert", "key")}
        leaf = (ca or self.ca).issue_cert("localhost", "127.0.0.1", not_after=not_after)
        self.ca.cert_pem.write_to_path(str(paths["ca"]))
        leaf.private_key_pem.write_to_path(str(paths["key"]))
        paths["cert"].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return paths


class Mesh:
    """Ports, certificates and one link for each ordered pair of nodes."""

    def __init__(self, directory: Path, ports: list[int], *, links: bool) -> None:
        self.papers = Papers(directory)
        self.ports = ports
        self.names = [f"node-{chr(97 + i)}" for i in range(len(ports))]
        pairs = [(i, j) for i in range(len(ports)) for j in range(len(ports)) if i != j] if links else []
        self.links = {pair: Link(ports[pair[1]]) for pair in pairs}

    def cluster_of(self, i: int, members: Collection[int] | None = None) -> str:
        """The keys of node ``i`` in a cluster of ``members``, of all nodes without them."""
        files = self.papers.issue(self.names[i])
        tls = ", ".join(f"{key}: {path}" for key, path in files.items())
        others = [j for j in (range(len(self.ports)) if members is None else members) if j != i]
        hosts = "".join(f"    - host: 127.0.0.1:{self._port(i, j)}\n" for j in others)
        return (
            f"  listen: 127.0.0.1:{self.ports[i]}\n  tls: {{{tls}}}\n  peers:\n{hosts}"
            f"  interval: {INTERVAL:g}\n  connectTimeout: {TIMEOUT:g}\n  electLeader: true\n"
        )

    def _port(self, i: int, j: int) -> int:
        link = self.links.get((i, j))
        return link.port if link is not None else self.ports[j]

    def cut(self, i: int, *, up: bool = False) -> None:
        """Node ``i`` and the others hear nothing of each other any more."""
        for (x, y), link in self.links.items():
            if i in (x, y):
                link.up = up

    def close(self) -> None:
        for link in self.links.values():
            link.stop()


@pytest.fixture
def make_mesh(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Callable[..., Mesh]]:
    made: list[Mesh] = []

    def make(count: int = 3, *, links: bool = False) -> Mesh:
        made.append(Mesh(tmp_path, free_ports(count), links=links))
        return made[-1]

    yield make
    for mesh in made:
        mesh.close()


def settle(fleet: Fleet, waiting: Wait) -> None:
    """Until the lowest name leads and everybody knows; a node that was up earlier may lead before."""
    fleet.wait_until_whole()
    waiting(lambda: fleet.leaders() == [fleet.nodes[0]], BOUND + SLACK, "the lowest name to lead")
    fleet.wait_until_whole()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait) -> Fleet:
    fleet = make_fleet(backend_of=make_mesh().cluster_of)
    fleet.start()
    settle(fleet, waiting)
    return fleet


def duplicates(fleet: Fleet) -> list[str]:
    times = [scheduled for _, scheduled, _ in fleet.occurrences()]
    return sorted({t for t in times if times.count(t) > 1})


def test_three_that_start_at_once_elect_the_lowest_name_and_run_each_occurrence_once(
    fleet: Fleet, waiting: Wait
) -> None:
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 5, 20, "five occurrences")
    assert {node for node, _, _ in fleet.occurrences()[count + 1 :]} == {"node-a"}
    assert duplicates(fleet) == []
    assert fleet.two_leaders_at() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_leader_that_ends_is_replaced_and_takes_over_again_without_two(
    fleet: Fleet, waiting: Wait, rounds: int, number: int
) -> None:
    for _ in range(rounds):
        old = fleet.wait_for_leader(30)
        old.send(number)
        fleet.wait_for_leader(BOUND + SLACK, other_than=old)
        old.wait(20)
        old.start()
        settle(fleet, waiting)
    assert fleet.two_leaders_at() == []
    assert duplicates(fleet) == []


def test_a_leader_frozen_while_another_took_over_starts_nothing_on_its_old_view(fleet: Fleet, waiting: Wait) -> None:
    old = fleet.wait_for_leader(30)
    waiting(lambda: any(o[0] == old.name for o in fleet.occurrences()), 10, "the leader to run something")
    old.send(signal.SIGSTOP)
    frozen = time.time()
    new = fleet.wait_for_leader(BOUND + SLACK, other_than=old)
    waiting(lambda: time.time() > frozen + 2 * BOUND, 3 * BOUND, "twice the bound")
    old.send(signal.SIGCONT)
    waiting(lambda: fleet.leaders() == [old], BOUND + SLACK, "the lowest name to lead again")
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 3, 15, "the work to go on")
    assert new is not old
    assert fleet.two_leaders_at() == []
    assert duplicates(fleet) == []


def test_many_short_stalls_double_nothing(fleet: Fleet, waiting: Wait, rounds: int) -> None:
    pause = threading.Event()
    for turn in range(4 * rounds):
        old = fleet.wait_for_leader(30)
        old.send(signal.SIGSTOP)
        pause.wait(0.3 + turn * 0.45 % 2.5)
        old.send(signal.SIGCONT)
        pause.wait(0.4)
    fleet.wait_until_whole()
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 2, 15, "the work to go on")
    assert duplicates(fleet) == []
    assert fleet.two_leaders_at() == []


def test_a_cut_off_leader_steps_down_and_the_majority_goes_on(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh(links=True)
    fleet = make_fleet(backend_of=mesh.cluster_of)
    fleet.start()
    settle(fleet, waiting)
    for _ in range(2):
        mesh.cut(0)
        waiting(lambda: fleet.leaders() == [fleet.nodes[1]], BOUND + SLACK, "the majority to elect")
        assert not (fleet.nodes[0].cluster() or {}).get("quorate")
        mesh.cut(0, up=True)
        waiting(lambda: fleet.leaders() == [fleet.nodes[0]], BOUND + TIMEOUT + SLACK, "the cluster to heal")
    assert fleet.two_leaders_at() == []
    assert duplicates(fleet) == []


def test_the_fleet_shows_what_every_node_runs_in_the_documented_form(fleet: Fleet, waiting: Wait, repo: Path) -> None:
    def told() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{fleet.nodes[2].port}/fleet", timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def ran() -> bool:
        of = {node["node_name"]: node["jobs"] for node in told()["nodes"]}
        return bool(of.get("node-a") and of["node-a"]["tick"]["last"])

    waiting(ran, BOUND + SLACK, "the runs of the leader to be known")
    document = told()
    page = (repo / "docs" / "http-api.md").read_text(encoding="utf-8")
    example = json.loads(page.partition("### GET /fleet")[2].partition("```json\n")[2].partition("```")[0])
    assert document.keys() == example.keys()
    assert {frozenset(node) for node in document["nodes"]} == {frozenset(node) for node in example["nodes"]}
    assert [(node["node_name"], node["self"], node["status"]) for node in document["nodes"]] == [
        ("node-c", True, "self"),
        ("node-a", False, "agreed"),
        ("node-b", False, "agreed"),
    ]
    summary = document["nodes"][1]["jobs"]["tick"]
    assert summary.keys() == {"running", "enabled", "last", "scheduled_in"}
    assert summary["last"]["outcome"] == "success"


def test_a_second_node_of_one_name_closes_the_gate_until_it_goes(fleet: Fleet, tmp_path: Path, waiting: Wait) -> None:
    twin = fleet.nodes[2]
    twin.send(signal.SIGKILL)
    twin.wait(10)
    twin.config.write_text(twin.config.read_text().replace("nodeName: node-c", "nodeName: node-b"))
    twin.start()
    first = fleet.nodes[0]
    waiting(lambda: (first.cluster() or {}).get("conflict_names") == ["node-b"], BOUND + SLACK, "the conflict")
    count = len(fleet.occurrences())
    twin.send(signal.SIGKILL)
    twin.wait(10)
    waiting(lambda: len(fleet.occurrences()) > count + 1, BOUND + SLACK, "the gate to open again")
    assert duplicates(fleet) == []


def test_a_node_with_a_certificate_of_another_ca_is_untrusted_and_leads_nothing(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh()
    fleet = make_fleet(backend_of=mesh.cluster_of)
    mesh.papers.issue("node-a", ca=trustme.CA())
    fleet.start()
    waiting(lambda: fleet.leaders() == [fleet.nodes[1]], 30, "the others to elect")

    def statuses() -> list[str]:
        return [peer["status"] for peer in (fleet.nodes[1].cluster() or {}).get("peers", [])]

    waiting(lambda: statuses() == ["untrusted", "agreed"], BOUND + SLACK, "the stranger to be seen as one")
    assert not (fleet.nodes[0].cluster() or {}).get("quorate")


def test_a_job_due_while_the_leader_was_stopped_runs_once(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    fleet = make_fleet(backend_of=make_mesh().cluster_of, jobs=MINUTELY)
    fleet.start()
    settle(fleet, waiting)
    boundary = (time.time() // 60 + 1) * 60
    waiting(lambda: time.time() > boundary - 0.6, 62, "the end of the minute")
    old = fleet.wait_for_leader(10)
    old.send(signal.SIGSTOP)
    waiting(lambda: time.time() > boundary + 0.7, 5, "the minute to have begun")
    old.send(signal.SIGCONT)
    due = datetime.fromtimestamp(boundary, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def ran() -> list[str]:
        """Who started this one; the boundary before it may have passed while the fleet settled."""
        return [node for node, scheduled, _ in fleet.occurrences() if scheduled == due]

    waiting(ran, BOUND + SLACK, "the job")
    assert ran() == [old.name], "late, but nobody else had led"


def test_the_check_of_a_configuration_names_what_gossip_needs(tmp_path: Path) -> None:
    config = tmp_path / "bare.yaml"
    config.write_text("jobs: []\ncluster: {electLeader: true}\n")
    command = [sys.executable, "-m", "cronstable", "-c", str(config), "--validate-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert [key for key in ("listen", "tls", "peers") if f"needs `{key}`" not in said] == []


def test_a_mesh_beside_a_lease_shows_the_fleet_and_its_edit_keeps_the_leader(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait, tmp_path: Path
) -> None:
    mesh = make_mesh(2)

    def backend_of(i: int) -> str:
        keys = mesh.cluster_of(i).replace("  electLeader: true\n", "").replace("\n  ", "\n    ")
        lease = f"  backend: filesystem\n  filesystem:\n    path: {tmp_path / 'shared'}\n    ttl: 5\n"
        return f"{lease}  observability:\n  {keys}"

    fleet = make_fleet(2, backend_of=backend_of)
    fleet.start()
    fleet.wait_until_whole()

    def nodes(node: Any) -> list[Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/fleet", timeout=5) as answer:
            return list(json.load(answer)["nodes"])

    def told() -> bool:
        found = [nodes(node) for node in fleet.nodes]
        return all(len(both) == 2 and all(n["jobs"] is not None and n["node_stats"] for n in both) for both in found)

    waiting(told, 60, "both nodes to show both")
    assert [node["node_name"] for node in nodes(fleet.nodes[1])] == ["node-b", "node-a"]
    leader = fleet.wait_for_leader(30)
    fence = leader.cluster()["lease"]["fence"]
    config = leader.config.read_text()
    leader.config.write_text(config[: config.index("  observability:")] + config[config.index("jobs:") :])
    leader.send(signal.SIGHUP)
    other = next(node for node in fleet.nodes if node is not leader)
    waiting(lambda: any(n["status"] != "agreed" for n in nodes(other)[1:]), 60, "the other to miss it")
    waiting(lambda: nodes(leader) == [], 60, "the mesh to be gone")
    assert leader.cluster()["is_leader"]
    assert leader.cluster()["lease"]["fence"] == fence
    assert "leadership lost" not in leader.log.read_text()


def test_an_edit_that_meets_a_half_written_certificate_ends_no_election_and_counts_when_it_is_whole(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh()
    fleet = make_fleet(backend_of=mesh.cluster_of)
    fleet.start()
    settle(fleet, waiting)
    leader = fleet.nodes[0]
    certificate = mesh.papers.directory / f"{leader.name}-cert.pem"

    def reload() -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{leader.port}/summary", timeout=30) as answer:
            return json.load(answer)["reload"]

    whole = certificate.read_bytes()
    certificate.write_bytes(whole[: len(whole) // 2])
    config = leader.config.read_text()
    leader.config.write_text(config.replace(f"interval: {INTERVAL:g}\n", f"interval: {SLOW:g}\n"))
    leader.send(signal.SIGHUP)
    waiting(lambda: not reload()["ok"], 60, "the edit to be refused")
    assert certificate.name in reload()["error"]
    assert leader.cluster()["is_leader"]
    assert "leadership lost" not in leader.log.read_text()
    certificate.write_bytes(whole)
    leader.send(signal.SIGHUP)
    waiting(lambda: reload()["ok"], 60, "the edit to count")
    settle(fleet, waiting)


def asked_for_all(node: Any) -> dict[str, Any]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{node.port}/jobs/tick/decisions?fleet=true&limit=50", timeout=5
    ) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def one_tells_for_all(fleet: Any, channel: str, waiting: Wait) -> None:
    """Whoever is asked says what each node decided about one time; one that is killed is named, and costs no more."""
    waiting(lambda: len(fleet.occurrences()) >= 3, 60, "three occurrences")
    name, due, _ = fleet.occurrences()[-1]
    wanted = {node.name: "run" if node.name == name else "skip" for node in fleet.nodes}

    def told(node: Any) -> dict[str, str]:
        rows = asked_for_all(node)["decisions"]
        at = datetime.fromisoformat(due)
        return {row["node"]: row["verdict"] for row in rows if datetime.fromisoformat(row["scheduled_at"]) == at}

    waiting(lambda: [told(node) for node in fleet.nodes] == [wanted] * len(fleet.nodes), 30, "each to tell for all")
    first, *_, last = [node for node in fleet.nodes if node.name != name]
    command = [sys.executable, "-m", "cronstable", "why", "tick", due, "--url", f"http://127.0.0.1:{first.port}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    lines = said.stdout.splitlines()
    assert (said.returncode, said.stderr, lines[0]) == (0, "", f"tick, due {due}")
    assert f"  ran on {name}: this node leads (leader)" in lines
    assert {f"  skipped on {node}: another node leads (not-leader)" for node in wanted if node != name} <= set(lines)
    last.send(signal.SIGKILL)
    last.wait(10)
    found = asked_for_all(first)
    assert found["channel"] == channel
    assert {node["node"]: node["answered"] for node in found["nodes"]} == {
        node.name: node is not last for node in fleet.nodes
    }
    (problem,) = [node["problem"] for node in found["nodes"] if not node["answered"]]
    assert problem
    assert {row["node"] for row in found["decisions"]} == {node.name for node in fleet.nodes if node is not last}
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert [line for line in said.stdout.splitlines() if line.startswith(f"no answer from {last.name}: ")]


def test_one_gossip_node_tells_why_for_all_and_names_who_was_killed(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    fleet = make_fleet(3, backend_of=make_mesh(3).cluster_of)
    fleet.start()
    settle(fleet, waiting)
    one_tells_for_all(fleet, "gossip", waiting)


def test_beside_a_lease_one_node_of_the_mesh_tells_why_for_all_and_without_it_for_itself(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait, tmp_path: Path
) -> None:
    mesh = make_mesh(3)

    def backend_of(i: int) -> str:
        keys = mesh.cluster_of(i).replace("  electLeader: true\n", "").replace("\n  ", "\n    ")
        lease = f"  backend: filesystem\n  filesystem:\n    path: {tmp_path / 'shared'}\n    ttl: 5\n"
        return f"{lease}  observability:\n  {keys}"

    fleet = make_fleet(3, backend_of=backend_of)
    fleet.start()
    fleet.wait_until_whole()
    one_tells_for_all(fleet, "observability", waiting)
    alone = next(node for node in fleet.nodes if node.alive)
    config = alone.config.read_text()
    alone.config.write_text(config[: config.index("  observability:")] + config[config.index("jobs:") :])
    alone.send(signal.SIGHUP)
    waiting(lambda: asked_for_all(alone)["channel"] == "none", 60, "the mesh to be gone")
    found = asked_for_all(alone)
    assert [node["node"] for node in found["nodes"]] == [alone.name] == [*{row["node"] for row in found["decisions"]}]


EVERY_THREE = (
    "  - name: three\n"
    "    command: 'echo \"$NODE $CRONSTABLE_SCHEDULED_AT $(date +%s.%N)\" >> STAMPS'\n"
    '    schedule: "*/3 * * * * * *"\n'
    "    clusterPolicy: Leader\n"
)


class Migration:
    """Three nodes whose cluster section is edited while they run."""

    def __init__(self, fleet: Fleet, mesh: Mesh, waiting: Wait) -> None:
        self.fleet, self.mesh, self.waiting = fleet, mesh, waiting
        self.names = {node.name: i for i, node in enumerate(fleet.nodes)}

    def edit(self, node: Any, *, cluster: bool = True, elects: bool = False) -> None:
        """Right after an occurrence, so that there is time until the next one."""
        count = len(self.fleet.occurrences())
        text = node.config.read_text()
        head, tail = text[: text.index("cluster:")] if "cluster:" in text else text.split("jobs:")[0], text
        section = self.mesh.cluster_of(self.names[node.name])
        section = section if elects else section.replace("electLeader: true", "electLeader: false")
        own = f"cluster:\n  nodeName: {node.name}\n{section}" if cluster else ""
        node.config.write_text(f"{head}{own}jobs:{tail.split('jobs:')[1]}")
        if node.alive:
            self.waiting(lambda: len(self.fleet.occurrences()) > count, 60, "an occurrence")
            node.send(signal.SIGHUP)

    def runs(self, more: int = 2) -> None:
        """So many more occurrences."""
        count = len({at for _, at, _ in self.fleet.occurrences()})
        self.waiting(lambda: len({at for _, at, _ in self.fleet.occurrences()}) >= count + more, 60, "occurrences")

    def agreed(self) -> None:
        def all_agree() -> bool:
            views = [node.cluster() for node in self.fleet.nodes]
            return all(v and [p["status"] for p in v.get("peers", [])] == ["agreed", "agreed"] for v in views)

        self.waiting(all_agree, 60, "all to agree")

    def elected(self, count: int) -> None:
        def switched() -> bool:
            return sum(bool((node.cluster() or {}).get("elect_leader")) for node in self.fleet.nodes) == count

        self.waiting(switched, 60, f"{count} nodes to elect")


def test_one_node_becomes_a_cluster_and_one_node_again_and_no_occurrence_is_lost(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh()
    fleet = make_fleet(backend_of=mesh.cluster_of, jobs=EVERY_THREE)
    first, *others = fleet.nodes
    way = Migration(fleet, mesh, waiting)
    way.edit(first, cluster=False)
    first.start()
    waiting(lambda: fleet.occurrences(), 60, "the single node to run")
    for node in (first, *others):
        # Attestation first: every replica still runs everything, and they are seen to agree.
        way.edit(node)
        if node is not first:
            node.start()
    way.agreed()
    for count, node in enumerate(fleet.nodes, start=1):
        way.edit(node, elects=True)
        way.elected(count)
    switched = max(at for _, at, _ in fleet.occurrences())
    way.runs(3)
    since = [at for _, at, _ in fleet.occurrences() if at > switched]
    assert len(since) == len(set(since)), "doubled after the last node had switched"
    for count, node in enumerate(fleet.nodes, start=1):
        way.edit(node)
        way.elected(len(fleet.nodes) - count)
    for node in others:
        node.send(signal.SIGTERM)
        node.wait(30)
    way.edit(first, cluster=False)
    way.runs()
    times = sorted({datetime.fromisoformat(at).timestamp() for _, at, _ in fleet.occurrences()})
    assert times == [times[0] + 3 * i for i in range(len(times))], "an occurrence was lost on the way"


def test_one_way_links_and_bridges_never_make_two_leaders_and_a_majority_always_has_one(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh(links=True)
    fleet = make_fleet(backend_of=mesh.cluster_of)
    fleet.start()
    settle(fleet, waiting)
    first, second, _ = fleet.nodes
    broken = {
        "a does not hear b, who hears a": ([(0, 1)], first),
        "a and b only have c in common": ([(0, 1), (1, 0)], first),
        "nobody hears a, who hears all": ([(1, 0), (2, 0)], second),
    }
    for what, (pairs, leader) in broken.items():
        for pair in pairs:
            mesh.links[pair].up = False
        # Whoever leads now is of a majority that agrees in both directions.
        waiting(lambda: noticed(fleet), 60, f"{what}: the break to be noticed")
        waiting(lambda leader=leader: fleet.leaders() == [leader], 60, f"{what}: {leader.name} to lead")  # type: ignore[misc]
        for pair in pairs:
            mesh.links[pair].up = True
        settle(fleet, waiting)
    assert fleet.two_leaders_at() == []
    assert duplicates(fleet) == []


def noticed(fleet: Fleet) -> bool:
    views = [node.cluster() for node in fleet.nodes]
    return any(peer["status"] != "agreed" for view in views if view for peer in view["peers"])


def test_certificates_renewed_while_it_runs_cost_no_leader(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh()
    fleet = make_fleet(backend_of=mesh.cluster_of)
    fleet.start()
    settle(fleet, waiting)
    for name in mesh.names:
        mesh.papers.issue(name)
    changed = "the certificates changed and are in use"
    waiting(lambda: all(changed in node.log.read_text() for node in fleet.nodes), 150, "the rotation")
    fleet.wait_until_whole()
    assert fleet.leaders() == [fleet.nodes[0]]
    assert fleet.two_leaders_at() == []
    assert all("leadership lost" not in node.log.read_text() for node in fleet.nodes)


class Members:
    """Nodes whose list of members is edited while they run."""

    def __init__(self, fleet: Fleet, mesh: Mesh) -> None:
        self.fleet, self.mesh = fleet, mesh

    def edit(self, i: int, members: Collection[int]) -> None:
        node = self.fleet.nodes[i]
        text = node.config.read_text()
        head, jobs = text[: text.index("cluster:")], text[text.index("jobs:") :]
        own = f"cluster:\n  nodeName: {node.name}\n{self.mesh.cluster_of(i, members)}"
        node.config.write_text(head + own + jobs)
        if node.alive:
            node.send(signal.SIGHUP)

    def shown(self, i: int, key: str) -> Any:
        return (self.fleet.nodes[i].cluster() or {}).get(key)

    def statuses(self, i: int) -> list[str]:
        return [peer["status"] for peer in self.shown(i, "peers") or []]


def test_three_grow_to_five_and_double_nothing_and_the_fifth_is_shut_out_when_its_certificate_ends(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh(5)
    fleet = make_fleet(5, backend_of=mesh.cluster_of)
    of = Members(fleet, mesh)
    for i in range(3):
        of.edit(i, range(3))
        fleet.nodes[i].start()
    waiting(lambda: fleet.leaders() == [fleet.nodes[0]], 60, "three to elect")
    waiting(lambda: fleet.occurrences(), 60, "the job to run")
    for i in (3, 4):
        fleet.nodes[i].start()
    waiting(lambda: of.shown(3, "conflicting_sizes") == [3], 60, "the newcomers to see that the others count three")
    count = len(fleet.occurrences())
    for i in range(3):
        of.edit(i, range(5))
    waiting(lambda: [of.shown(i, "conflict") for i in range(5)] == [False] * 5, 60, "all to count five")
    waiting(lambda: [of.shown(i, "leader") for i in range(5)] == ["node-a"] * 5, 60, "five to have one leader")
    waiting(lambda: len(fleet.occurrences()) > count + 2, 60, "the job to go on")
    assert duplicates(fleet) == []
    assert of.shown(0, "quorum") == 3
    last = fleet.nodes[4]
    last.send(signal.SIGKILL)
    last.wait(10)
    mesh.papers.issue(last.name, not_after=datetime(2020, 1, 1, tzinfo=UTC))
    last.start()
    waiting(lambda: of.statuses(0) == ["agreed", "agreed", "agreed", "untrusted"], 60, "it to be untrusted")
    assert "expired" in of.shown(0, "peers")[3]["last_error"]
    assert not of.shown(4, "quorate")
    assert fleet.leaders() == [fleet.nodes[0]]
    assert duplicates(fleet) == []


SLOW = 5.0
"""Seconds: an interval beside which it does not count how long a process takes to start."""
SHARED = "  - name: NAME\n    command: 'true'\n    schedule: \"* * * * * * *\"\n    clusterPolicy: Leader\n"


class Ticker:
    """A thread that does nothing but look at the clock: what it misses, everybody on this machine missed."""

    STEP = 0.05
    LATE = 0.25

    def __init__(self) -> None:
        self.standstills: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        before = time.time()
        while not self._over.wait(self.STEP):
            now = time.time()
            if now - before > self.LATE:
                self.standstills.append((before + self.STEP, now))
            before = now

    def stood_still(self, begin: float, end: float) -> float:
        """Seconds of that time."""
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self.standstills)


class Owners:
    """Which occurrences of which shared job had an owner, as the nodes themselves decided at their own clocks.

    What was late to start had one all the same, so this is no measure of how busy the machine is.
    """

    def __init__(self, fleet: Fleet, jobs: Collection[str]) -> None:
        self._fleet = fleet
        self._owned: dict[str, set[float]] = {job: set() for job in jobs}

    def note(self) -> None:
        """Ask every node that runs what it decided: the next one to be stopped takes what it knows with it."""
        for node in (node for node in self._fleet.nodes if node.alive):
            for job, times in self._owned.items():
                url = f"http://127.0.0.1:{node.port}/jobs/{job}/decisions?limit=1000"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    decisions = json.load(answer)["decisions"]
                times |= {
                    datetime.fromisoformat(decision["scheduled_at"]).timestamp()
                    for decision in decisions
                    if (decision["verdict"], decision["reason"]) == ("run", "owner")
                }

    def seen(self) -> bool:
        """Each job has had an owner."""
        self.note()
        return all(self._owned.values())

    def spans(self) -> dict[str, list[tuple[float, float]]]:
        """From each owned occurrence to the next: nobody owned the job for less than that long."""
        return {job: list(pairwise(sorted(times))) for job, times in self._owned.items()}


def test_restarts_in_any_order_leave_no_shared_job_without_an_owner_for_two_intervals(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait, rounds: int
) -> None:
    """Ten restarts; with ``CRONSTABLE_ENDURANCE_ROUNDS=10`` a hundred, in eight minutes. Who runs is connected."""
    mesh = make_mesh()

    def spread(i: int) -> str:
        keys = mesh.cluster_of(i).replace(f"interval: {INTERVAL:g}\n", f"interval: {SLOW:g}\n")
        return f"{keys}  distribution: spread\n"

    jobs = [f"shared-{number}" for number in range(4)]
    fleet = make_fleet(backend_of=spread, jobs="".join(SHARED.replace("NAME", name) for name in jobs))

    def connected() -> bool:
        views = [node.cluster() for node in fleet.nodes]
        return all(
            v and v.get("quorate") and [p["status"] for p in v.get("peers", [])] == ["agreed", "agreed"] for v in views
        )

    fleet.start()
    waiting(connected, 60, "all to agree")
    owners = Owners(fleet, jobs)
    waiting(owners.seen, 30, "each job to have an owner")
    order = random.Random(5)
    with Ticker() as ticker:
        for _ in range(10 if rounds <= 2 else 10 * rounds):
            node = order.choice(fleet.nodes)
            for again in (True, False):
                owners.note()
                node.send(order.choice((signal.SIGKILL, signal.SIGTERM)))
                node.wait(30)
                node.start()
                if not again or order.random() < 0.7:
                    break
                # One that is stopped again before the others have taken it in.
                waiting(node.cluster, 60, "it to answer")
            waiting(connected, 60, "all to agree again")
        owners.note()
    longest = {
        job: max((after - before - ticker.stood_still(before, after), after - before) for before, after in spans)
        for job, spans in owners.spans().items()
    }
    print(f"the longest seconds between two owned occurrences, without standstills and with them: {longest}")
    print(f"this machine stood still {len(ticker.standstills)} times: {ticker.standstills}")
    assert {job: gap for job, gap in longest.items() if gap[0] > 2 * SLOW} == {}


def test_a_stranger_with_papers_at_a_members_address_is_a_new_member_and_leads_only_alone(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh()
    fleet = make_fleet(backend_of=mesh.cluster_of)
    fleet.start()
    settle(fleet, waiting)
    place = fleet.nodes[2]
    before = place.config.read_text()
    for text, leader in ((before.replace("nodeName: node-c", "nodeName: node-0"), place), (before, fleet.nodes[0])):
        place.send(signal.SIGKILL)
        place.wait(10)
        mesh.papers.issue("node-c")
        place.config.write_text(text)
        place.start()
        waiting(lambda leader=leader: fleet.leaders() == [leader], 60, "the first name to lead")  # type: ignore[misc]
        fleet.wait_until_whole()
        count = len(fleet.occurrences())
        waiting(lambda count=count: len(fleet.occurrences()) > count + 1, 30, "the job to go on")  # type: ignore[misc]
    assert fleet.two_leaders_at() == []
    assert duplicates(fleet) == []


THIN = "a b: ad ae bc bd"
"""One line of the list: who leads, and between whom there still is a link."""


def test_two_of_five_lead_on_a_thin_bridge_as_the_list_says_and_one_once_it_is_whole(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait, repo: Path
) -> None:
    assert THIN in (repo / "plugins" / "cronstable-gossip" / "thin-bridges.txt").read_text().splitlines()
    leaders, _, links = THIN.partition(": ")
    whole = {frozenset("abcde".index(end) for end in link) for link in links.split()}
    mesh = make_mesh(5, links=True)
    fleet = make_fleet(5, backend_of=mesh.cluster_of)
    fleet.start()
    fleet.wait_until_whole()
    waiting(lambda: fleet.leaders() == [fleet.nodes[0]], 60, "the lowest name to lead")
    for pair, link in mesh.links.items():
        link.up = frozenset(pair) in whole
    expected = [f"node-{letter}" for letter in leaders.split()]
    waiting(lambda: [node.name for node in fleet.leaders()] == expected, 60, "those whom the list names to lead")
    broken = len(fleet.occurrences())
    waiting(lambda: {o[0] for o in fleet.occurrences()[broken:]} >= set(expected), 30, "both of them to run the job")
    assert {o[0] for o in fleet.occurrences()[broken:]} == set(expected)
    for link in mesh.links.values():
        link.up = True
    waiting(lambda: fleet.leaders() == [fleet.nodes[0]], 60, "one to lead again")


def test_two_lists_that_differ_in_one_member_are_said_and_the_work_goes_on_with_one_leader(
    make_fleet: Callable[..., Fleet], make_mesh: Callable[..., Mesh], waiting: Wait
) -> None:
    mesh = make_mesh(4)
    fleet = make_fleet(4, backend_of=mesh.cluster_of)
    of = Members(fleet, mesh)
    for i in range(3):
        of.edit(i, range(3))
        fleet.nodes[i].start()
    waiting(lambda: fleet.leaders() == [fleet.nodes[0]], 60, "three to elect")
    of.edit(3, (0, 1, 3))
    fleet.nodes[3].start()
    of.edit(1, (0, 1, 3))
    said = "nodes list different members of the same number: members 'node-"
    waiting(lambda: all(said in node.log.read_text() for node in fleet.nodes[:2]), 60, "the difference to be said")
    waiting(lambda: [of.shown(i, "leader") for i in range(4)] == ["node-a"] * 4, 60, "all to follow one leader")
    assert [of.shown(i, "conflict") for i in range(4)] == [False] * 4
    count = len(fleet.occurrences())
    waiting(lambda: len(fleet.occurrences()) >= count + 3, 30, "the job to go on")
    assert {node for node, _, _ in fleet.occurrences()} == {"node-a"}
    assert duplicates(fleet) == []
    assert fleet.two_leaders_at() == []
