"""What the README and ``example/kubernetes`` show is valid, safe and one cluster."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cronstable_k8s.settings import KubernetesSettings

from cronstable.config import format_findings, load
from cronstable.plugin.manager import load_plugins

REPO = Path(__file__).parents[3]
EXAMPLE = REPO / "example" / "kubernetes"
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FILES = ("rbac", "config", "deployment", "statefulset")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLE / f"{name}.yaml").read_text()))


def the(kind: str, *names: str) -> Any:
    (found,) = [one for name in names or FILES for one in documents(name) if one["kind"] == kind]
    return found


def loaded(path: Path, environ: Mapping[str, str]) -> Any:
    result = load(str(path), plugins=load_plugins(os.environ), environ=environ, hostname="host")
    assert format_findings(result.findings, "text") == ""
    assert result.config is not None
    return result.config


@pytest.mark.parametrize("name", FILES)
def test_every_manifest_is_what_kubernetes_takes(name: str) -> None:
    found = documents(name)
    assert found
    for document in found:
        kubernetes_validate.validate(document, "1.31", strict=True)
        assert "namespace" not in document["metadata"], "kubectl -n says where"


def test_the_role_allows_what_the_plugin_does_and_nothing_else() -> None:
    named, unnamed = the("Role")["rules"]
    everything = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert named == {**everything, "resourceNames": ["cronstable-leader"], "verbs": ["get", "update", "watch"]}
    assert unnamed == {**everything, "verbs": ["create"]}
    binding, account = the("RoleBinding"), the("ServiceAccount")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == the("Role")["metadata"]["name"]


@pytest.mark.parametrize("name", ["deployment", "statefulset"])
def test_three_replicas_run_as_nobody_on_a_read_only_root(name: str) -> None:
    workload = the("Deployment" if name == "deployment" else "StatefulSet")
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 3
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert pod["serviceAccountName"] == the("ServiceAccount")["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == the("ConfigMap")["metadata"]["name"]
    assert "emptyDir" in volumes["tmp"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {probe["port"] for probe in probes.values()} == set(ports)
    assert {variable["name"] for variable in container["env"]} == {"POD_NAME"}
    mount = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "config")
    assert container["args"][1].startswith(f"{mount}/")
    assert int(container["args"][3]) < pod["terminationGracePeriodSeconds"], "--shutdown-grace, or SIGKILL comes first"
    assert Path(container["args"][1]).name in the("ConfigMap")["data"]


def test_both_workloads_have_the_same_pods() -> None:
    one, two = the("Deployment")["spec"]["template"], the("StatefulSet")["spec"]["template"]
    assert one == two


def test_the_configuration_is_one_cluster_with_one_job_of_each_policy(tmp_path: Path) -> None:
    path = tmp_path / "cronstable.yaml"
    path.write_text(the("ConfigMap")["data"]["cronstable.yaml"])
    configs = [loaded(path, {"POD_NAME": f"cronstable-{i}"}) for i in range(3)]
    assert [config.cluster.node_name for config in configs] == ["cronstable-0", "cronstable-1", "cronstable-2"]
    assert {config.cluster.settings for config in configs} == {KubernetesSettings()}
    assert len({config.job_set_id for config in configs}) == 1
    assert len({job.options.cluster_policy for job in configs[0].jobs}) == 3
    assert configs[0].cluster.settings.name in the("Role")["rules"][0]["resourceNames"]


def test_the_yaml_of_the_readme_is_valid(tmp_path: Path) -> None:
    config, role = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "cronstable.yaml").write_text(config)
    assert loaded(tmp_path / "cronstable.yaml", {}).cluster.backend.name == "kubernetes"
    document = yaml.safe_load(role)
    kubernetes_validate.validate(document, "1.31", strict=True)
    assert document["rules"] == the("Role")["rules"]


def test_the_readme_names_every_key_of_the_schema() -> None:
    schema = json.loads((REPO / "plugins/cronstable-k8s/src/cronstable_k8s/schema.json").read_text())
    for key, about in schema["properties"].items():
        assert f"| `{key}` |" in README
        assert about["description"]
