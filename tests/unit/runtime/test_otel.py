"""Spans of runs, in the SDK's own memory."""

from __future__ import annotations

import logging
import sys
from datetime import UTC

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import Outcome, RunKey, RunRecord, Trigger
from cronstable.core.schedule import Schedule
from cronstable.runtime.otel import RunSpans, spans_of

JOB = Job("a", "true", Schedule.parse("* * * * *", job_name="a", zone=UTC), JobOptions())
KEY = RunKey("r1", "a", 1_800_000_000, 1, Trigger.RETRY)
LOG = logging.getLogger("test")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans(environ: dict[str, str] | None = None) -> tuple[RunSpans, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RunSpans(provider, environ or {}), exporter


def record(outcome: Outcome, code: int | None) -> RunRecord:
    return RunRecord(KEY, outcome, code, 0.0, 1.0, 1.0, fail_reason="retcode=3" if code else None)


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def test_a_run_is_one_span_and_its_process_is_told_which() -> None:
    maker, exporter = spans()
    variables = maker.begin(JOB, KEY)
    maker.end(KEY, record(Outcome.SUCCESS, 0))
    span = only(exporter)
    context = span.get_span_context()
    assert context is not None
    assert variables["TRACEPARENT"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert span.name == "run a"
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "cronstable.job": "a",
        "cronstable.run_id": "r1",
        "cronstable.attempt": 1,
        "cronstable.trigger": "retry",
        "cronstable.scheduled_at": "2027-01-15T08:00:00Z",
        "cronstable.outcome": "success",
        "process.exit.code": 0,
    }


def test_a_failure_is_an_error_with_its_reason() -> None:
    maker, exporter = spans()
    maker.begin(JOB, KEY)
    maker.end(KEY, record(Outcome.FAILURE, 3))
    status = only(exporter).status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "retcode=3")


def test_the_daemon_s_own_traceparent_is_the_parent_of_every_run() -> None:
    maker, exporter = spans({"TRACEPARENT": PARENT})
    variables = maker.begin(JOB, KEY)
    maker.end(KEY, record(Outcome.SUCCESS, 0))
    parent = only(exporter).parent
    assert parent is not None
    assert f"{parent.span_id:016x}" == "b7ad6b7169203331"
    assert variables["TRACEPARENT"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
    assert variables["TRACEPARENT"] != PARENT


def test_a_run_that_never_started_ends_its_span_without_an_outcome() -> None:
    maker, exporter = spans()
    maker.begin(JOB, KEY)
    maker.end(KEY, None)
    maker.end(KEY, None)
    assert "cronstable.outcome" not in (only(exporter).attributes or {})


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}]
)
def test_without_an_endpoint_there_are_no_spans(environ: dict[str, str]) -> None:
    assert spans_of(environ, LOG) is None


def test_an_endpoint_without_the_extra_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert spans_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, LOG) is None
    assert "cronstable[otel]" in caplog.text
