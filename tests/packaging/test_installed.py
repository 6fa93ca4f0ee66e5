"""The installed programs, run from outside the checkout."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Run = Callable[..., "subprocess.CompletedProcess[str]"]

JOB = "jobs:\n  - name: hello\n    command: echo hello\n    schedule: '0 2 * * *'\n"
CLUSTER = "cluster:\n  backend: filesystem\n  filesystem:\n    path: {path}\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_installed_cronstable_is_ours(run: Run, environment: Path, repo: Path) -> None:
    code = "import cronstable, cronstable.api as a; print(cronstable.__file__, cronstable.__version__, a.__file__)"
    done = run("python", "-c", code)
    file, version, api = done.stdout.split()
    assert version == "2.0.0"
    assert environment in Path(file).parents
    assert repo not in Path(file).parents
    ours = hashlib.sha256((repo / "cronstable" / "api.py").read_bytes()).digest()
    assert hashlib.sha256(Path(api).read_bytes()).digest() == ours


def test_what_was_installed_fits_together(run: Run) -> None:
    done = run("python", "-m", "pip", "check", "--disable-pip-version-check")
    assert done.returncode == 0, done.stdout


def test_the_version_is_printed_without_a_plugin_or_a_framework(
    run: Run, environment: Path, projects: Mapping[str, Path]
) -> None:
    done = run("python", "-X", "importtime", str(environment / "bin" / "cronstable"), "--version")
    assert (done.returncode, done.stdout) == (0, "2.0.0\n")
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "cronstable" in loaded
    frameworks = {"pluggy", "stevedore", "aiohttp", "click", "rich", "httpx", "anyio", "asyncio", "jinja2"}
    plugins = {name.replace("-", "_") for name in projects} - {"cronstable"}
    assert not loaded & (frameworks | plugins)


def hooks_in(package: Path) -> list[str]:
    """Names of the hooks that a plugin's module defines."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    return sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("cronstable_"))


def expected_listing(project: Path) -> dict[str, Any]:
    """What ``cronstable plugins`` must say of a plugin, going by its sources."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, module),) = about["entry-points"]["cronstable.plugins"].items()
    return {
        "name": name,
        "distribution": about["name"],
        "version": about["version"],
        "module": module,
        "builtin": False,
        "ok": True,
        "disabled": False,
        "error": None,
        "hooks": hooks_in(project / "src" / module),
    }


def test_the_plugins_are_listed_with_their_distributions(run: Run, projects: Mapping[str, Path]) -> None:
    done = run("cronstable", "plugins", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert [(plugin["name"], plugin["error"]) for plugin in listed if not plugin["ok"]] == []
    provided = {plugin["name"]: plugin.pop("provides") for plugin in listed if not plugin["builtin"]}
    assert all(provided.values())
    assert {"election backend:etcd", "election backend:filesystem", "notifier:webhook"} <= set(
        chain(*provided.values())
    )
    found = sorted((p for p in listed if not p["builtin"]), key=lambda p: str(p["name"]))
    expected = [expected_listing(project) for name, project in projects.items() if name != "cronstable"]
    assert [{**p, "hooks": sorted(p["hooks"])} for p in found] == sorted(expected, key=lambda p: str(p["name"]))


def test_the_listing_is_a_table_for_people(run: Run) -> None:
    done = run("cronstable", "plugins", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "cronstable-fs 2.0.0" in done.stdout
    assert "cronstable-etcd 2.0.0" in done.stdout


def test_a_broken_plugin_is_listed_and_the_listing_succeeds(run: Run, tmp_path: Path) -> None:
    metadata = tmp_path / "acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[cronstable.plugins]\nacme = acme_absent\n")
    done = run("cronstable", "plugins", "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (broken,) = [plugin for plugin in json.loads(done.stdout) if not plugin["ok"]]
    assert (broken["distribution"], broken["error"]) == (
        "acme",
        "ModuleNotFoundError: No module named 'acme_absent'",
    )


def test_the_schema_of_the_installation_has_the_plugin_s_section(run: Run) -> None:
    done = run("cronstable", "schema")
    assert done.returncode == 0, done.stderr
    cluster = json.loads(done.stdout)["properties"]["cluster"]["properties"]
    assert "filesystem" in cluster
    assert "filesystem" in cluster["backend"]["enum"]


def test_a_good_file_is_valid(run: Run, tmp_path: Path) -> None:
    text = JOB + CLUSTER.format(path=tmp_path / "mount")
    done = run("cronstable", "--validate-config", "-c", write(tmp_path / "good.yaml", text))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_bad_file_is_refused_with_its_place_and_no_traceback(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.yaml", JOB.replace("command", "comand"))
    done = run("cronstable", "--validate-config", "-c", path)
    assert done.returncode == 1
    assert f"{path}:3:" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_backend_whose_plugin_is_disabled_is_explained(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "good.yaml", JOB + CLUSTER.format(path=tmp_path / "mount"))
    done = run("cronstable", "--validate-config", "-c", path, CRONSTABLE_DISABLED_PLUGINS="fs")
    assert done.returncode == 1
    assert "fs (cronstable-fs 2.0.0)" in done.stdout + done.stderr


def test_the_trace_goes_to_stderr_and_leaves_stdout_alone(run: Run) -> None:
    done = run("cronstable", "plugins", "--json", CRONSTABLE_TRACE_PLUGINS="1")
    assert json.loads(done.stdout)
    assert "cronstable plugins: fs (cronstable-fs 2.0.0): imported cronstable_fs in " in done.stderr
