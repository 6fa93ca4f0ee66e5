"""What the README and ``example/etcd`` show is valid and is one cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cronstable_etcd.settings import EtcdSettings, StateSettings

from cronstable.config import format_findings, load
from cronstable.plugin.manager import load_plugins

REPO = Path(__file__).parents[3]
EXAMPLE = REPO / "example" / "etcd"


def loaded(path: Path, environ: Mapping[str, str]) -> Any:
    result = load(str(path), plugins=load_plugins(os.environ), environ=environ, hostname="host")
    assert format_findings(result.findings, "text") == ""
    assert result.config is not None
    return result.config


def test_the_sample_nodes_are_one_cluster_with_one_job_of_each_policy() -> None:
    configs = [loaded(EXAMPLE / f"node-{name}.yaml", {}) for name in "ab"]
    assert {config.cluster.node_name for config in configs} == {"node-a", "node-b"}
    assert len({config.job_set_id for config in configs}) == 1
    assert {config.cluster.settings for config in configs} == {EtcdSettings()}
    assert {config.state.settings for config in configs} == {StateSettings()}
    assert len({job.options.cluster_policy for job in configs[0].jobs}) == 3


def test_the_compose_file_starts_the_sample_nodes_from_files_that_exist() -> None:
    compose = yaml.safe_load((EXAMPLE / "docker-compose.yml").read_text())
    services = compose["services"]
    assert set(services) == {"etcd", "cronstable-a", "cronstable-b"}
    for name in ("cronstable-a", "cronstable-b"):
        service = services[name]
        config = EXAMPLE / Path(service["command"][1]).relative_to("/etc/cronstable")
        found = loaded(config, service["environment"])
        assert found.cluster.settings.endpoints == found.state.settings.endpoints == ("http://etcd:2379",)
        assert (EXAMPLE / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_yaml_of_the_readme_is_valid(number: int, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    config = tmp_path / "cronstable.yaml"
    config.write_text(blocks[number])
    found = loaded(config, {"ETCD_PASSWORD": "x"})
    backend = found.state.backend if number == 2 else found.cluster.backend
    assert backend.name == "etcd"


def test_the_readme_names_every_key_of_the_schema() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for key in ("endpoints", "electionName", "ttl", "username", "password", "tls.ca", "tls.cert", "tls.key", "prefix"):
        assert f"`{key}`" in text
