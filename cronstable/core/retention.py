"""What of a removed job may go: the rule over manifests (reference 4.7). Values in, verdicts out.

Each node writes which jobs it knows, every six hours, to ``manifests/<host>``. The records of a job go when no recent
manifest names it, its newest record is older than the grace, and the manifests cover the whole grace without a hole:
a fleet that comes back from a long rest has said nothing yet about the jobs of nodes that are still to come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.core.job import Json
from cronstable.core.records import stream
from cronstable.core.values import dataclass

MANIFEST_EVERY: Final[Seconds] = 6 * 3600.0
LARGEST_HOLE: Final[Seconds] = 24 * 3600.0
"""Between two manifests of any node: three in a row may be missing."""
OF_JOBS: Final = ("runs", "logs", "catchup", "retries", "reboot", "inflight", "slots", "paused")
"""First parts of the streams that belong to a job."""

_TIMES: Final = ("finishedAt", "at", "startedAt", "armedAt", "notBefore", "until", "decidedAt", "scheduledAt")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which jobs a node knew. ``at``: wall seconds."""

    host: str
    job_set_id: str
    names: frozenset[str]
    at: float

    def row(self) -> Mapping[str, Json]:
        """As it is kept."""
        names: list[Json] = [*sorted(self.names)]
        return {"host": self.host, "jobSetId": self.job_set_id, "names": names, "at": self.at}


def manifest_of(row: Mapping[str, Json]) -> Manifest | None:
    """The manifest that a row tells of; None when it tells of none."""
    names, at = row.get("names"), row.get("at")
    if not isinstance(names, list) or isinstance(at, bool) or not isinstance(at, int | float):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    return Manifest(
        str(row.get("host", "")), str(row.get("jobSetId", "")), frozenset(str(name) for name in names), float(at)
    )


def manifests_kept(grace: Seconds | None) -> int:
    """How many manifests a node keeps, so that they can cover ``grace``."""
    return 4 + math.ceil((grace or 0.0) / MANIFEST_EVERY)


@dataclass(frozen=True, slots=True)
class Retention:
    """What the manifests say at one instant. ``grace`` in seconds, ``now`` in wall seconds."""

    grace: Seconds
    now: float
    named: frozenset[str]
    covered: bool

    @classmethod
    def of(cls, manifests: Iterable[Manifest], grace: Seconds, now: float) -> Retention:
        """Read the manifests of all nodes. One from the future counts as recent: some clock is wrong."""
        found = list(manifests)
        named = frozenset(name for manifest in found if manifest.at > now - grace for name in manifest.names)
        return cls(grace, now, named, _covered(sorted(manifest.at for manifest in found), now - grace, now))

    def candidate(self, name: str) -> bool:
        """Whether the stream ``name`` belongs to a job that nobody named for a whole grace."""
        prefix, _, rest = name.partition("/")
        if not self.covered or not rest or prefix not in OF_JOBS:
            return False
        if prefix == "catchup" and rest.startswith("~"):
            # The hash of a job and a node: whose it is cannot be told.
            return False
        return not any(
            name == stream(prefix, job) or name.startswith(f"{prefix}/{job}/") for job in self._that_could_own(rest)
        )

    def may_go(self, newest: Mapping[str, Json] | None) -> bool:
        """Whether the newest record of a candidate is old enough. One that tells no time stays."""
        if newest is None:
            return False
        at = record_time(newest)
        return at is not None and at <= self.now - self.grace

    def _that_could_own(self, rest: str) -> Iterable[str]:
        """Jobs of which ``rest`` may be the name: itself, its beginnings up to a ``/``, or any, when it is a hash."""
        if rest.startswith("~"):
            return self.named
        parts = rest.split("/")
        return [job for end in range(1, len(parts) + 1) if (job := "/".join(parts[:end])) in self.named]


def record_time(data: Mapping[str, Json]) -> float | None:
    """The latest wall time that a record tells, as seconds or RFC 3339; None when it tells none."""
    times = [at for key in _TIMES if (at := _seconds(data.get(key))) is not None]
    return max(times, default=None)


def _seconds(value: Json) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None


def _covered(times: list[float], start: float, end: float) -> bool:
    """Whether ``times`` begin before ``start`` and leave no hole up to ``end``."""
    last: float | None = None
    for at in times:
        if last is not None and at > start and min(at, end) - max(last, start) > LARGEST_HOLE:
            return False
        last = at
    return bool(times) and times[0] <= start and last is not None and end - max(last, start) <= LARGEST_HOLE
