"""GET /metrics: every family, read back by the library's own parsers; and what is sent when nothing changed."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import trustme
from cryptography import x509
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from cronstable.api import (
    ClusterView,
    Histogram,
    JobTally,
    Lateness,
    LeaseView,
    LiveRun,
    LockCount,
    NotifierTally,
    OpCount,
    Outcome,
    Pause,
    PeerStatus,
    PeerView,
    Resources,
    RunKey,
    RunRecord,
    StateStatus,
    StoreInfo,
    Tally,
    Topology,
)
from cronstable.builtin.web import families, samples
from cronstable.builtin.web.certificate import Certificates, ends_of
from cronstable.builtin.web.settings import Tls

pytestmark = pytest.mark.anyio

NOON = 1_800_000_000.0
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}


def fill(host: Any, make_job: Any) -> None:
    """A node about which every family has something to say."""
    host.add(
        make_job("a", raw={"sla": {"lateAfterSeconds": 5, "maxRuntimeSeconds": None}}), make_job("off", enabled=False)
    )
    used = Resources(cpu_user=1.0, cpu_system=0.5, max_rss=4096, taken=1)
    last = RunRecord(RunKey("r", "a", None), Outcome.SUCCESS, 0, NOON - 2, NOON, 2.0, resources=used)
    store = StoreInfo("filesystem", Topology.SHARED, "/mnt")
    host.set(
        live={"a": (LiveRun(RunKey("r2", "a", None), 7, NOON),)},
        history={"a": (last,)},
        paused={"a": Pause("a", NOON + 5)},
        late={"a": (Lateness("lateAfter", 5.0, 9.0),)},
        cluster_configured=True,
        election_configured=True,
        cluster=ClusterView(
            "gossip",
            "node-a",
            "v1:x",
            cluster_size=3,
            quorum=2,
            quorate=True,
            leader="node-a",
            is_leader=True,
            conflicting_sizes=(3, 4),
            peers=(PeerView("b:1", PeerStatus.AGREED), PeerView("c:1", PeerStatus.AGREED)),
        ),
        state=StateStatus(
            "filesystem",
            store,
            None,
            operations=MappingProxyType({"append": OpCount(3, 1, 0.5)}),
            dropped=MappingProxyType({"retry": 2}),
            locks=LockCount(7, 1.5),
        ),
        tally=Tally(
            jobs=MappingProxyType(
                {
                    "a": JobTally(
                        success=3,
                        failure=1,
                        unknown=1,
                        duration=Histogram((0.1, 1.0), (1, 0, 2), 7.5),
                        last_success=NOON,
                        last_failure=NOON - 9,
                        breaches=MappingProxyType({"lateAfter": 2}),
                        cpu_user=1.0,
                        cpu_system=0.5,
                        peak_rss=4096,
                    )
                }
            ),
            decisions=MappingProxyType({("run", "leader", True): 4}),
            claims=MappingProxyType({"won": 4}),
            notifiers=MappingProxyType({"mail": NotifierTally(3, 2, 1)}),
            leader_transitions=1,
        ),
    )


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


async def test_both_formats_have_every_family_under_its_kind_and_labels(serve: Any, host: Any, make_job: Any) -> None:
    fill(host, make_job)
    async with serve() as call:
        plain, opened = await call("GET", "/metrics"), await call("GET", "/metrics", OPEN)
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert opened.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert opened.body.endswith(b"# EOF\n")
    # This parser has no annotations.
    read = {family.name: family for family in cast("Any", parse_open)(opened.body.decode())}
    wanted = {family.name: family for family in (*families.OF_NODE, *families.OF_JOBS)}
    assert set(read) == set(wanted) - {"cronstable_certificate_expiry_timestamp_seconds"}
    assert {name: family.type for name, family in read.items()} == {name: wanted[name].kind for name in read}
    assert {name: family.documentation for name, family in read.items()} == {name: wanted[name].about for name in read}
    for name, family in read.items():
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset(wanted[name].labels)}, name
    text_names = {family.name for family in parse_text(plain.body.decode())}
    assert text_names == set(read)


async def test_the_samples_are_what_was_counted(serve: Any, host: Any, make_job: Any) -> None:
    fill(host, make_job)
    async with serve() as call:
        seen = values((await call("GET", "/metrics")).body.decode())

    def of(name: str, **labels: str) -> float:
        return seen[f"cronstable_{name}", tuple(sorted(labels.items()))]

    assert of("job_runs_total", job_name="a", status="success") == 3
    assert of("job_runs_total", job_name="off", status="cancelled") == 0
    assert of("job_runs_total", job_name="a", status="unknown") == 1
    assert of("job_duration_seconds_bucket", job_name="a", le="0.1") == 1
    assert of("job_duration_seconds_bucket", job_name="a", le="1.0") == 1
    assert of("job_duration_seconds_bucket", job_name="a", le="+Inf") == 3
    assert of("job_duration_seconds_count", job_name="a") == 3
    assert of("job_duration_seconds_sum", job_name="a") == 7.5
    assert of("job_duration_seconds_bucket", job_name="off", le="3600.0") == 0
    assert of("job_next_run_timestamp_seconds", job_name="a") == NOON + 90
    assert ("cronstable_job_next_run_timestamp_seconds", (("job_name", "off"),)) not in seen
    assert of("job_late", job_name="a", check="lateAfter") == 1
    assert of("job_sla_breaches_total", job_name="a", check="lateAfter") == 2
    assert sum(1 for name, _ in seen if name == "cronstable_job_late") == 1
    assert of("decisions_total", verdict="run", reason="leader", final="true") == 4
    assert of("notifier_messages_total", notifier="mail", result="dropped") == 1
    assert of("state_dropped_writes_total", kind="retry") == 2
    assert of("state_dropped_writes_total", kind="manifest") == 0
    assert (of("state_lock_acquisitions_total"), of("state_lock_wait_seconds_total")) == (7, 1.5)
    assert of("cluster_conflict", kind="size") == 1
    assert of("cluster_peers", status="agreed") == 2
    assert of("cluster_peers", status="conflict") == 0
    assert sum(1 for name, _ in seen if name == "cronstable_cluster_peers") == 8


async def test_a_lease_has_no_peers_and_without_a_cluster_there_is_only_the_switch(
    serve: Any, host: Any, make_job: Any
) -> None:
    view = ClusterView("etcd", "n", "v1:x", lease=LeaseView("n", None, None, None))
    async with serve() as call:
        none = values((await call("GET", "/metrics")).body.decode())
        host.set(cluster=view, cluster_configured=True)
        host.clock.advance(1)
        lease = values((await call("GET", "/metrics")).body.decode())
    assert {name: value for (name, _), value in none.items() if "_cluster_" in name} == {
        "cronstable_cluster_enabled": 0.0
    }
    assert lease["cronstable_cluster_enabled", ()] == 1.0
    assert not any(name in ("cronstable_cluster_peers", "cronstable_cluster_leader_info") for name, _ in lease)


async def test_names_of_jobs_are_escaped_and_jobs_that_are_gone_are_gone(serve: Any, host: Any, make_job: Any) -> None:
    odd = 'a"b\\c\nd\re \U0001f600 {x="y"}'
    host.add(make_job(odd), make_job("gone"))
    async with serve() as call:
        first = (await call("GET", "/metrics")).body.decode()
        host.set(jobs={odd: host.state.jobs[odd]})
        host.clock.advance(1)
        second = (await call("GET", "/metrics")).body.decode()
    names = {dict(labels).get("job_name") for _, labels in values(first)}
    assert odd.replace("\r", "\\r") in names
    assert "gone" in names
    assert '"gone"' not in second


async def test_a_part_that_fails_leaves_out_its_own_block_and_says_so_once(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(host, make_job)

    def broken(_: object) -> Any:
        raise RuntimeError("a plugin's bug")

    monkeypatch.setattr(samples, "cluster_samples", broken)
    monkeypatch.setattr(samples, "job_samples", broken)
    caplog.set_level(logging.ERROR)
    async with serve() as call:
        for _ in range(2):
            reply = await call("GET", "/metrics")
            host.clock.advance(1)
    seen = values(reply.body.decode())
    assert reply.status == 200
    assert {name: value for (name, _), value in seen.items() if "_cluster_" in name} == {
        "cronstable_cluster_enabled": 0.0
    }
    assert not any("_job_runs" in name for name, _ in seen)
    assert ("cronstable_info", (("version", "2.0.0"),)) in seen
    assert len(caplog.records) == 2


async def test_a_part_that_is_there_again_and_fails_again_is_said_again(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(host, make_job)

    def broken(_: object) -> Any:
        raise RuntimeError("a plugin's bug")

    caplog.set_level(logging.ERROR)
    async with serve() as call:
        for new in ("more", "and more"):
            with monkeypatch.context() as patched:
                patched.setattr(samples, "cluster_samples", broken)
                patched.setattr(samples, "job_samples", broken)
                host.add(make_job(new))  # only what changed of the jobs is written again
                await call("GET", "/metrics")
                host.clock.advance(1)
            whole = (await call("GET", "/metrics")).body.decode()
            assert any("_job_runs" in name for name, _ in values(whole))
            host.clock.advance(1)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"web: the metrics of {part} are left out" for part in ("jobs", "cluster")] * 2


async def test_only_what_changed_is_written_again(
    serve: Any, host: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.add(*[make_job(f"j{n}") for n in range(20)])
    written: list[str] = []
    real = samples.job_samples

    def noted(facts: Any) -> Any:
        written.append(facts.job.name)
        return real(facts)

    monkeypatch.setattr(samples, "job_samples", noted)
    async with serve() as call:
        await call("GET", "/metrics")
        assert len(written) == 20
        host.clock.advance(1)
        same = await call("GET", "/metrics")
        assert len(written) == 20
        host.set(paused={"j3": Pause("j3", NOON)})
        host.clock.advance(1)
        other = await call("GET", "/metrics", {"Accept-Encoding": "gzip"})
    assert written[20:] == ["j3"]
    assert other.headers["content-encoding"] == "gzip"
    before, after = values(same.body.decode()), values(gzip.decompress(other.body).decode())
    assert {key for key in after if before.get(key) != after[key]} >= {("cronstable_job_paused", (("job_name", "j3"),))}
    assert set(before) == set(after)


@pytest.mark.parametrize(
    ("section", "status"),
    [
        ({"metrics": {"public": True}}, 200),
        ({}, 401),
        ({"metrics": False}, 404),
        ({"metrics": {"enabled": False}}, 404),
    ],
)
async def test_who_may_scrape_is_configured(serve: Any, host: Any, section: dict[str, Any], status: int) -> None:
    async with serve(authToken={"value": "sesame"}, **section) as call:
        given = {"Authorization": "Bearer sesame"} if status == 404 else {}
        assert (await call("GET", "/metrics", given)).status == status


async def test_the_end_of_a_certificate_is_read_from_its_file(host: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = authority.issue_cert("localhost").cert_chain_pems[0].bytes()
    wanted = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    (tmp_path / "cert.pem").write_bytes(pem + authority.cert_pem.bytes())
    watched = Certificates(host, Tls(str(tmp_path / "cert.pem"), "key.pem"))
    await watched.look()
    assert watched.ends == {("web", str(tmp_path / "cert.pem")): wanted}
    (tmp_path / "cert.pem").unlink()
    await watched.look()
    assert len(watched.ends) == 1
    host.clock.advance(61)
    await watched.look()
    assert watched.ends == {}


@pytest.mark.parametrize(
    "text",
    [
        "nothing of the kind",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE----- cut",
    ],
)
def test_what_is_no_certificate_has_no_end(text: str) -> None:
    assert list(ends_of(text)) == []
