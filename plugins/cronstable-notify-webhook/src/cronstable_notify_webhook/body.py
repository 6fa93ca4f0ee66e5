"""The body of a request: a sandboxed template whose values cannot break out of the JSON around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from jinja2 import ChainableUndefined, Template, TemplateError, TemplateSyntaxError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cronstable.api import Json

_LONGEST_CAUSE: Final = 200


class BodyError(Exception):
    """The template gave nothing that can be sent. The text says why and quotes no value."""


class Body:
    """A compiled template. A variable that there is not becomes nothing.

    ``as_json``: what ``{{ ... }}`` gives is escaped for the inside of a JSON string, unless it is JSON by itself
    (``tojson``, a number), and the whole has to be one JSON document.
    """

    def __init__(self, text: str, *, as_json: bool) -> None:
        self._as_json = as_json
        self._template: Template = _environment(as_json=as_json).from_string(text)

    def render(self, variables: Mapping[str, Json]) -> str:
        """The body. Raises ``BodyError``."""
        try:
            text = self._template.render(variables)
        except Exception as error:  # noqa: BLE001 - a template can raise whatever its expressions raise
            cause = f"{type(error).__name__}: {error}" if isinstance(error, TemplateError) else type(error).__name__
            raise BodyError(cause[:_LONGEST_CAUSE]) from None
        if self._as_json and text.strip():
            try:
                json.loads(text)
            except ValueError as error:
                raise BodyError(f"it does not give JSON: {error}") from None
        return text


def syntax_problem(text: str) -> str | None:
    """What is wrong with a template, None when it can be compiled."""
    try:
        _environment(as_json=False).from_string(text)
    except TemplateSyntaxError as error:
        where = f" in line {error.lineno} of it" if "\n" in text.strip() else ""
        return f"the template is not valid{where}: {error.message}"
    return None


def usual(variables: Mapping[str, Json], *, as_json: bool) -> str:
    """What is sent without a template, and in the place of one that failed."""
    text = f"{variables['subject']}\n\n{variables['message']}".rstrip()
    return json.dumps({"text": text}) if as_json else text


def _environment(*, as_json: bool) -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        undefined=ChainableUndefined, finalize=_inside_json if as_json else _plain, keep_trailing_newline=True
    )


def _plain(value: object) -> object:
    return "" if value is None else value


def _inside_json(value: object) -> object:
    if value is None or isinstance(value, Undefined):
        return ""
    if hasattr(value, "__html__"):
        # Marked as finished: what ``tojson`` gives is JSON already.
        return value
    if isinstance(value, str):
        return json.dumps(value)[1:-1]
    return json.dumps(value, default=str)
