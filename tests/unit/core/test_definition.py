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
]


@pytest.mark.parametrize("given", HIDERS)
def test_no_secret_is_in_a_definition_or_its_repr(given: dict[str, Any]) -> None:
    found = define(**given)
    shown = json.dumps(found.keys)
    assert "<redacted>" in shown
    for secret in (SECRET, "12345"):
        assert secret not in shown + repr(found)
    assert found.hidden


def test_where_a_secret_comes_from_is_none() -> None:
    report = {"mail": {"password": {"fromFile": "/secret/mail"}}, "webhook": {"url": {"fromEnvVar": "HOOK"}}}
    found = define(raw={"onFailure": {"report": report}})
    assert (found.keys["onFailure"], found.hidden) == ({"report": report}, {})


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
