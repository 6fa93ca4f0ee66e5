"""The job-set ID: golden vectors, and what must and must not change it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.fingerprint import job_digest, job_set_id
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, FailsWhen, Job, JobOptions
from cronstable.core.schedule import Schedule, schedule_from_map

GOLDEN_EMPTY = "v1:3bfc269594ef649228e9a74bab00f042efc91d5acc6fbee31a382e80d42388fe"
GOLDEN_PLAIN = "v1:2e36e8e165f9137f0f7b0b9e369c14bc9d342f00cea7580e58abbd560f81e32c"
GOLDEN_RICH = "v1:f17af0a1cd14a43fd12b4c0387446865dbbea2dce702080770cd1329458d0377"


def job(name: str = "backup", line: str = "30 2 * * *", command: Any = "run-backup", **options: Any) -> Job:
    raw = options.pop("raw", {})
    return Job(
        name=name,
        command=command,
        schedule=Schedule.parse(line, job_name=name, zone=UTC, day_match=options.pop("day_match", "any")),
        options=JobOptions(raw=MappingProxyType(raw), **options),
    )


def rich() -> Job:
    return job(
        "näher",
        "H 3 * * mon-fri",
        ("/usr/bin/sync", "--all"),
        timezone="Europe/Berlin",
        environment=(("TOKEN", "s3cret"), ("HOME", "/root")),
        execution_timeout=30.0,
        cluster_policy=ClusterPolicy.PREFER_LEADER,
        user="nobody",
        raw={
            "onFailure": {
                "retry": {"maximumRetries": 3, "initialDelay": 1, "maximumDelay": 30, "backoffMultiplier": 2.0},
                "report": {"mail": {"from": "a@example.org", "to": "b@example.org", "password": {"value": "hidden"}}},
            },
            "statsd": {"prefix": "jobs", "host": "127.0.0.1", "port": 8125},
        },
    )


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [([], GOLDEN_EMPTY), ([job()], GOLDEN_PLAIN), ([job(), rich()], GOLDEN_RICH)],
    ids=["empty", "plain", "rich"],
)
def test_the_id_of_a_known_set_never_changes(jobs: list[Job], expected: str) -> None:
    assert job_set_id(jobs) == expected


def test_the_digest_hashes_the_canonical_document() -> None:
    document = (
        '{"command":{"shell_command":"run-backup"},"name":"backup","options":{"captureStderr":true,"captureStdout":false,'
        '"clusterPolicy":"Leader","concurrencyPolicy":"Allow","enabled":true,"environment":[],"executionTimeout":null,'
        '"failsWhen":{"always":false,"nonzeroReturn":true,"producesStderr":true,"producesStdout":false},"group":null,'
        '"killTimeout":30,"maxLineLength":16777216,"onlyIfLastSucceeded":false,"saveLimit":4096,"shell":"/bin/sh",'
        '"statsd":null,"streamPrefix":"[{job_name} {stream_name}] ","timezone":"UTC","user":null},'
        '"schedule":"30 2 * * *"}'
    )
    digest = hashlib.sha256(document.encode()).hexdigest()
    assert job_digest(job()) == digest
    assert job_set_id([job()]) == "v1:" + hashlib.sha256(f"v1\n{digest}".encode()).hexdigest()


def test_the_digest_is_64_hex_digits_and_the_id_carries_its_scheme() -> None:
    assert len(job_digest(job())) == 64
    assert int(job_digest(job()), 16) > 0
    assert job_set_id([job()]).startswith("v1:")
    assert len(job_set_id([job()])) == 67


@given(order=st.permutations([job(f"job{n}", raw={"onlyIfLastSucceeded": n % 2 == 0}) for n in range(6)]))
def test_the_order_of_jobs_does_not_matter(order: list[Job]) -> None:
    assert job_set_id(order) == job_set_id(sorted(order, key=lambda each: each.name))


def test_sharing_an_options_object_or_not_does_not_matter() -> None:
    shared = JobOptions(save_limit=10)
    together = [replace(job(f"job{n}"), options=shared) for n in range(3)]
    apart = (replace(job(f"job{n}"), options=JobOptions(save_limit=10)) for n in range(3))
    assert job_set_id(together) == job_set_id(apart)


CHANGES: dict[str, Job] = {
    "name": job("other"),
    "command": job(command="run-backup "),
    "argv": job(command=("run-backup",)),
    "schedule": job(line="31 2 * * *"),
    "dayMatch": job(day_match="all"),
    "shell": job(shell="/bin/bash"),
    "concurrencyPolicy": job(concurrency_policy=ConcurrencyPolicy.FORBID),
    "clusterPolicy": job(cluster_policy=ClusterPolicy.EVERY_NODE),
    "captureStdout": job(capture_stdout=True),
    "captureStderr": job(capture_stderr=False),
    "streamPrefix": job(stream_prefix=""),
    "saveLimit": job(save_limit=1),
    "maxLineLength": job(max_line_length=1),
    "timezone": job(timezone="Europe/Berlin"),
    "utc": job(utc=False),
    "enabled": job(enabled=False),
    "onlyIfLastSucceeded": job(raw={"onlyIfLastSucceeded": True}),
    "failsWhen": job(fails_when=FailsWhen(always=True)),
    "onFailure": job(raw={"onFailure": {"report": {"shell": {"command": "x"}}}}),
    "retry": job(raw={"onFailure": {"retry": {"maximumRetries": 1}}}),
    "onPermanentFailure": job(raw={"onPermanentFailure": {"report": {"shell": {"command": "x"}}}}),
    "onSuccess": job(raw={"onSuccess": {"report": {"shell": {"command": "x"}}}}),
    "shell timeout": job(raw={"onSuccess": {"report": {"shell": {"command": "x", "timeout": 61}}}}),
    "environment": job(environment=(("A", "1"),)),
    "executionTimeout": job(execution_timeout=5),
    "killTimeout": job(kill_timeout=5),
    "statsd": job(raw={"statsd": {"prefix": "p", "host": "h", "port": 1}}),
    "user": job(user=1000),
    "group": job(group="adm"),
    "concurrencyScope": job(raw={"concurrencyScope": "cluster"}),
    "onLeaseLost": job(raw={"onLeaseLost": "kill"}),
    "onUnfinishedClaim": job(raw={"onUnfinishedClaim": "rerun"}),
    "priority": job(priority="idle"),
    "secret source": job(raw={"onFailure": {"report": {"mail": {"password": {"fromFile": "/run/other"}}}}}),
    "header name": job(raw={"onFailure": {"report": {"webhook": {"headers": {"X-Other": "1"}}}}}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_in_the_identity_changes_the_id(what: str) -> None:
    others = [job(), *(each for key, each in CHANGES.items() if key != what)]
    assert job_digest(CHANGES[what]) not in {job_digest(other) for other in others}


EXCLUDED = {
    "onMissed": "run-all",
    "startingDeadlineSeconds": 5,
    "catchupJitterSeconds": 5,
    "archiveOutput": True,
    "redactArchivedSecrets": False,
    "sla": {"lateAfterSeconds": 3},
    "onLate": {"report": {}},
    "monitorResources": True,
    "someLaterKey": "x",
}


@pytest.mark.parametrize("key", EXCLUDED)
def test_what_is_not_in_the_identity_does_not_change_the_id(key: str) -> None:
    assert job_digest(job(raw={key: EXCLUDED[key]})) == job_digest(job())


def test_working_directory_and_source_do_not_change_the_id() -> None:
    assert job_digest(replace(job(working_directory="/srv"), source="a.yaml:3")) == job_digest(job())


def test_defaults_written_out_equal_defaults_left_out() -> None:
    written = job(
        timezone="UTC",
        raw={
            "concurrencyScope": "node",
            "onLeaseLost": "continue",
            "onUnfinishedClaim": "skip",
            "onlyIfLastSucceeded": False,
            "onSuccess": {},
            "onPermanentFailure": {"report": {"mail": {"from": None, "smtpPort": 25}, "shell": {"timeout": 60}}},
            "onFailure": {
                "retry": {"maximumRetries": 0, "initialDelay": 1.0, "maximumDelay": 300, "backoffMultiplier": 2.0},
                "report": {
                    "sentry": {"level": "error", "maxStringLength": 8192},
                    "webhook": {"method": "POST", "headers": {}, "timeout": 10.0},
                },
            },
        },
    )
    assert job_digest(written) == job_digest(job())


@given(number=st.integers(1, 10**6))
def test_a_number_has_one_spelling(number: int) -> None:
    def spelled(value: float) -> str:
        retry = {"maximumRetries": 5, "initialDelay": value, "maximumDelay": 9, "backoffMultiplier": 2}
        return job_digest(job(execution_timeout=value, kill_timeout=value, raw={"onFailure": {"retry": retry}}))

    assert spelled(number) == spelled(float(number))
    assert spelled(number) != spelled(number + 0.5)


def test_a_boolean_is_not_a_number() -> None:
    assert job_digest(job(capture_stdout=True)) != job_digest(job(capture_stdout=1))


@given(secret=st.text(), other=st.text())
def test_secret_values_never_matter(secret: str, other: str) -> None:
    def with_secret(value: str) -> str:
        report = {
            "mail": {"to": "x", "password": {"value": value}},
            "sentry": {"dsn": value},
            "webhook": {"url": {"value": value}, "headers": {"Authorization": value}},
            "pager": {"token": {"value": value}, "list": [{"value": value}]},
        }
        return job_digest(job(environment=(("TOKEN", value),), raw={"onFailure": {"report": report}}))

    assert with_secret(secret) == with_secret(other)


def test_the_names_in_an_env_file_count_and_their_order_does_not() -> None:
    plain = job(environment=(("B", "1"), ("A", "1")))
    from_file = job(environment=(("A", "1"),), env_file="job.env")
    assert job_digest(from_file, lambda _: ["B"]) == job_digest(plain)
    assert job_digest(from_file, lambda _: ["C"]) != job_digest(plain)
    assert job_set_id([from_file], lambda _: ["B"]) == job_set_id([plain])
    assert job_digest(plain) == job_digest(job(environment=(("A", "2"), ("B", "3"))))


def test_the_map_form_of_a_schedule_equals_its_line_and_white_space_is_no_difference() -> None:
    line = schedule_from_map({"minute": "30", "hour": "2"})
    assert job_digest(job(line=line)) == job_digest(job(line="  30\t2 *  * * "))


def test_a_hash_counts_as_written() -> None:
    hashed, drawn = job(line="H 2 * * *"), job(line="H 2 * * *").schedule.resolved
    assert job_digest(hashed) != job_digest(job(line=drawn))


def test_ten_thousand_jobs_ask_for_their_shared_options_once() -> None:
    class Counted(dict[str, Any]):
        reads = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.reads += 1
            return super().get(key, default)

    options = JobOptions(raw=Counted())
    plain = job()
    job_set_id(replace(plain, name=f"job{n}", options=options) for n in range(10_000))
    assert 0 < Counted.reads < 20
