"""A span for each run, when the extra ``cronstable[otel]`` is installed and the environment names a collector.

The SDK exports from a thread of its own and reads its own settings (``OTEL_*``) from the environment. Nothing of it is
imported before an endpoint is configured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cronstable.core.clock import Seconds
from cronstable.core.job import Job
from cronstable.core.occurrence import scheduled_at_text
from cronstable.core.runs import Outcome, RunKey, RunRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH: Seconds = 5.0
"""At the daemon's end: how long spans that are not exported yet are waited for."""


def spans_of(environ: Mapping[str, str], log: logging.Logger) -> RunSpans | None:
    """Spans as the environment asks for them; None without an endpoint, or without the extra (which is logged)."""
    configured = next((name for name in ENDPOINTS if environ.get(name)), None)
    if configured is None or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        text = "%s is set, and the extra cronstable[otel] is not installed: runs are not traced (no module %s)"
        log.warning(text, configured, error.name)
        return None
    name = environ.get("OTEL_SERVICE_NAME", "cronstable")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return RunSpans(provider, environ)


class RunSpans:
    """Implements the launcher's ``Tracer``. Spans are children of the daemon's own ``TRACEPARENT``, if it has one."""

    def __init__(self, provider: TracerProvider, environ: Mapping[str, str]) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("cronstable")
        self._propagator = TraceContextTextMapPropagator()
        own = {name.lower(): environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in environ}
        self._parent = self._propagator.extract(own)
        self._spans: dict[str, Span] = {}

    def begin(self, job: Job, key: RunKey) -> Mapping[str, str]:
        """Start the span of a run; what its process needs to make spans below it."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            f"run {job.name}",
            context=self._parent,
            attributes={
                "cronstable.job": job.name,
                "cronstable.run_id": key.run_id,
                "cronstable.attempt": key.attempt,
                "cronstable.trigger": key.trigger.value,
                "cronstable.scheduled_at": scheduled_at_text(key.scheduled_at),
            },
        )
        self._spans[key.run_id] = span
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        return {name.upper(): value for name, value in carrier.items()}

    def end(self, key: RunKey, record: RunRecord | None) -> None:
        """End the span with what came out; one of a run that never started ends without an outcome."""
        from opentelemetry.trace import StatusCode

        span = self._spans.pop(key.run_id, None)
        if span is None:
            return
        if record is not None:
            span.set_attribute("cronstable.outcome", record.outcome.value)
            if record.exit_code is not None:
                span.set_attribute("process.exit.code", record.exit_code)
            if record.outcome is Outcome.FAILURE:
                span.set_status(StatusCode.ERROR, record.fail_reason)
        span.end()

    def close(self) -> None:
        """Export what is left, for a short while."""
        # In a thread that may be left behind: a collector that does not answer must not keep the daemon from exiting.
        flush = threading.Thread(target=self._provider.shutdown, name="cronstable-otel", daemon=True)
        flush.start()
        flush.join(FLUSH)
