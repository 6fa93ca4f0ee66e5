"""One JSON Schema, put together from what the plugins own.

A key path has one owner. Containers that nobody owns (``cluster``, ``jobs[].onFailure``) are made here: closed
mappings of their children. Keys of a job are allowed under ``defaults`` too, unless their fragment says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cronstable.core.finding import KeyPath
from cronstable.core.job import Json
from cronstable.plugin.descriptors import JsonSchema
from cronstable.plugin.manager import Plugins

JOB: Final = "jobs[]"
JOB_REQUIRED: Final = ("name", "command", "schedule")
REPORT_PATHS: Final = (
    "jobs[].onFailure.report",
    "jobs[].onPermanentFailure.report",
    "jobs[].onSuccess.report",
    "jobs[].onLate.report",
    "notify.report",
)
"""Where a notifier's section may stand (reference 2.4 and 9)."""

Schema: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class _Part:
    """One step of a key path: a key, or the items of a list."""

    schema: JsonSchema | None = None
    owner: str = ""
    keys: dict[str, _Part] = field(default_factory=dict)
    items: _Part | None = None


@dataclass(frozen=True, slots=True)
class Composed:
    """The schema of this installation. ``conflicts``: messages that name both owners of a path; then it is unusable.

    ``owners``: dotted key path to the distribution that owns it.
    """

    schema: Schema
    owners: Mapping[str, str]
    conflicts: tuple[str, ...] = ()

    def owner(self, path: KeyPath) -> str:
        """Whose schema speaks of ``path``: the owner of its longest known part."""
        steps = dotted_path(path).split(".")
        for end in range(len(steps), 0, -1):
            found = self.owners.get(".".join(steps[:end]))
            if found is not None:
                return found
        return "cronstable"


def compose(plugins: Plugins) -> Composed:
    """Put the fragments, backend sections, service sections and notifiers together."""
    tree = _Part()
    owners: dict[str, str] = {}
    conflicts: list[str] = []
    not_in_defaults: set[str] = set()
    for path, owned, owner in _owned(plugins):
        part = _walk_to(tree, path)
        if part.schema is not None:
            conflicts.append(f"the key `{path}` is owned by {part.owner} and by {owner}; only one of them can have it")
            continue
        part.schema, part.owner = owned, owner
        owners[path] = owner
    for fragment in plugins.fragments:
        not_in_defaults |= {p.removeprefix(f"{JOB}.") for p in fragment.descriptor.not_in_defaults}
    jobs = _walk_to(tree, JOB)
    job_schema = _render(JOB, jobs, conflicts)
    job_schema["required"] = list(JOB_REQUIRED)
    defaults = _Part(keys={key: part for key, part in jobs.keys.items() if key not in not_in_defaults})
    properties: Schema = {
        "jobs": {"type": "array", "items": job_schema, "description": "What is run, and when."},
        "defaults": _render("defaults", defaults, []) | {"description": "Values for the jobs of this file."},
    }
    for key, part in tree.keys.items():
        if key != "jobs":
            properties[key] = _render(key, part, conflicts)
    root: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://cronstable.dev/schema/cronstable",
        "title": "cronstable configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return Composed(root, owners, tuple(conflicts))


def dotted_path(path: KeyPath) -> str:
    """A place in a document as the path that a fragment owns: ``jobs[].name``; ``defaults`` are keys of a job."""
    steps: list[str] = []
    for part in path:
        if isinstance(part, str):
            steps.append(part)
        elif steps:
            steps[-1] += "[]"
    if steps and steps[0] == "defaults":
        steps[0] = JOB
    return ".".join(steps)


def compose_schema(plugins: Plugins) -> dict[str, Json]:
    """The JSON Schema (draft 2020-12) of this installation, for an editor to complete the YAML with."""
    schema = compose(plugins).schema
    _list_backends(schema, "cluster", [name for name in plugins.election_backends if name != "none"])
    _list_backends(schema, "state", list(plugins.state_stores))
    return schema


def _list_backends(schema: Schema, key: str, backends: list[str]) -> None:
    section = schema["properties"].get(key, {})
    backend = section.get("properties", {}).get("backend")
    if backends and backend is not None:
        listed = {**backend, "enum": sorted({*backends, backend.get("default", backends[0])})}
        section["properties"] = {**section["properties"], "backend": listed}


def _owned(plugins: Plugins) -> Iterator[tuple[str, JsonSchema, str]]:
    for fragment in plugins.fragments:
        for path, schema in fragment.descriptor.schemas.items():
            yield path, schema, fragment.plugin.distribution
    for name, backend in plugins.election_backends.items():
        if backend.descriptor.schema is not None:
            yield f"cluster.{name}", backend.descriptor.schema, backend.plugin.distribution
    for name, store in plugins.state_stores.items():
        if store.descriptor.schema is not None:
            yield f"state.{name}", store.descriptor.schema, store.plugin.distribution
    for service in plugins.services.values():
        if service.descriptor.section and service.descriptor.schema is not None:
            yield service.descriptor.section, service.descriptor.schema, service.plugin.distribution
    for name, notifier in plugins.notifiers.items():
        if notifier.descriptor.schema is not None:
            for path in REPORT_PATHS:
                yield f"{path}.{name}", notifier.descriptor.schema, notifier.plugin.distribution


def _walk_to(tree: _Part, path: str) -> _Part:
    part = tree
    for step in path.split("."):
        key = step.removesuffix("[]")
        part = part.keys.setdefault(key, _Part())
        if key != step:
            part.items = part.items or _Part()
            part = part.items
    return part


def _render(path: str, part: _Part, conflicts: list[str]) -> Schema:
    if part.items is not None:
        return {"type": "array", "items": _render(f"{path}[]", part.items, conflicts)}
    if part.schema is not None and not part.keys:
        return dict(part.schema)
    base: Schema = dict(part.schema or {"type": "object", "additionalProperties": False})
    inside = base.get("properties", {})
    for key in part.keys:
        if key in inside:
            other = _first_owner(part.keys[key])
            conflicts.append(f"the key `{path}.{key}` is owned by {part.owner} and by {other}")
    base["properties"] = inside | {
        key: _render(f"{path}.{key}", child, conflicts) for key, child in part.keys.items() if key not in inside
    }
    return base


def _first_owner(part: _Part) -> str:
    children = [*part.keys.values(), *([part.items] if part.items else [])]
    return part.owner or next((_first_owner(child) for child in children), "cronstable")
