"""Errors of the plugin machinery. Each message names the distribution and version at fault."""

from __future__ import annotations

from collections.abc import Sequence

from cronstable.core.clock import Seconds
from cronstable.core.finding import Problem


class PluginError(Exception):
    """A plugin could not be used."""


class InvalidSettings(Exception):
    """Raised by a descriptor's ``parse``: the section is well-formed but cannot be used as it stands.

    ``problems``: one entry per mistake, with paths relative to the section that was parsed.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(p.message for p in problems))
        self.problems = tuple(problems)


class NotDelivered(Exception):
    """Raised by ``Notifier.send``: nobody was told. The reason is logged, so it holds no secret.

    ``retry``: trying again can help. ``after``: the other side asked for a pause of so many seconds.
    """

    def __init__(self, reason: str, *, retry: bool = False, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.retry = retry
        self.after = after
