"""Sections of reporters: what a notifier makes of its own, and what it has against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cronstable.config.fill import fill_defaults
from cronstable.core.finding import KeyPath, Problem
from cronstable.core.job import Json
from cronstable.core.values import dataclass
from cronstable.plugin.descriptors import NotifierBackend
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import Plugins


def notifier_settings(backend: NotifierBackend, section: Mapping[str, Json]) -> object:
    """What a notifier's factory is given for ``section``; None when that names nobody to tell.

    Raises ``InvalidSettings``, and whatever a plugin's ``parse`` raises by mistake.
    """
    filled = fill_defaults(backend.schema or {}, section)
    return backend.parse(filled) if backend.parse is not None else filled


@dataclass(frozen=True, slots=True)
class ReporterChecks:
    """Asks each notifier about its sections, which the schema has nothing against."""

    plugins: Plugins

    def problems(self, path: KeyPath, report: Json) -> Iterator[Problem]:
        """What is wrong with the sections of the ``report`` block at ``path``."""
        if not isinstance(report, Mapping):
            return
        for name, section in report.items():
            provided = self.plugins.notifiers.get(name)
            if provided is None or not isinstance(section, Mapping):
                continue
            where = (*path, name)
            try:
                notifier_settings(provided.descriptor, section)
            except InvalidSettings as error:
                for problem in error.problems:
                    yield Problem(
                        (*where, *problem.path), problem.message, problem.severity, problem.allowed, problem.hint
                    )
            except Exception as error:  # noqa: BLE001 - a stranger's code; its failure is a finding
                # Its text may quote a secret of the section.
                yield Problem(where, f"plugin {provided.plugin} failed on this section: {type(error).__name__}")
