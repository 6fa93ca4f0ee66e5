"""The ``state`` section: which store, and whose keys may stand beside it (reference 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cronstable.config.explain import close_match
from cronstable.config.fill import fill_defaults
from cronstable.config.model import StateConfig
from cronstable.core.finding import Problem
from cronstable.core.job import Json
from cronstable.plugin import hints
from cronstable.plugin.descriptors import JsonSchema, Section, StateStoreBackend
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import Plugins

DEFAULT_BACKEND: Final = "filesystem"
FEWEST_RUNS: Final = 2
"""Two runs can be recorded in the other order than they ended, so that of one alone the newest could be lost."""


@dataclass(slots=True)
class StateCheck:
    """What was made of the section. ``usable``: its keys that go before the schema, without those of others.

    ``problems`` have paths from the root of the file.
    """

    backend: StateStoreBackend | None
    usable: dict[str, Json]
    problems: list[Problem]


def check(state: Mapping[str, Json], chosen: str, plugins: Plugins) -> StateCheck:
    """Look up the store ``chosen`` and say which keys do not belong to it.

    It comes before the schema, which would call such keys unknown; values are still text.
    """
    owners = _owners(plugins)
    foreign = {key: owner for key in state if (owner := _foreign(key, chosen, owners)) is not None}
    provided = plugins.state_stores.get(chosen)
    if provided is None:
        # Without its plugin nothing is known of the keys that may be the store's own; the one finding says enough.
        skipped = {*foreign, chosen, *(key for key in state if hints.path_provider(f"state.{key}") is not None)}
        return StateCheck(None, _without(state, skipped), [_missing(state, chosen, plugins)])
    problems = [
        Problem(
            ("state", key),
            f"the key `{key}` belongs to the store `{owner}`, but the store is `{chosen}`",
            hint=f"take it out, or say `backend: {owner}`",
        )
        for key, owner in foreign.items()
    ]
    usable = _without(state, foreign)
    if provided.descriptor.schema is not None:
        # Absent, it is still held against its schema, which can require something.
        usable.setdefault(chosen, {})
    return StateCheck(provided.descriptor, usable, problems)


def make(state: dict[str, Json], backend: StateStoreBackend, schema: JsonSchema) -> StateConfig:
    """The section as the daemon needs it. Raises ``InvalidSettings``, with paths as ``settings_problems`` expects."""
    section = fill_defaults(schema, state)
    given: Section = section
    if backend.schema is not None:
        own = section.get(backend.name)
        given = own if isinstance(own, dict) else {}
    settings: object = backend.parse(given) if backend.parse is not None else given
    runs = int(_number(section, "maxRunsPerJob", 1000))
    grace = _number(section, "gcGraceSeconds", 604_800)
    return StateConfig(
        backend=backend,
        settings=settings,
        section=section,
        max_runs_per_job=max(FEWEST_RUNS, runs) if runs > 0 else None,
        fail_closed=section.get("onStoreUnavailable") == "fail-closed",
        gc_grace=grace if grace > 0 else None,
        max_ops_per_second=_number(section, "maxOpsPerSecond", 0),
        slot_ttl=_number(section, "slotTtlSeconds", 30),
    )


def settings_problems(error: InvalidSettings, backend: StateStoreBackend) -> Iterator[Problem]:
    """The problems of a store's ``parse`` with paths from the root."""
    prefix = ("state",) if backend.schema is None else ("state", backend.name)
    for problem in error.problems:
        yield Problem((*prefix, *problem.path), problem.message, problem.severity, problem.allowed, problem.hint)


def _number(section: Mapping[str, Json], key: str, default: float) -> float:
    value = section.get(key)
    return float(value) if isinstance(value, int | float) else float(default)


def _without(state: Mapping[str, Json], keys: Mapping[str, str] | set[str]) -> dict[str, Json]:
    return {key: value for key, value in state.items() if key not in keys}


def _owners(plugins: Plugins) -> dict[str, tuple[str, ...]]:
    """The keys of ``state`` that belong to stores, and to which: their sections, and what their plugin adds beside."""
    owners: dict[str, tuple[str, ...]] = {}
    for kind, name in hints.PROVIDERS:
        if kind == hints.STATE_STORE and name != DEFAULT_BACKEND:
            owners[name] = (name,)
    owners.update(dict.fromkeys(hints.STATE_KEYS, (DEFAULT_BACKEND,)))
    by_plugin: dict[str, list[str]] = {}
    for name, provided in plugins.state_stores.items():
        if provided.descriptor.schema is not None:
            owners[name] = (name,)
        elif not provided.plugin.builtin:
            by_plugin.setdefault(provided.plugin.distribution, []).append(name)
    for fragment in plugins.fragments:
        stores = by_plugin.get(fragment.plugin.distribution)
        for path in fragment.descriptor.schemas if stores else ():
            if path.startswith("state."):
                owners[path.split(".")[1]] = tuple(stores or ())
    return owners


def _foreign(key: str, chosen: str, owners: Mapping[str, tuple[str, ...]]) -> str | None:
    """The store that has ``key``, None when it is the chosen one's or nobody's own."""
    stores = owners.get(key)
    return stores[0] if stores is not None and chosen not in stores else None


def _missing(state: Mapping[str, Json], chosen: str, plugins: Plugins) -> Problem:
    reason = plugins.why_missing(hints.STATE_STORE, chosen)
    default = " (the default)" if "backend" not in state else ""
    known = sorted(plugins.state_stores)
    hintable = sorted({*known, *(name for kind, name in hints.PROVIDERS if kind == hints.STATE_STORE)})
    meant = close_match(chosen, hintable) if hints.provider(hints.STATE_STORE, chosen) is None else None
    return Problem(
        ("state", "backend") if "backend" in state else ("state",),
        f"there is no state store `{chosen}`{default} in this installation",
        allowed=tuple(known),
        hint=f"did you mean `{meant}`?" if meant else reason,
    )
