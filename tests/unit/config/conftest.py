"""What tests of the configuration share: the builtin plugins, a backend to choose, and files that are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from cronstable.config import LoadResult, load
from cronstable.core.finding import Finding, Problem, Severity, key_path
from cronstable.plugin.descriptors import Capability, ConfigFragment, ElectionBackend, Section, StateStoreBackend
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import PluginInfo, Plugins, Provided, load_plugins


def _parse(section: Section) -> object:
    if section.get("place") == "nowhere":
        raise InvalidSettings([Problem(("place",), "nowhere is not a place")])
    return ("parsed", section.get("place"), section.get("ttl"))


LEASE = ElectionBackend(
    name="shelf",
    factory="shelf:make",
    capabilities=frozenset({Capability.LEASE}),
    parse=_parse,
    schema={
        "$id": "https://example.org/shelf",
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "ttl": {"type": "number", "minimum": 3, "default": 15},
        },
        "required": ["place"],
        "additionalProperties": False,
        "examples": [{"place": "left"}],
    },
)


def _parse_disk(section: Section) -> object:
    if "path" not in section:
        raise InvalidSettings([Problem(("path",), "path is missing")])
    return ("disk", section["path"], section.get("topology"))


DISK = StateStoreBackend(name="filesystem", factory="disk:make", parse=_parse_disk)
DISK_KEYS = ConfigFragment(
    id="https://example.org/disk",
    schemas={
        "state.path": {"type": "string", "pattern": "\\S"},
        "state.topology": {"type": "string", "enum": ["auto", "shared"], "default": "auto"},
        "state.deploymentId": {"type": ["string", "null"]},
    },
)
VAULT = StateStoreBackend(
    name="vault",
    factory="vault:make",
    parse=_parse,
    schema={
        "$id": "https://example.org/vault",
        "type": "object",
        "properties": {"place": {"type": "string"}, "ttl": {"type": "number", "default": 15}},
        "required": ["place"],
        "additionalProperties": False,
        "examples": [{"place": "left"}],
    },
)


@pytest.fixture(scope="session")
def builtins() -> Plugins:
    """The host's own plugins, the others switched off and forgotten: what is installed beside makes no difference."""
    found = load_plugins({})
    others = {health.plugin.name for health in found.health if not health.plugin.builtin}
    alone = load_plugins({"CRONSTABLE_DISABLED_PLUGINS": ",".join(sorted(others))})
    return replace(alone, health=tuple(health for health in alone.health if health.plugin.builtin))


@pytest.fixture(scope="session")
def plugins(builtins: Plugins) -> Plugins:
    """The same with a lease backend and a store called ``shelf`` and ``vault``, and a store ``filesystem``."""
    shelf = Provided(LEASE, PluginInfo("shelf", "acme-shelf", "1.0", "acme_shelf", builtin=False))
    disk = PluginInfo("disk", "acme-disk", "1.0", "acme_disk", builtin=False)
    vault = Provided(VAULT, PluginInfo("vault", "acme-vault", "1.0", "acme_vault", builtin=False))
    return replace(
        builtins,
        election_backends=MappingProxyType({**builtins.election_backends, "shelf": shelf}),
        state_stores=MappingProxyType({**builtins.state_stores, "filesystem": Provided(DISK, disk), "vault": vault}),
        fragments=(*builtins.fragments, Provided(DISK_KEYS, disk)),
    )


@dataclass(frozen=True)
class Loader:
    """Writes files into a directory of the test and loads one of them."""

    directory: Path
    plugins: Plugins

    def __call__(
        self,
        files: str | Mapping[str, str | bytes],
        *,
        path: str = "cronstable.yaml",
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> LoadResult:
        texts: Mapping[str, str | bytes] = {"cronstable.yaml": files} if isinstance(files, str) else files
        for name, text in texts.items():
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(str(self.directory / path), plugins=self.plugins, environ=environ, hostname="host-1")


@pytest.fixture
def load_files(tmp_path: Path, plugins: Plugins) -> Loader:
    return Loader(tmp_path, plugins)


@pytest.fixture
def errors(tmp_path: Path) -> Callable[[LoadResult], list[tuple[str, int, str]]]:
    """The errors of a result as (file, line, key path)."""

    def listed(result: LoadResult) -> list[tuple[str, int, str]]:
        return [
            (str(Path(f.file).relative_to(tmp_path)), f.line, key_path(f.path))
            for f in result.findings
            if f.severity is Severity.ERROR
        ]

    return listed


@pytest.fixture
def advisories() -> Callable[[LoadResult], list[Finding]]:
    """The advisories of a result."""
    return lambda result: [f for f in result.findings if f.severity is Severity.ADVISORY]
