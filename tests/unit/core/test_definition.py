"""A job's definition: everything it is, nothing that is secret."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC
from typing import Any

import pytest

from cronstable.config import options
from cronstable.core.definition import KEY_OF_FIELD, definitions, seal, sealing_key, usual
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, FailsWhen, Job, JobOptions
from cronstable.core.schedule import Schedule

SCHEDULE = Schedule.parse("0 3 * * *", job_name="a", zone=UTC)


def define(command: str | tuple[str, ...] = "true", schedule: Schedule = SCHEDULE, **given: Any) -> Any:
    ((_, found),) = definitions([Job("a", command, schedule, JobOptions(**given))])
    return found


def test_every_option_has_its_key() -> None:
    enums = {"concurrency_policy": "concurrencyPolicy", "cluster_policy": "clusterPolicy"}
    assert {**{name: key for key, name in options._PLAIN.items()}, **enums} == dict(KEY_OF_FIELD)
    fields = {field.name for field in dataclasses.fields(JobOptions)}
    assert fields - KEY_OF_FIELD.keys() == {"fails_when", "environment", "raw"}


def test_what_is_usual_is_left_out() -> None:
    assert (define().keys, define().hidden) == ({"command": "true", "schedule": "0 3 * * *"}, {})


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"kill_timeout": 5.0}, "killTimeout", 5),
        ({"execution_timeout": 0.5}, "executionTimeout", 0.5),
        ({"concurrency_policy": ConcurrencyPolicy.FORBID}, "concurrencyPolicy", "Forbid"),
        ({"cluster_policy": ClusterPolicy.EVERY_NODE}, "clusterPolicy", "EveryNode"),
        ({"fails_when": FailsWhen(always=True)}, "failsWhen", {"always": True}),
        ({"user": 0}, "user", 0),
        ({"raw": {"statsd": {"host": "h", "port": 1.0}}}, "statsd", {"host": "h", "port": 1}),
        ({"raw": {"onFailure": {"retry": {"maximumRetries": 0}, "report": {"mail": {"smtpPort": 25}}}}}, None, None),
    ],
)
def test_what_is_not_usual_is_there_by_its_key(given: dict[str, Any], key: str | None, value: Any) -> None:
    assert define(**given).keys == {"command": "true", "schedule": "0 3 * * *", **({key: value} if key else {})}


def test_command_and_schedule_keep_their_form() -> None:
    both = Schedule.parse("0 3 1 * 1", job_name="a", zone=UTC, day_match="all")
    found = define(("a", "b c"), both)
    assert found.keys == {"command": ["a", "b c"], "schedule": {"line": "0 3 1 * 1", "dayMatch": "all"}}


def test_what_a_left_out_key_means_is_known() -> None:
    assert [usual((key,)) for key in ("enabled", "killTimeout", "timezone", "clusterPolicy")] == [
        True,
        30,
        None,
        "Leader",
    ]
    assert [usual(("failsWhen", key)) for key in ("producesStderr", "always", "nothing")] == [True, False, None]
    assert usual(("onFailure", "enabled")) is None


SECRET = "correct horse"
HIDERS: list[dict[str, Any]] = [
    {"environment": (("PIN", SECRET), ("B", "2"))},
    {"raw": {"onFailure": {"report": {"mail": {"password": {"value": SECRET}, "to": "x"}}}}},
    {"raw": {"onFailure": {"report": {"mail": {"password": SECRET}}}}},
    {"raw": {"onSuccess": {"report": {"sentry": {"dsn": {"value": SECRET}}}}}},
    {"raw": {"onPermanentFailure": {"report": {"webhook": {"url": {"value": SECRET}}}}}},
    {"raw": {"onPermanentFailure": {"report": {"webhook": {"url": f"https://hooks.example/{SECRET}"}}}}},
    {"raw": {"onLate": {"report": {"webhook": {"headers": {"X-Any": SECRET}, "url": {"fromFile": "/f"}}}}}},
    {"raw": {"onLate": {"report": {"webhook": {"headers": {"X-Any": {"value": SECRET}}}}}}},
    {"raw": {"onLate": {"report": {"webhook": {"headers": [SECRET]}}}}},
    {"raw": {"monitor": {"address": f"https://me:{SECRET}@example"}}},
    {"raw": {"plugin": [{"api_key": SECRET}, {"tokens": [SECRET]}]}},
    {"raw": {"plugin": {"passphrase": 12345}}},
    # A name that stands above.
    {"raw": {"plugin": {"secrets": {"db": SECRET}}}},
    {"raw": {"plugin": {"credentials": ["a", SECRET]}}},
    {"raw": {"plugin": {"auth": {"user": "u", "pin": 12345}}}},
    {"raw": {"plugin": {"tokens": [{"of": {"a": [SECRET]}}]}}},
    {"raw": {"password": {"deep": {"fromFile": {"deeper": SECRET}}}}},
    {"raw": {"onFailure": {"report": {"webhook": [SECRET]}}}},
    {"raw": {"onFailure": {"report": {"webhook": SECRET}}}},
    # Pairs.
    {"raw": {"plugin": {"headers": [{"name": "Authorization", "value": f"Bearer {SECRET}"}]}}},
    {"raw": {"plugin": {"headers": [{"name": "X-Any", "content": SECRET}]}}},
    {"raw": {"plugin": {"deep": {"headers": {"a": [SECRET]}}}}},
    {"raw": {"plugin": {"requestHeaders": {"X-Any": SECRET}}}},
    {"raw": {"plugin": {"variables": [{"key": "ANY", "value": SECRET}]}}},
    {"raw": {"plugin": {"variables": [{"name": "DB_PASSWORD", "content": SECRET}]}}},
    {"raw": {"plugin": {"variables": [f"DB_PASSWORD={SECRET}"]}}},
    # Names in every spelling.
    *({"raw": {"plugin": {name: SECRET}}} for name in (
        "routingKey", "routingkey", "routing_key", "routingKeys", "ROUTING_KEY2", "callbackUrl", "callbackURL",
        "URLCallback", "Authorization", "oauth2", "keys", "sshKeys", "MYSQL_PWD", "dbpass", "jwt", "baseUri",
        "defaultValue", "X-Api-Key", "sessionCookie",
    )),
    # URLs under any name.
    *({"raw": {"plugin": {"endpoint": endpoint}}} for endpoint in (
        f"https://h/x?token={SECRET}", f"https://h?sig={SECRET}", f"https://h/?{SECRET}", f"https://h/#{SECRET}",
        f"https://h/{SECRET}", f"see https://u:{SECRET}@h", f"redis://:{SECRET}@h", "amqp://12345@h",
        "u:12345@h", "//u:12345@h", "h/x?sig=12345",
    )),
    # Something secret is set in a text.
    *({"raw": {"plugin": {"text": text}}} for text in (
        f"host=h password={SECRET}", f"a: token={SECRET}", f"Authorization: Bearer {SECRET}",
        f'{{\\"routing_key\\": \\"{SECRET}\\"}}', f"curl -H 'X-Api-Key: {SECRET}' h", f"--password={SECRET}",
    )),
    # What is sent.
    {"raw": {"onFailure": {"report": {"webhook": {"url": {"fromFile": "/f"}, "body": SECRET}}}}},
    {"raw": {"onFailure": {"report": {"mail": {"body": SECRET, "to": "x"}}}}},
    {"raw": {"onLate": {"report": {"sentry": {"extra": {"note": SECRET}, "level": "info"}}}}},
    {"raw": {"plugin": {"subject": f"{{{{ name }}}} {SECRET}"}}},
    {"raw": {"plugin": {"requestBody": [SECRET], "messageTemplate": SECRET, "payload": {"a": 12345}}}},
]  # fmt: skip


@pytest.mark.parametrize("given", HIDERS)
def test_no_secret_is_in_a_definition_or_its_repr(given: dict[str, Any]) -> None:
    found = define(**given)
    shown = json.dumps(found.keys)
    assert "<redacted>" in shown
    for secret in (SECRET, "12345"):
        assert secret not in shown + repr(found)
    assert found.hidden


def test_where_a_secret_comes_from_is_none() -> None:
    headers = {"Authorization": {"fromFile": "/secret/hook"}}
    report = {
        "mail": {"password": {"fromFile": "/secret/mail"}},
        "webhook": {"url": {"fromEnvVar": "HOOK", "value": None}, "headers": headers},
    }
    found = define(raw={"onFailure": {"report": report}})
    assert (found.keys["onFailure"], found.hidden) == ({"report": report}, {})


def test_what_is_no_secret_is_shown() -> None:
    plugin = {
        "maxKeys": 3,
        "author": "ops",
        "monkeys": "many",
        "address": "https://example.org:8443/",
        "text": "at 12:30, see ops@example.org: a = b",
        "secretive": True,
        "token": None,
        "name": "nightly",
        "sizes": [1, 2.0],
    }
    found = define(raw={"plugin": plugin})
    assert (found.keys["plugin"], found.hidden) == (plugin, {})


@pytest.mark.parametrize("key", ["body", "extra"])
def test_a_hidden_text_that_changes_has_another_seal(key: str) -> None:
    one, same, other = (define(raw={"onFailure": {"report": {"sentry": {key: text}}}}) for text in ("a", "a", "b"))
    assert one.keys == other.keys
    assert one.hidden == same.hidden != other.hidden


def test_a_long_text_is_looked_through_once() -> None:
    texts = ["x" * 400_000, ":x" * 200_000, "x:" * 200_000, "a://b/ " * 60_000, "@" * 400_000, " " * 400_000 + "x"]
    assert define(raw={"plugin": texts}).keys["plugin"] == texts


def test_a_seal_is_equal_for_equal_values_under_one_key_and_nowhere_else() -> None:
    hidden = define(environment=(("PIN", "1"), ("B", "2"))).hidden["environment"]
    again = define(environment=(("B", "2"), ("PIN", "1"))).hidden["environment"]
    other = define(environment=(("PIN", "2"), ("B", "1"))).hidden["environment"]
    key = sealing_key(b"token", "nonce")
    assert seal(key, "a", "environment", hidden) == seal(key, "a", "environment", again)
    different = {
        seal(key, "a", "environment", hidden),
        seal(key, "a", "environment", other),
        seal(key, "b", "environment", hidden),
        seal(key, "a", "onFailure", hidden),
        seal(sealing_key(b"token", "other"), "a", "environment", hidden),
        seal(sealing_key(b"taken", "nonce"), "a", "environment", hidden),
    }
    assert len(different) == 6


def test_jobs_that_share_their_options_have_definitions_of_their_own() -> None:
    shared = JobOptions(environment=(("A", "1"),), shell="/bin/bash")
    jobs = [Job(name, f"run {name}", SCHEDULE, shared) for name in ("a", "b")]
    found = {job.name: definition for job, definition in definitions(jobs)}
    assert [found[name].keys["command"] for name in ("a", "b")] == ["run a", "run b"]
    assert found["a"].keys["shell"] == found["b"].keys["shell"] == "/bin/bash"
