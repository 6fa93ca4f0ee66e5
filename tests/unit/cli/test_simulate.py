"""``cronstable simulate`` on configurations in a file: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cronstable.cli.simulate import simulate_command
from cronstable.testing.sim.bugs import BUGS

JOBS = """
jobs:
  - {name: invoices, command: "true", schedule: "* * * * *"}
  - {name: sync, command: "true", schedule: "*/2 * * * *", concurrencyPolicy: Forbid}
"""
CLUSTER = "cluster: {backend: filesystem, filesystem: {path: /mnt/shared, ttl: 6}, catchUp: {window: 90}}\n"
STORM = ("--hours", "0.06", "--nodes", "3", "--faults", "all", "--fault-every", "20")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cronstable.yaml"
    path.write_text(CLUSTER + JOBS)
    return path


def simulate(config: Path, *options: str) -> Result:
    return CliRunner().invoke(simulate_command, ["-c", str(config), *options], standalone_mode=False)


def test_it_says_what_came_of_the_jobs_and_how_to_see_it_again(config: Path) -> None:
    done = simulate(config, "--seed", "7", *STORM)
    assert done.return_value == 0, done.output
    for text in ("3 nodes, 0.06 h, backend filesystem", "starts", "worst takeover", "every invariant held"):
        assert text in done.output
    again = f"cronstable simulate -c {config} --nodes 3 --hours 0.06 --seed 7 --backend filesystem"
    assert again in done.output
    assert "--faults kill,pause,partition,clock,store --fault-every 20" in done.output


def test_the_same_seed_gives_the_same_log_and_object(config: Path, tmp_path: Path) -> None:
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    seen = [json.loads(simulate(config, *STORM, "--json", "--log", str(log)).stdout) for log in logs]
    assert seen[0] == seen[1]
    assert logs[0].read_bytes() == logs[1].read_bytes() != b""
    assert seen[0]["violations"] == []
    assert seen[0]["faults"] > 1
    assert seen[0]["starts"] > 0


def test_a_violation_ends_with_1_and_its_fewest_faults(config: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == "opens-without-reading")
    with bug.planted():
        done = next(
            found
            for seed in range(50)
            if (found := simulate(config, "--seed", str(seed), *STORM, "--shrink")).return_value
        )
    assert done.return_value == 1
    assert "S2 at t=" in done.output or "L2 at t=" in done.output
    assert "the fewest faults that it takes:" in done.output
    assert "an invariant did not hold" in done.output


@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "none"])
def test_another_backend_can_be_tried(config: Path, backend: str) -> None:
    done = simulate(config, "--hours", "0.05", "--backend", backend, "--json")
    assert done.return_value == 0, done.output
    assert json.loads(done.stdout)["backend"] == backend


def test_a_configuration_without_a_cluster_is_simulated_without_an_election(tmp_path: Path) -> None:
    path = tmp_path / "alone.yaml"
    path.write_text(JOBS)
    done = simulate(path, "--hours", "0.05", "--nodes", "2")
    assert done.return_value == 0
    assert "no election: every node starts every job" in done.output


def test_gossip_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    path = tmp_path / "gossip.yaml"
    peers = "[{host: 'b:81'}, {host: 'c:81'}]"
    gossip = f"{{electLeader: true, nodeName: a, listen: '[::1]:81', tls: {{ca: a, cert: b, key: c}}, peers: {peers}}}"
    path.write_text(f"cluster: {gossip}\n{JOBS}")
    refused = str(simulate(path).exception)
    assert "gossip cannot be simulated" in refused
    assert "--backend filesystem|etcd" in refused


def test_unknown_faults_and_broken_configurations_are_wrong_usage(config: Path, tmp_path: Path) -> None:
    assert "there is no 'earthquake'" in str(simulate(config, "--faults", "kill,earthquake").exception)
    assert "is not a time" in str(simulate(config, "--from", "tomorrow").exception)
    broken = tmp_path / "broken.yaml"
    broken.write_text("jobs: [{name: a}]\n")
    assert simulate(broken).return_value == 2


def test_years_are_simulated_month_by_month_on_each_backend(config: Path) -> None:
    done = simulate(
        config, "--years", "0.0002", "--backend", "each", "--faults", "kill", "--fault-every", "600", "--json"
    )
    assert done.return_value == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["backends"] == ["filesystem", "etcd", "kubernetes"]
    assert (facts["violations"], facts["duplicates"]) == (0, 0)
    assert facts["due"] > 100
    assert "3 of 3 months" in done.stderr


def test_what_goes_with_years_alone_and_what_does_not_is_said(config: Path) -> None:
    assert "--backend each is for --years" in str(simulate(config, "--backend", "each").exception)
    assert "keeps no log" in str(simulate(config, "--years", "0.001", "--shrink").exception)


def test_a_month_of_a_year_can_be_seen_again(config: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == "opens-without-reading")
    weather = ("--faults", "all", "--fault-every", "60", "--fault-spell", "3", "--failing", "0.5")
    with bug.planted():
        done = simulate(config, "--years", "0.0002", *weather, "--from", "2026-03-01T00:00:00Z")
    assert done.return_value == 1
    again = next(line for line in done.output.splitlines() if "again: " in line)
    for text in ("--hours 1.752 --seed 0/1", "--fault-spell 3", "--failing 0.5", "--from 2026-03-01T00:00:00Z"):
        assert text in again


def test_the_times_of_a_kubernetes_section_are_those_of_the_simulation(tmp_path: Path) -> None:
    path, logs = tmp_path / "k8s.yaml", []
    for times in ("", "renewDeadlineSeconds: 4, retryPeriodSeconds: 1, "):
        log = tmp_path / "events.log"
        path.write_text(f"cluster: {{backend: kubernetes, kubernetes: {{{times}leaseDurationSeconds: 15}}}}\n{JOBS}")
        done = simulate(path, *STORM, "--log", str(log))
        assert done.return_value == 0, done.output
        logs.append(log.read_text())
    assert logs[0] != logs[1]
