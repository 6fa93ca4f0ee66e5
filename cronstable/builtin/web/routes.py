"""What an endpoint is: one table that the router and the OpenAPI document are both made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from aiohttp import web

from cronstable.api import Json

Endpoint: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON: Final = "application/json"
TEXT: Final = "text/plain"
PLAIN: Final = f"{TEXT}; charset=utf-8"
EVENTS: Final = "text/event-stream"
CALENDAR: Final = "text/calendar"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query string; ``schema`` is JSON Schema."""

    name: str
    about: str
    schema: Mapping[str, Json]
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path.

    ``path``: ``{name}`` stands for a job's name, one segment, percent-encoded. ``codes``: beside those that any
    endpoint can answer. ``answer``, ``body``: names of components in ``components.json``; no ``answer`` is text.
    ``media``: the types of the answer, the usual one first. ``open``: no token is needed, whatever is configured.
    """

    method: str
    path: str
    endpoint: Endpoint
    about: str
    codes: tuple[int, ...] = (200,)
    answer: str = ""
    media: tuple[str, ...] = (JSON,)
    query: tuple[Query, ...] = ()
    body: str = ""
    open: bool = False

    @property
    def pattern(self) -> str:
        """The path as the router wants it."""
        return self.path.replace("{name}", "{name:[^/]+}")


LIMIT: Final = Query("limit", "at most so many, the newest", {"type": "integer", "minimum": 1, "maximum": 999_999_999})
