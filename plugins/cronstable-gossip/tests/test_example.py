"""What the compose files of ``example`` start is valid, and is one cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from cronstable_gossip.settings import normalise, parse_address

from cronstable.config import format_findings, load
from cronstable.plugin.manager import load_plugins

EXAMPLES = Path(__file__).resolve().parents[3] / "example"
CLUSTERS = {"cluster": 3, "grand-tour": 5, "cluster-large": 10}


def loaded(path: Path, node: str) -> Any:
    result = load(str(path), plugins=load_plugins(os.environ), environ={"CRONSTABLE_NODE": node}, hostname="host")
    assert format_findings(result.findings, "text").count("error") == 0
    assert result.config is not None, format_findings(result.findings, "text")
    return result.config


def services(name: str) -> dict[str, Any]:
    compose = yaml.safe_load((EXAMPLES / name / "docker-compose.yml").read_text())
    assert compose["volumes"] == {"certs": None}
    return dict(compose["services"])


def nodes(name: str) -> dict[str, Any]:
    return {key: service for key, service in services(name).items() if key != "certs"}


def files(name: str) -> list[Path]:
    """The configuration that a compose file starts, or those between which a variable chooses."""
    return sorted(path for path in (EXAMPLES / name).glob("*.yaml") if path.name != "jobs.yaml")


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_node_of_a_compose_file_has_a_valid_configuration_and_one_job_set(name: str) -> None:
    for path in files(name):
        ends = [min(nodes(name)), max(nodes(name))]
        configs = [loaded(path, node) for node in ends]
        assert [config.cluster.node_name for config in configs] == ends
        assert len({config.job_set_id for config in configs}) == 1
        assert {config.cluster.elect_leader for config in configs} == {True}


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_nodes_of_a_compose_file_are_the_members_each_drops_itself_from(name: str) -> None:
    section = yaml.safe_load(files(name)[0].read_text())["cluster"]
    listed = [parse_address(peer["host"]) for peer in section["peers"]]
    assert [address.host for address in listed] == list(nodes(name))
    assert len(listed) == CLUSTERS[name]
    for node in nodes(name):
        others = normalise(parse_address(section["listen"], listen=True), listed, node)
        assert [address.host for address in others] == [other for other in nodes(name) if other != node]


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_compose_file_gives_each_node_its_name_its_files_a_port_and_its_certificate(name: str) -> None:
    found = nodes(name)
    assert [service["ports"] for service in found.values()] == [
        [f"127.0.0.1:{8080 + i}:8080"] for i in range(len(found))
    ]
    for node, service in found.items():
        assert service["environment"]["CRONSTABLE_NODE"] == node
        flag, config = service["command"]
        chosen = Path(config.replace("${DISTRIBUTION:-spread}", "spread"))
        assert (flag, chosen.parent) == ("-c", Path("/etc/cronstable"))
        assert chosen.name in [path.name for path in files(name)]
        assert service["volumes"] == [".:/etc/cronstable:ro", "certs:/certs:ro"]
        assert service["depends_on"] == {"certs": {"condition": "service_completed_successfully"}}
    made = services(name)["certs"]["command"][0].rpartition("cronstable certs /certs ")[2]
    assert made.split() == list(found)
    build = services(name)["certs"]["build"]
    assert (EXAMPLES / name / build["context"] / build["dockerfile"]).is_file()
