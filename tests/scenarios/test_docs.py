"""The pages say what the code does: names, keys, reasons, endpoints, commands, examples and links."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast, get_args

import pytest

from cronstable import api
from cronstable.api import JobEvent, LeaderChange, template_variables
from cronstable.builtin.shell import environment
from cronstable.builtin.web.app import Api
from cronstable.builtin.web.auth import Guard
from cronstable.builtin.web.contexts import Contexts
from cronstable.builtin.web.settings import WebSettings
from cronstable.cli.main import COMMANDS
from cronstable.config import LoadResult, compose_schema, format_findings, load
from cronstable.core.decision import Reason
from cronstable.core.occurrence import occurrence_env
from cronstable.core.runs import RunKey
from cronstable.core.schedule import NICKNAMES
from cronstable.plugin import hookspecs
from cronstable.plugin.manager import Plugins, load_plugins
from cronstable.testing.clock import VirtualClock
from cronstable.testing.host import FakeHost

REPO = Path(__file__).parents[2]
DOCS = REPO / "docs"
PAGES = sorted([REPO / "README.md", *DOCS.rglob("*.md"), *(REPO / "example").rglob("*.md")])
EXAMPLES = ("single", *(f"filesystem-cluster/node-{name}.yaml" for name in "abc"))


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(os.environ)


@pytest.fixture(scope="module")
def filled(plugins: Plugins) -> Callable[[str], str]:
    """What ``make docs`` makes of a page."""
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    schema = compose_schema(plugins)
    return lambda text: cast("str", module.filled(text, schema))


def load_config(path: Path, plugins: Plugins, environ: Mapping[str, str]) -> LoadResult:
    return load(str(path), plugins=plugins, environ=environ, hostname="host")


# -- pages and code ---------------------------------------------------------------------------------------------------


def test_the_configuration_page_has_every_key_of_the_schema_and_no_other(filled: Callable[[str], str]) -> None:
    text = page("configuration.md")
    shown = {row[0]: row[2] for row in table_rows(text) if len(row) == 4}
    wanted = {row[0]: row[2] for row in table_rows(filled(text)) if len(row) == 4}
    assert len(wanted) > 100
    assert shown == wanted, "run: make docs"


def test_the_code_in_the_plugin_guide_is_that_of_the_examples(filled: Callable[[str], str]) -> None:
    text = page("plugin-author-guide.md")
    assert text.count("<!-- file: ") == len(list((REPO / "example").glob("plugin-*/src/*/*.py"))) + 1
    assert text == filled(text), "run: make docs"


def test_every_reason_is_explained_once() -> None:
    section = page("operator-guide.md").partition("## Why it ran")[2]
    explained = [row[0].strip("`") for row in table_rows(section) if row[0].startswith("`")]
    assert sorted(explained) == sorted(reason.value for reason in Reason)


def test_the_messages_that_the_failure_table_quotes_are_those_of_the_code() -> None:
    section = page("operator-guide.md").partition("## When something fails")[2].partition("\n## ")[0]
    quoted = [text for row in table_rows(section) for text in re.findall(r"`([^`]* [^`]*)`", row[1])]
    assert len(quoted) > 10
    files = [*(REPO / "cronstable").rglob("*.py"), *(REPO / "plugins").glob("*/src/**/*.py")]
    code = re.sub(r"%s|\{[^{}]*\}", "filesystem", "\n".join(file.read_text(encoding="utf-8") for file in files))
    # Parts that come from somewhere else (a path, the system's own words, a reason) are between these marks.
    parts = [part for text in quoted for part in re.split(r": |\.\.\.|PATH|No space left|quorate: false", text)]
    assert [part for part in parts if part.strip() and part.strip() not in code] == []


def test_every_hook_is_documented_with_its_exact_signature() -> None:
    text = page("plugin-author-guide.md")
    hooks = {name: value for name, value in vars(hookspecs).items() if name.startswith("cronstable_")}
    assert len(hooks) == 7
    for name, hook in hooks.items():
        signature = str(inspect.signature(hook)).replace("'", "")
        assert f"`{name}{signature}`" in text


def test_every_name_of_the_api_appears_in_the_plugin_guide() -> None:
    text = page("plugin-author-guide.md")
    missing = [name for name in api.__all__ if not re.search(rf"\b{name}s?\b", text)]
    assert missing == []


def test_every_endpoint_is_documented_and_no_other() -> None:
    clock = VirtualClock()
    host = FakeHost(clock)
    app = Api(host, WebSettings(listen=()), Guard((), frozenset(), clock, host.log), Contexts()).application()
    served = set()
    for route in app.router.routes():
        if route.method in ("GET", "POST") and route.resource is not None:
            served.add(f"{route.method} {re.sub(r':[^}]*', '', route.resource.canonical)}")
    # The files of the dashboard are its own business.
    served = {path for path in served if not path.startswith("GET /ui/")}
    documented = {
        f"{method} {path.strip('`')}"
        for row in table_rows(page("http-api.md"))
        for method, _, path in [row[0].partition(" ")]
        if method in ("GET", "POST")
    }
    assert documented == served


def test_every_command_is_in_the_user_guide() -> None:
    text = page("user-guide.md")
    assert [name for name in COMMANDS if f"`cronstable {name}" not in text] == []


def test_every_nickname_and_every_variable_of_a_run_is_in_the_user_guide() -> None:
    text = page("user-guide.md")
    assert [name for name in (*NICKNAMES, "@reboot") if f"`{name}`" not in text] == []
    variables = occurrence_env(RunKey("id", "job", 0), "node", "default", False, fence=1)
    documented = {row[0].strip("`") for row in table_rows(text) if row[0].startswith("`CRONSTABLE_")}
    assert documented == set(variables)


def test_every_variable_of_a_report_is_in_the_user_guide() -> None:
    section = page("user-guide.md").partition("## Reports")[2].partition("\n## ")[0]
    variables = template_variables(LeaderChange("node", True, "node", 0.0))
    documented = set(re.findall(r"`([A-Za-z_]+)`", section))
    only_for_clusters = {"role", "is_leader", "leader"}
    assert set(variables) - documented - only_for_clusters == set()
    assert set(environment(variables)) - documented == set()
    assert set(get_args(JobEvent)) - documented == set()


# -- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_sample_configurations_load_without_a_finding(name: str, plugins: Plugins) -> None:
    result = load_config(REPO / "example" / name, plugins, {})
    assert format_findings(result.findings, "text") == ""
    assert result.config is not None
    assert len(result.config.jobs) == 3


def test_the_nodes_of_the_sample_cluster_have_one_job_set_and_three_names(plugins: Plugins) -> None:
    configs = [load_config(REPO / "example" / name, plugins, {}).config for name in EXAMPLES[1:]]
    assert len({config.job_set_id for config in configs if config is not None}) == 1
    names = {config.cluster.node_name for config in configs if config is not None and config.cluster is not None}
    assert names == {"node-a", "node-b", "node-c"}


def yaml_blocks() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        blocks = re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        found += [(f"{path.relative_to(REPO)} {i}", block) for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize("block", [pytest.param(text, id=name) for name, text in yaml_blocks()])
def test_the_yaml_of_the_pages_is_valid(
    block: str, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_TOKEN", "open")
    monkeypatch.setenv("POD_NAME", "cronstable-0")
    secret = tmp_path / "viewer"
    secret.write_text("sesame\n", encoding="utf-8")
    config = tmp_path / "cronstable.yaml"
    config.write_text(re.sub(r"/run/secrets/[a-z-]+", str(secret), block), encoding="utf-8")
    result = load_config(config, plugins, os.environ)
    assert result.config is not None, format_findings(result.findings, "text")


# -- links ------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """What a heading is called in a link."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(REPO))) for p in PAGES])
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


def test_every_decision_is_listed_and_complete() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    decisions = sorted((DOCS / "adr").glob("0*.md"))
    assert [path.name[:4] for path in decisions] == [f"{i:04}" for i in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert f"]({path.name})" in index
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, path.name


def test_the_files_that_decisions_name_exist() -> None:
    missing = []
    for path in sorted((DOCS / "adr").glob("0*.md")):
        for name in re.findall(r"`([a-z_/-]+/[a-z_0-9/-]+\.(?:py|yaml))`", path.read_text(encoding="utf-8")):
            if not ((REPO / "cronstable" / name).exists() or (REPO / name).exists()):
                missing.append(f"{path.name}: {name}")
    assert missing == []
