"""The reporter ``sentry``: through its SDK, which the extra ``cronstable[sentry]`` installs (reference 2.4)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cronstable.api import (
    Host,
    InvalidSettings,
    Json,
    Message,
    NotDelivered,
    Notifier,
    NotifierBackend,
    Problem,
    Seconds,
    SecretSource,
    Section,
    hookimpl,
    template_variables,
)
from cronstable.builtin.sections import reporter, secret, template, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sentry_sdk.types import Event

    from cronstable.builtin.templating import Templates

TIMEOUT: Final[Seconds] = 20.0
"""For handing an event to the server."""

SCHEMA = reporter(
    "sentry",
    "To Sentry, when `dsn` is set. Needs `cronstable[sentry]`.",
    [{"dsn": {"fromEnvVar": "SENTRY_DSN"}}],
    dsn=secret("The address of the project"),
    fingerprint={
        "type": "array",
        "items": {"type": "string"},
        "description": "What makes events one issue; templates. Host and job when it is not set.",
        "examples": [["cronstable", "{{ name }}"]],
    },
    level={
        "type": "string",
        "enum": ["fatal", "error", "warning", "info", "debug"],
        "default": "error",
        "description": "Of the event.",
    },
    extra={
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "More facts for the event; templates.",
        "examples": [{"team": "billing"}],
    },
    body=template("The text of the event"),
    environment=text("Sentry's environment, such as `production`."),
    maxStringLength={
        "type": "integer",
        "exclusiveMinimum": 0,
        "default": 8192,
        "description": "Characters of a text before Sentry's SDK cuts it.",
    },
)


@dataclass(frozen=True, slots=True)
class SentrySettings:
    """A section with a DSN. ``templates``: by key, ``fingerprint.0`` and ``extra.team`` among them."""

    dsn: SecretSource
    level: str
    environment: str | None
    longest: int
    parts: int | None
    extra: tuple[str, ...]
    templates: tuple[tuple[str, str], ...]


@hookimpl
def cronstable_notifiers() -> Iterable[NotifierBackend]:
    """The key ``sentry`` of a ``report`` block."""
    yield NotifierBackend(name="sentry", factory="cronstable.builtin.sentry:make", schema=SCHEMA, parse=parse)


def parse(section: Section) -> SentrySettings | None:
    """Settings; None without a DSN. Raises ``InvalidSettings``."""
    dsn = SecretSource.of(section.get("dsn"))
    if dsn is None:
        return None
    texts = _templates(section)
    problems: list[Problem] = []
    if find_spec("sentry_sdk") is None:
        problems.append(
            Problem((), "Sentry's SDK is not installed", hint="install it with: pip install 'cronstable[sentry]'")
        )
    if texts:
        from cronstable.builtin.templating import syntax_problems

        for problem in syntax_problems(texts, texts):
            path = str(problem.path[0]).split(".", 1)
            where = (path[0], int(path[1])) if path[0] == "fingerprint" else tuple(path)
            problems.append(Problem(where, problem.message))
    if problems:
        raise InvalidSettings(problems)
    fingerprint, extra, longest = section.get("fingerprint"), section.get("extra"), section.get("maxStringLength")
    environment = section.get("environment")
    return SentrySettings(
        dsn=dsn,
        level=str(section.get("level") or "error"),
        environment=environment if isinstance(environment, str) and environment else None,
        longest=longest if isinstance(longest, int) else 8192,
        parts=len(fingerprint) if isinstance(fingerprint, list) else None,
        extra=tuple(extra) if isinstance(extra, dict) else (),
        templates=tuple((key, str(value)) for key, value in texts.items()),
    )


def _templates(section: Section) -> dict[str, Json]:
    texts: dict[str, Json] = {"body": section["body"]} if "body" in section else {}
    fingerprint, extra = section.get("fingerprint"), section.get("extra")
    if isinstance(fingerprint, list):
        texts |= {f"fingerprint.{i}": part for i, part in enumerate(fingerprint)}
    if isinstance(extra, dict):
        texts |= {f"extra.{key}": value for key, value in extra.items()}
    return texts


def make(settings: object, host: Host) -> Notifier:
    """The factory. It imports the SDK, so that the loop does not have to."""
    import sentry_sdk  # noqa: F401

    from cronstable.builtin.templating import Templates

    assert isinstance(settings, SentrySettings)
    # It logs each request with its address, which is a part of the DSN; what went wrong is said by the host.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    return Sentry(settings, host, Templates(dict(settings.templates)))


class Sentry:
    """A ``Notifier``, and ``Bounded``. Each event has a client of its own: nothing is left to the SDK's globals."""

    longest_send = TIMEOUT + 15.0

    def __init__(self, settings: SentrySettings, host: Host, templates: Templates) -> None:
        self._settings = settings
        self._host = host
        self._templates = templates

    async def send(self, message: Message) -> None:
        """Hand one event over."""
        event = self.event(template_variables(message, os.environ))
        dsn = await self._settings.dsn.reveal(self._host)
        try:
            refused = await self._host.threads.run(
                lambda: self._capture(dsn, event), timeout=TIMEOUT + 5.0, lane="sentry"
            )
        except TimeoutError:
            raise NotDelivered(f"no answer within {TIMEOUT:g} s", retry=True) from None
        if refused is not None:
            raise NotDelivered(refused, retry=True)

    def event(self, variables: Mapping[str, Json]) -> Event:
        """The event as Sentry takes it."""

        def rendered(key: str, otherwise: str) -> str:
            return self._templates.render(key, variables, self._host, lambda: otherwise)

        settings = self._settings
        given = dict(settings.templates)
        plain = f"{variables['subject']}\n\n{variables['message']}".rstrip()
        extra: dict[str, object] = {
            key: variables[key]
            for key in ("fail_reason", "exit_code", "command", "schedule", "run_id", "stdout", "stderr", "sla_check")
            if variables[key] is not None
        }
        extra |= {key: rendered(f"extra.{key}", "") for key in settings.extra}
        return {
            "message": rendered("body", plain) if "body" in given else plain,
            "level": settings.level,  # type: ignore[typeddict-item]  # the schema has checked it
            "logger": "cronstable",
            "server_name": str(variables["host"]),
            "fingerprint": self._fingerprint(variables, rendered),
            "tags": {"event": str(variables["event"]), "name": str(variables["name"])},
            "extra": extra,
        }

    def _fingerprint(self, variables: Mapping[str, Json], rendered: Callable[[str, str], str]) -> list[str]:
        """Whoever knows better may say what belongs together; else it is the event of one job on one machine."""
        if self._settings.parts is not None:
            return [rendered(f"fingerprint.{i}", "") for i in range(self._settings.parts)]
        if not variables["schedule"]:
            return ["cronstable", str(variables["event"]), str(variables["name"])]
        environment = variables["environment"]
        machine = environment.get("HOSTNAME") if isinstance(environment, dict) else None
        return ["cronstable", str(machine or ""), str(variables["name"])]

    def _capture(self, dsn: str, event: Event) -> str | None:
        """Blocking: deliver one event; why the server did not take it, None when it did."""
        import sentry_sdk
        import urllib3
        from sentry_sdk.transport import HttpTransport
        from sentry_sdk.utils import BadDsn

        lost: list[str] = []

        class Transport(HttpTransport):
            TIMEOUT = 5

            def _get_pool_options(self) -> dict[str, object]:
                # A redirect would hand the event and the key to somebody else; and the host tries again by itself.
                once = urllib3.Retry(0, redirect=0, raise_on_redirect=False)
                return {**super()._get_pool_options(), "retries": once}

            def on_dropped_event(self, _reason: str) -> None:
                lost.append(_reason)

        try:
            client = sentry_sdk.Client(
                dsn=dsn,
                transport=Transport,
                environment=self._settings.environment,
                max_value_length=self._settings.longest,
                default_integrations=False,
                auto_enabling_integrations=False,
                auto_session_tracking=False,
            )
        except BadDsn:
            raise NotDelivered("the DSN is not one that Sentry's SDK understands") from None
        try:
            client.capture_event(event)
        finally:
            client.close(timeout=TIMEOUT)
        return f"the event was not taken ({lost[0]})" if lost else None
