"""The host's own plugins. They come through the same hooks and the same checks as everybody else's."""

from __future__ import annotations

BUILTIN_MODULES: tuple[str, ...] = (
    "cronstable.builtin.jobs",
    "cronstable.builtin.cluster",
    "cronstable.builtin.state",
    "cronstable.builtin.notify",
    "cronstable.builtin.mail",
    "cronstable.builtin.shell",
    "cronstable.builtin.sentry",
    "cronstable.builtin.web",
)
"""In the order in which their hooks are read. A builtin is always read before a third party, so it always wins."""
