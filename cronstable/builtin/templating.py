"""Templates of reports: Jinja2 in its sandbox. Imported when a section has one, or when the first report is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from jinja2 import ChainableUndefined, Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cronstable.api import Host, Json, Problem, Section

_LONGEST_CAUSE: Final = 200


class Templates:
    """The compiled templates of one section, with a plain text for each that stands in when it fails.

    A variable that there is not becomes nothing, like one that is None. ``html``: values are escaped. Raises jinja2's
    ``TemplateSyntaxError``, which ``syntax_problems`` has ruled out for a configuration that was loaded.
    """

    def __init__(self, texts: Mapping[str, str], *, html: bool = False) -> None:
        environment = _environment(html=html)
        self._templates: dict[str, Template] = {key: environment.from_string(text) for key, text in texts.items()}

    def render(self, key: str, variables: Mapping[str, Json], host: Host, otherwise: Callable[[], str]) -> str:
        """The text of ``key``. A template that fails is logged by job and key, and ``otherwise()`` taken instead."""
        try:
            return self._templates[key].render(variables)
        except Exception as error:  # noqa: BLE001 - a template can raise whatever its expressions raise
            cause = f"{type(error).__name__}: {error}" if isinstance(error, TemplateError) else type(error).__name__
            host.log.error(
                "%s %s: the template `%s` failed, plain text is sent instead: %s",
                "job" if variables.get("schedule") else "node",
                variables.get("name"),
                key,
                cause[:_LONGEST_CAUSE],
            )
            return otherwise()


def syntax_problems(section: Section, keys: Iterable[str]) -> list[Problem]:
    """What is wrong with the templates at ``keys``, as findings."""
    environment = _environment(html=False)
    problems = []
    for key in keys:
        text = section.get(key)
        if isinstance(text, str):
            try:
                environment.from_string(text)
            except TemplateSyntaxError as error:
                where = f" in line {error.lineno} of it" if "\n" in text.strip() else ""
                problems.append(Problem((key,), f"the template is not valid{where}: {error.message}"))
    return problems


def _environment(*, html: bool) -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        autoescape=html, undefined=ChainableUndefined, finalize=_nothing_for_none, keep_trailing_newline=True
    )


def _nothing_for_none(value: object) -> object:
    return "" if value is None else value
