"""The job-set ID: one value that is equal on two nodes exactly when they agree about their jobs (reference 5).

Each job becomes a canonical document of what is in its identity; its digest is the SHA-256 of that document as JSON
with sorted keys, no spaces and ASCII only. The ID hashes the sorted digests, so that neither the order of jobs nor
their distribution over files matters. Values of secrets and of environment variables never enter.

A document holds a key that was added after version 1 of the scheme only when its value is not the default, so that
configurations which do not use it keep their ID.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from cronstable.core.job import Job, JobOptions, Json

SCHEME = "v1"
REDACTED = "<redacted>"

EnvNames: TypeAlias = Callable[[Job], Iterable[str]]
"""The names of the variables that a job's ``env_file`` defines."""

RETRY_DEFAULTS: Mapping[str, Json] = MappingProxyType(
    {"maximumRetries": 0, "initialDelay": 1, "maximumDelay": 300, "backoffMultiplier": 2}
)
REPORTER_DEFAULTS: Mapping[str, Mapping[str, Json]] = MappingProxyType(
    {
        "mail": {"smtpPort": 25, "tls": False, "starttls": False, "validate_certs": True, "html": False},
        "sentry": {
            "fingerprint": ["cronstable", "{{environment.HOSTNAME}}", "{{name}}"],
            "level": "error",
            "maxStringLength": 8192,
        },
        "shell": {"timeout": 60},
        "webhook": {"method": "POST", "contentType": "application/json", "headers": {}, "timeout": 10},
    }
)
_SECRETS = frozenset({("sentry", "dsn"), ("mail", "password"), ("webhook", "url")})
_SECRET_SOURCES = frozenset({"value", "fromFile", "fromEnvVar"})


def job_digest(job: Job, env_names: EnvNames | None = None) -> str:
    """64 hex digits for what one job is; also used to notice that a stored retry belongs to an older definition."""
    return _digest(job, _options_json(job.options, _names(job, env_names)))


def job_set_id(jobs: Iterable[Job], env_names: EnvNames | None = None) -> str:
    """``v1:`` and 64 hex digits for a whole set of jobs. An empty set has an ID too."""
    known: dict[int, tuple[JobOptions, str]] = {}
    digests = []
    for job in jobs:
        options = job.options
        if env_names is not None and options.env_file is not None:
            digests.append(_digest(job, _options_json(options, _names(job, env_names))))
            continue
        # The options object is kept next to its text, or its id could come to mean another object.
        entry = known.get(id(options))
        if entry is None:
            entry = known[id(options)] = (options, _options_json(options, _names(job, None)))
        digests.append(_digest(job, entry[1]))
    total = hashlib.sha256("\n".join([SCHEME, *sorted(digests)]).encode("ascii"))
    return f"{SCHEME}:{total.hexdigest()}"


def _digest(job: Job, options: str) -> str:
    """Hash the document {command, name, options, schedule}; the options are JSON already."""
    command: Json = (
        {"shell_command": job.command}
        if isinstance(job.command, str)
        else {"argv": [str(word) for word in job.command]}
    )
    schedule: Json = job.schedule.text
    if job.schedule.day_match != "any":
        schedule = {"dayMatch": job.schedule.day_match, "line": job.schedule.text}
    document = (
        f'{{"command":{_json(command)},"name":{_json(job.name)},"options":{options},"schedule":{_json(schedule)}}}'
    )
    return hashlib.sha256(document.encode("ascii")).hexdigest()


_LATER_KEYS: Mapping[str, Json] = MappingProxyType(
    {
        "concurrencyScope": "node",
        "onLeaseLost": "continue",
        "onUnfinishedClaim": "skip",
    }
)
"""Keys that came after version 1 of the scheme, with their defaults (reference 5)."""


def _names(job: Job, env_names: EnvNames | None) -> list[str]:
    names = {name for name, _ in job.options.environment}
    if env_names is not None and job.options.env_file is not None:
        names.update(env_names(job))
    return sorted(names)


def _options_json(options: JobOptions, env: list[str]) -> str:
    fails = options.fails_when
    document: dict[str, Json] = {
        "shell": options.shell,
        "concurrencyPolicy": options.concurrency_policy.value,
        "clusterPolicy": options.cluster_policy.value,
        "captureStdout": options.capture_stdout,
        "captureStderr": options.capture_stderr,
        "streamPrefix": options.stream_prefix,
        "saveLimit": options.save_limit,
        "maxLineLength": options.max_line_length,
        "timezone": options.timezone or ("UTC" if options.utc else None),
        "enabled": options.enabled,
        "onlyIfLastSucceeded": options.raw.get("onlyIfLastSucceeded", False),
        "failsWhen": {
            "producesStdout": fails.produces_stdout,
            "producesStderr": fails.produces_stderr,
            "nonzeroReturn": fails.nonzero_return,
            "always": fails.always,
        },
        "environment": list(env),
        "executionTimeout": options.execution_timeout,
        "killTimeout": options.kill_timeout,
        "statsd": options.raw.get("statsd"),
        "user": options.user,
        "group": options.group,
    }
    for hook in ("onFailure", "onPermanentFailure", "onSuccess"):
        if canonical := _hook(options.raw.get(hook)):
            document[hook] = canonical
    for key, default in _LATER_KEYS.items():
        if (value := options.raw.get(key, default)) != default:
            document[key] = value
    if options.priority != "normal":
        document["priority"] = options.priority
    return _json(_normal(document))


def _hook(hook: Json) -> dict[str, Json]:
    """A hook without what is there by default."""
    if not isinstance(hook, Mapping):
        return {}
    found: dict[str, Json] = {}
    for key, value in hook.items():
        if key == "report" and isinstance(value, Mapping):
            reporters: dict[str, Json] = {name: _reporter(name, block) for name, block in value.items()}
            if any(block for block in reporters.values()):
                found["report"] = {name: block for name, block in reporters.items() if block}
        elif key == "retry" and isinstance(value, Mapping):
            if retry := _without_defaults(value, RETRY_DEFAULTS):
                found["retry"] = {**RETRY_DEFAULTS, **retry}
        elif value is not None:
            found[key] = _redact_sources(value)
    return found


def _reporter(name: str, block: Json) -> Json:
    if not isinstance(block, Mapping):
        return block
    kept = _without_defaults(block, REPORTER_DEFAULTS.get(name, {}))
    for key, value in kept.items():
        if (name, key) in _SECRETS and not isinstance(value, Mapping):
            kept[key] = REDACTED
        elif (name, key) == ("webhook", "headers"):
            kept[key] = _redact_headers(value)
        else:
            kept[key] = _redact_sources(value)
    return kept


def _without_defaults(block: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in block.items() if value is not None and value != defaults.get(key)}


def _redact_headers(headers: Json) -> Json:
    """Only the names of headers: a value may be a token."""
    if isinstance(headers, Mapping):
        return dict.fromkeys(headers, REDACTED)
    return REDACTED


def _redact_sources(value: Json) -> Json:
    """Replace the literal of each secret source; where a secret comes from stays visible."""
    if isinstance(value, Mapping):
        if value and _SECRET_SOURCES.issuperset(value):
            return {key: REDACTED if key == "value" else each for key, each in value.items() if each is not None}
        return {key: _redact_sources(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_redact_sources(each) for each in value]
    return value


def _normal(value: Json) -> Json:
    """The same value with one spelling for each number: 30.0 is 30; booleans stay what they are."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_normal(each) for each in value]
    return value


def _json(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
