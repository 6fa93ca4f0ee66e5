"""What hooks yield: frozen descriptions of what a plugin provides. Nothing heavy is imported to make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeAlias

from cronstable.core.job import Json
from cronstable.core.values import dataclass

API_VERSION: tuple[int, int] = (2, 0)
"""Major and minor version of everything in ``cronstable.api``. A plugin of another major is refused."""

JsonSchema: TypeAlias = Mapping[str, Any]
"""A JSON Schema (draft 2020-12) as plain data."""

Section: TypeAlias = Mapping[str, Json]
"""One validated section of the configuration, interpolated, defaults filled in where the schema names them."""


class Capability(StrEnum):
    """What a backend guarantees; a configuration that needs more is refused."""

    LEASE = "lease"
    """A store grants one holder at a time; the view has a ``lease``."""
    FENCED = "fenced"
    """No two nodes act as leader at one instant while the store works."""
    EXPIRES_ITSELF = "expires-itself"
    """The store removes a dead holder's lease on its own; the host never takes over a standing record."""
    OCCURRENCE_CLAIMS = "occurrence-claims"
    """The store implements ``ClaimLog``."""
    REBOOT_MARKS = "reboot-marks"
    """The store implements ``RebootMarks``."""
    SPREAD = "spread"
    """``distribution: spread`` works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionBackend:
    """A value of ``cluster.backend``.

    ``name``: the value, and the name of the section ``cluster.<name>``.
    ``schema``: JSON Schema of that section, with ``$id``, ``examples`` and ``additionalProperties: false``; None when
    the backend has no section.
    ``factory``: ``"module:callable"``, imported only when selected; called as ``factory(context, host)`` with an
    ``ElectionContext``, returns an ``Election``.
    ``parse``: turns the validated section into settings or raises ``InvalidSettings``; None keeps the mapping.
    """

    name: str
    factory: str
    schema: JsonSchema | None = None
    capabilities: frozenset[Capability] = frozenset()
    parse: Callable[[Section], object] | None = None
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStoreBackend:
    """A durable state store. ``factory(settings, host)`` returns a ``StateStore``."""

    name: str
    factory: str
    schema: JsonSchema | None = None
    capabilities: frozenset[Capability] = frozenset()
    parse: Callable[[Section], object] | None = None
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierBackend:
    """A reporter: the key ``report.<name>`` of a job's hooks and of ``notify``.

    ``schema`` requires nothing that ``defaults`` may give: each file's part is held to it on its own. ``parse`` sees
    the merged section when the configuration is read, and returns None when it names nobody to tell.
    ``factory(settings, host)`` returns a ``Notifier``; it is called in a thread, when there is something to send, so
    that it may import what it needs, and again for the next message after a pause.
    """

    name: str
    factory: str
    schema: JsonSchema | None = None
    parse: Callable[[Section], object] | None = None
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFragment:
    """JSON Schema for a set of key paths. Two owners of one path is an error.

    ``schemas``: dotted key path to JSON Schema, for example ``{"cluster.listen": {"type": "string"}}``. The path
    ``jobs[]`` is a job's own keys: ``{"jobs[].retries": {...}}``; such a key is allowed under ``defaults`` too unless
    it is listed in ``not_in_defaults``.
    """

    id: str
    schemas: Mapping[str, JsonSchema] = field(default_factory=dict)
    not_in_defaults: frozenset[str] = frozenset()
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProvider:
    """A long-running service. It runs when the top-level key ``section`` is configured (``""``: always).

    ``section`` may also be a key below ``cluster``, such as ``cluster.observability``; an edit of it alone does not
    restart the election. ``factory(settings, host)`` returns a ``Service``. ``schema``: JSON Schema of the section.
    ``parse`` may return None: there is nothing to serve.
    """

    name: str
    factory: str
    section: str = ""
    schema: JsonSchema | None = None
    parse: Callable[[Section], object] | None = None
    api: tuple[int, int] = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CliCommand:
    """A subcommand. ``target``: ``"module:command"``, a ``click.Command``, imported when it is used."""

    name: str
    help: str
    target: str
    api: tuple[int, int] = API_VERSION


Descriptor: TypeAlias = (
    ElectionBackend | StateStoreBackend | NotifierBackend | ConfigFragment | ServiceProvider | CliCommand
)
