"""GET /metrics: samples written by prometheus-client, kept as bytes for what did not change (reference 8).

What is said of a job changes when something happens to it, and jobs are most of the page: each one's lines are written
again only then. The library writes them all; nothing of its format is known here but that families begin with ``#``.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import anyio
from aiohttp import web

from cronstable.api import Histogram, HostSnapshot
from cronstable.builtin.web import families as f
from cronstable.builtin.web import samples
from cronstable.builtin.web.answers import accepts, accepts_gzip
from cronstable.builtin.web.certificate import Certificates
from cronstable.builtin.web.documents import same_in
from cronstable.builtin.web.families import Family
from cronstable.builtin.web.kept import Kept
from cronstable.builtin.web.routes import TEXT, Route
from cronstable.builtin.web.samples import JobFacts, Sample
from cronstable.builtin.web.site import Site
from cronstable.builtin.web.streams import Streams

if TYPE_CHECKING:
    from prometheus_client import Metric

OPEN_METRICS: Final = "application/openmetrics-text"
TYPES: Final = {
    TEXT: "text/plain; version=0.0.4; charset=utf-8",
    OPEN_METRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
FRESH: Final = 0.5
"""Seconds for which a page is sent again as it is."""
OFF_LOOP: Final = 20.0
VARY: Final = MappingProxyType({"Vary": "Accept, Accept-Encoding"})
GZIP_FROM: Final = 1024
_END: Final = b"# EOF\n"

_OF_JOBS: Final = (
    attrgetter("jobs"),
    attrgetter("live"),
    attrgetter("next_fires"),
    attrgetter("last_runs"),
    attrgetter("paused"),
    attrgetter("late"),
    attrgetter("tally.jobs"),
    attrgetter("tally.bounds"),
)
"""The parts of a snapshot that the samples of jobs are made of."""

Lines = Mapping[str, bytes]
"""Name of a family to its lines."""


@dataclass(slots=True, eq=False)
class _Page:
    """What is kept of one format: the lines of each job, all of them together, and the last page."""

    seen: HostSnapshot | None = None
    jobs: dict[str, tuple[JobFacts, Lines]] = field(default_factory=dict)
    together: bytes = b""
    body: bytes = b""
    plain: Kept | None = None
    zipped: Kept | None = None
    made_at: float = float("-inf")


class Exposition:
    """Writes the page, one scrape at a time."""

    def __init__(self, site: Site, streams: Streams, certificates: Certificates) -> None:
        self._site = site
        self._streams = streams
        self._certificates = certificates
        self._pages: dict[str, _Page] = {}
        self._busy = anyio.Lock()
        self._said: set[tuple[str, str]] = set()
        """Format and part of what is left out now, so that it is said once."""

    def routes(self) -> Iterable[Route]:
        """The one endpoint, unless it is not wanted."""
        wanted = self._site.settings.metrics
        if wanted.enabled:
            yield Route(
                "GET",
                "/metrics",
                self.metrics,
                "Counts and gauges for Prometheus",
                media=(TEXT, OPEN_METRICS),
                open=wanted.public,
            )

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """GET /metrics: text, or OpenMetrics for who asks for it."""
        kind = OPEN_METRICS if accepts(request, OPEN_METRICS) else TEXT
        packed = accepts_gzip(request)
        page = self._pages.setdefault(kind, _Page())
        kept = self._fresh(page, packed)
        if kept is None:
            async with self._busy:
                kept = self._fresh(page, packed) or await self._renewed(page, kind, packed)
        return self._site.kept(request, kept, lambda: self._fresh(page, packed))

    def _fresh(self, page: _Page, packed: bool) -> Kept | None:
        """What was written a moment ago, in the form that is asked for."""
        if not 0 <= self._site.wall() - page.made_at < FRESH:
            return None
        return page.zipped if packed and len(page.body) >= GZIP_FROM else page.plain

    async def _renewed(self, page: _Page, kind: str, packed: bool) -> Kept:
        """The page as of now, in the form that is asked for."""
        now, threads = self._site.wall(), self._site.host.threads
        if page.plain is None or not 0 <= now - page.made_at < FRESH:
            await self._certificates.look()
            snapshot = self._site.host.snapshot()
            if page.seen is not None and same_in(_OF_JOBS, page.seen, snapshot):
                self._make(page, kind, snapshot)
            else:
                # In a thread: the first page imports the library, and others may have a thousand jobs to write.
                await threads.run(lambda: self._make(page, kind, snapshot), timeout=OFF_LOOP, lane="web")
            page.plain, page.zipped, page.made_at = Kept(page.body, TYPES[kind], VARY), None, now
        if not packed or len(page.body) < GZIP_FROM:
            return page.plain
        body = await threads.run(
            lambda: gzip.compress(page.body, compresslevel=1, mtime=0), timeout=OFF_LOOP, lane="web"
        )
        page.zipped = Kept(body, TYPES[kind], {**VARY, "Content-Encoding": "gzip"})
        return page.zipped

    def _make(self, page: _Page, kind: str, snapshot: HostSnapshot) -> None:
        """Bring the page up to date. A part that fails is left out, which is said once until it is there again."""
        try:
            if page.seen is None or not same_in(_OF_JOBS, page.seen, snapshot):
                self._jobs(page, kind, snapshot)
                self._said.discard((kind, "jobs"))
            page.seen = snapshot
        except Exception:  # noqa: BLE001 - as in _block
            self._complain(kind, "jobs")
            page.jobs.clear()
            page.together = b""
        certificates, streams = self._certificates.ends, self._streams.count
        blocks: tuple[tuple[str, Callable[[], Iterator[Sample]]], ...] = (
            ("daemon", lambda: samples.daemon_samples(snapshot)),
            ("work", lambda: samples.work_samples(snapshot)),
            ("web", lambda: samples.web_samples(snapshot, streams, certificates)),
            ("state", lambda: samples.state_samples(snapshot)),
            ("cluster", lambda: samples.cluster_samples(snapshot)),
        )
        parts = [self._block(kind, name, block) for name, block in blocks]
        page.body = b"".join([parts[0], page.together, *parts[1:], _END if kind == OPEN_METRICS else b""])

    def _block(self, kind: str, name: str, block: Callable[[], Iterator[Sample]]) -> bytes:
        try:
            lines = written(kind, list(block()))
        except Exception:  # noqa: BLE001 - a view comes from a plugin; what it breaks is its own block
            self._complain(kind, name)
            return written(kind, [(f.CLUSTER, (), 0)]) if name == "cluster" else b""
        self._said.discard((kind, name))
        return lines

    def _complain(self, kind: str, name: str) -> None:
        if (kind, name) not in self._said:
            self._said.add((kind, name))
            self._site.host.log.exception("web: the metrics of %s are left out", name)

    def _jobs(self, page: _Page, kind: str, snapshot: HostSnapshot) -> None:
        kept: dict[str, tuple[JobFacts, Lines]] = {}
        same = len(page.jobs) == len(snapshot.jobs)
        for (name, old), facts in zip(_aligned(page.jobs, snapshot), samples.facts_of(snapshot), strict=True):
            if old is not None and old[0] == facts:
                kept[name] = old
            else:
                kept[name] = (facts, split(written(kind, list(samples.job_samples(facts)))))
                same = False
        if not same or list(kept) != list(page.jobs):
            page.together = b"".join(_together(kind, [lines for _, lines in kept.values()]))
        page.jobs = kept


def _aligned(
    jobs: Mapping[str, tuple[JobFacts, Lines]], snapshot: HostSnapshot
) -> Iterator[tuple[str, tuple[JobFacts, Lines] | None]]:
    return ((name, jobs.get(name)) for name in snapshot.jobs)


def _together(kind: str, jobs: Sequence[Lines]) -> Iterator[bytes]:
    """The lines of all jobs family by family, each after its head."""
    for family in f.OF_JOBS:
        name = _headed(kind, family)
        lines = [found for one in jobs if (found := one.get(name)) is not None]
        if lines:
            yield _head(kind, family)
            yield from lines


def _headed(kind: str, family: Family) -> str:
    """The name in a family's head: the text format has the suffix of counters there, OpenMetrics does not."""
    return family.name if kind == OPEN_METRICS else family.shown


def _head(kind: str, family: Family) -> bytes:
    name = _headed(kind, family)
    return f"# HELP {name} {family.about}\n# TYPE {name} {family.kind}\n".encode()


def written(kind: str, found: Sequence[Sample]) -> bytes:
    """Samples as the library writes them. Those of a family follow one another."""
    # Here and not above: the library is loaded at the first scrape.
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as open_metrics

    module = open_metrics if kind == OPEN_METRICS else exposition
    # One of the two has no annotations.
    write = cast("Callable[[_Given], bytes]", module.generate_latest)
    return write(_Given(found)).removesuffix(_END)


def split(text: bytes) -> Lines:
    """A written page by family, without the heads."""
    found: dict[str, list[bytes]] = {}
    lines: list[bytes] = []
    for line in text.split(b"\n")[:-1]:
        if line.startswith(b"# TYPE "):
            lines = found.setdefault(line.split(b" ", 3)[2].decode(), [])
        elif not line.startswith(b"#"):
            lines.append(line + b"\n")
    return {name: b"".join(rows) for name, rows in found.items()}


class _Given:
    """A collector, in the library's sense, of samples that are there already."""

    def __init__(self, found: Sequence[Sample]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """The families with their samples."""
        for family, group in groupby(self._found, key=lambda sample: sample[0]):
            yield _metric(family, [(labels, value) for _, labels, value in group])


def _metric(family: Family, found: Iterable[tuple[tuple[str, ...], float | Histogram]]) -> Metric:
    # Here and not above: the library is loaded at the first scrape.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.about, labels=family.labels)
        for labels, value in found:
            if isinstance(value, Histogram):
                histogram.add_metric(_labels(labels), buckets_of(value), value.total)
        return histogram
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.name, family.about, labels=family.labels)
    for labels, value in found:
        if not isinstance(value, Histogram):
            metric.add_metric(_labels(labels), float(value))
    return metric


def _labels(values: tuple[str, ...]) -> list[str]:
    """The library escapes what the format demands, which leaves carriage returns, and lone surrogates have no bytes."""
    return [value.replace("\r", "\\r").encode("utf-8", "replace").decode() for value in values]


def buckets_of(value: Histogram) -> list[tuple[str, float]]:
    """Upper bounds, and how many observations were at most that."""
    found: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        below += count
        found.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(below)))
    return found
