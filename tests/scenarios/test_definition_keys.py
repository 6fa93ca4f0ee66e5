"""Which keys of a job anybody may see who may look at all, and which are masked: every key of our own plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from cronstable.config import compose_schema
from cronstable.core.definition import KEY_OF_FIELD, definitions
from cronstable.core.fingerprint import REDACTED
from cronstable.core.job import FailsWhen, Job, JobOptions, Json
from cronstable.core.schedule import Schedule
from cronstable.plugin.manager import load_plugins

SCHEDULE: Final = Schedule.parse("0 3 * * *", job_name="a", zone=UTC)
HOOKS: Final = ("onFailure", "onPermanentFailure", "onSuccess", "onLate")

SHOWN: Final = """
archiveOutput captureStderr captureStdout catchupJitterSeconds clusterPolicy command concurrencyPolicy concurrencyScope
enabled env_file executionTimeout failsWhen.always failsWhen.nonzeroReturn failsWhen.producesStderr
failsWhen.producesStdout group killTimeout maxLineLength monitor.fail monitor.log monitor.start monitor.success
monitor.url.fromEnvVar monitor.url.fromFile monitorResources monitorResources.enabled monitorResources.history
monitorResources.interval name onFailure.retry.backoffMultiplier onFailure.retry.initialDelay onFailure.retry.jitter
onFailure.retry.maximumDelay onFailure.retry.maximumRetries onLeaseLost onMissed onUnfinishedClaim onlyIfLastSucceeded
priority redactArchivedSecrets report.mail.from report.mail.html report.mail.password.fromEnvVar
report.mail.password.fromFile report.mail.smtpHost report.mail.smtpPort report.mail.starttls report.mail.subject
report.mail.tls report.mail.to report.mail.username report.mail.validate_certs report.sentry.dsn.fromEnvVar
report.sentry.dsn.fromFile report.sentry.environment report.sentry.fingerprint report.sentry.level
report.sentry.maxStringLength report.shell.command report.shell.shell report.shell.timeout report.webhook.contentType
report.webhook.headers.*.fromEnvVar report.webhook.headers.*.fromFile report.webhook.method
report.webhook.signature.header report.webhook.signature.secret.fromEnvVar report.webhook.signature.secret.fromFile
report.webhook.timeout report.webhook.url.fromEnvVar report.webhook.url.fromFile saveLimit schedule schedule.dayMatch
schedule.dayOfMonth schedule.dayOfWeek schedule.hour schedule.minute schedule.month schedule.second schedule.year shell
sla.lateAfterSeconds sla.maxRuntimeSeconds sla.maxTimeSinceSuccessSeconds sla.minRuntimeSeconds startingDeadlineSeconds
statsd.host statsd.port statsd.prefix streamPrefix timezone user utc workingDirectory
"""
HIDDEN: Final = """
environment monitor.url.value report.mail.body report.mail.password.value report.sentry.body report.sentry.dsn.value
report.sentry.extra.* report.webhook.body report.webhook.headers.* report.webhook.headers.*.value
report.webhook.signature.secret.value report.webhook.url.value
"""
"""``report`` is the same under each hook; ``*`` stands for any key."""


def leaves(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every key below ``schema`` that has a value of its own, with one that it may have."""
    for one in schema.get("anyOf", schema.get("oneOf", ())):
        yield from leaves(one, path)
    for key, below in schema.get("properties", {}).items():
        yield from leaves(below, (*path, key))
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        yield from leaves(more, (*path, "*"))
    types = schema.get("type", ())
    for kind in [types] if isinstance(types, str) else types:
        if kind in _VALUES:
            yield path, next((word for word in schema.get("enum", ()) if word != schema.get("default")), _VALUES[kind])


_VALUES: Final[Mapping[str, Json]] = {"string": "word", "integer": 7, "number": 7.5, "boolean": True, "array": ["word"]}


def nested(path: tuple[str, ...], value: Json) -> dict[str, Json]:
    first, *rest = path
    return {first: nested(tuple(rest), value) if rest else value}


def masked(path: tuple[str, ...], value: Json) -> bool:
    """Whether a job with that value there, and nothing else, has it masked. The value is shown if not."""
    fields = {key: name for name, key in KEY_OF_FIELD.items()}
    options: dict[str, Any] = {"raw": nested(path, value)}
    if path[0] in fields:
        options = {fields[path[0]]: value}
    elif path[0] == "failsWhen":
        names = {"producesStdout": "produces_stdout", "producesStderr": "produces_stderr"}
        field = {**names, "nonzeroReturn": "nonzero_return", "always": "always"}[path[1]]
        options = {"fails_when": FailsWhen(**{field: not getattr(FailsWhen(), field)})}
    elif path[0] == "environment":
        options = {"environment": (("A", "word"),)}
    ((_, found),) = definitions([Job("a", "true", SCHEDULE, JobOptions(**options))])
    return REDACTED in str(found.keys)


def test_every_key_of_a_job_is_listed_as_shown_or_as_masked() -> None:
    job: Any = compose_schema(load_plugins({}))["properties"]["jobs"]["items"]  # type: ignore[call-overload,index]
    found: dict[str, set[bool]] = {}
    for path, value in leaves(job, ()):
        key = path[1:] if path[0] in HOOKS and path[1] == "report" else path
        found.setdefault(".".join(key), set()).add(masked(path, value))
    assert sorted(key for key, ways in found.items() if ways == {False}) == SHOWN.split()
    assert sorted(key for key, ways in found.items() if ways == {True}) == HIDDEN.split()
    assert [key for key, ways in found.items() if len(ways) > 1] == []
