"""The hooks. Each is called at start and on reload only, must be a plain function, and yields descriptors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy

from cronstable.core.finding import Problem
from cronstable.core.job import Json
from cronstable.plugin.descriptors import (
    CliCommand,
    ConfigFragment,
    ElectionBackend,
    NotifierBackend,
    ServiceProvider,
    StateStoreBackend,
)

PROJECT = "cronstable"
ENTRY_POINT_GROUP = "cronstable.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def cronstable_election_backends() -> Iterable[ElectionBackend]:  # type: ignore[empty-body]
    """Values of ``cluster.backend``.

    A whole plugin::

        from cronstable.api import Capability, ElectionBackend, hookimpl

        @hookimpl
        def cronstable_election_backends():
            yield ElectionBackend(
                name="redis",
                factory="cronstable_redis.backend:make",
                schema=SCHEMA,
                capabilities=frozenset({Capability.LEASE}),
            )
    """


@hookspec
def cronstable_state_stores() -> Iterable[StateStoreBackend]:  # type: ignore[empty-body]
    """Durable state stores.

    A whole plugin::

        from cronstable.api import StateStoreBackend, hookimpl

        @hookimpl
        def cronstable_state_stores():
            yield StateStoreBackend(name="sqlite", factory="cronstable_sqlite.store:make", schema=SCHEMA)
    """


@hookspec
def cronstable_notifiers() -> Iterable[NotifierBackend]:  # type: ignore[empty-body]
    """Reporters: keys of a ``report`` block, told of job results, leadership and quorum.

    A whole plugin::

        from cronstable.api import NotifierBackend, hookimpl

        @hookimpl
        def cronstable_notifiers():
            yield NotifierBackend(name="pager", factory="cronstable_pager:make", schema=SCHEMA)
    """


@hookspec
def cronstable_config_fragments() -> Iterable[ConfigFragment]:  # type: ignore[empty-body]
    """Pieces of the configuration's JSON Schema, each owning its key paths.

    A whole plugin::

        from cronstable.api import ConfigFragment, hookimpl

        @hookimpl
        def cronstable_config_fragments():
            yield ConfigFragment(
                id="https://example.org/cronstable/team",
                schemas={"jobs[].team": {"type": "string", "examples": ["billing"]}},
            )
    """


@hookspec
def cronstable_check_config(config: Mapping[str, Json]) -> Iterable[Problem]:  # type: ignore[empty-body]
    """What JSON Schema cannot say about one file's configuration: rules across keys.

    ``config`` is a file's document after includes, defaults and interpolation; problem paths are relative to it.

    A whole plugin::

        from cronstable.api import Problem, hookimpl

        @hookimpl
        def cronstable_check_config(config):
            for i, job in enumerate(config.get("jobs", [])):
                if "team" not in job:
                    yield Problem(path=("jobs", i, "name"), message="every job here names its team")
    """


@hookspec
def cronstable_services() -> Iterable[ServiceProvider]:  # type: ignore[empty-body]
    """Long-running companions of the daemon.

    A whole plugin::

        from cronstable.api import ServiceProvider, hookimpl

        @hookimpl
        def cronstable_services():
            yield ServiceProvider(name="mqtt", factory="cronstable_mqtt:make", section="mqtt", schema=SCHEMA)
    """


@hookspec
def cronstable_cli_commands() -> Iterable[CliCommand]:  # type: ignore[empty-body]
    """Subcommands of ``cronstable``.

    A whole plugin::

        from cronstable.api import CliCommand, hookimpl

        @hookimpl
        def cronstable_cli_commands():
            yield CliCommand(name="drain", help="Stop starting jobs.", target="cronstable_drain:command")
    """
