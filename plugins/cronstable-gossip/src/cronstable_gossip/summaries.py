"""What a node tells of its runs, and what it knows of the others': display only, never a decision (reference 7.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from cronstable.api import EpochSeconds, Host, HostSnapshot, Json, RunRecord
from cronstable_gossip.model import Peer
from cronstable_gossip.payload import MOST_SUMMARIES, SUMMARY_NAME_BYTES


class Summaries:
    """This node's run summaries. What does not count down is made anew only when something changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen: tuple[object, ...] = ()
        self._parts: dict[str, tuple[dict[str, Json], EpochSeconds | None]] = {}
        self.truncated = False
        self.version = 0

    def look(self) -> None:
        """Take in what changed; then ``version`` is another one."""
        snapshot = self._host.snapshot()
        seen = (snapshot.jobs, snapshot.live, snapshot.last_runs, snapshot.next_fires)
        if len(seen) != len(self._seen) or any(a is not b for a, b in zip(seen, self._seen, strict=True)):
            self._seen = seen
            self._make(snapshot)
            self.version += 1

    def now(self) -> Mapping[str, Json]:
        """Summaries by job, as of the last look, counting down to this instant."""
        at = self._host.clock.now().wall
        return {
            name: {**part, "scheduled_in": None if due is None else round(due - at, 3)}
            for name, (part, due) in self._parts.items()
        }

    def _make(self, snapshot: HostSnapshot) -> None:
        names = [name for name in sorted(snapshot.jobs) if len(name.encode()) <= SUMMARY_NAME_BYTES]
        self.truncated = len(names) > MOST_SUMMARIES or len(names) < len(snapshot.jobs)
        self._parts = {}
        for name in names[:MOST_SUMMARIES]:
            last = snapshot.last_runs.get(name)
            part: dict[str, Json] = {
                "running": len(snapshot.live.get(name, ())),
                "enabled": snapshot.jobs[name].options.enabled,
                "last": None if last is None else _last(last.run),
            }
            self._parts[name] = (part, snapshot.next_fires.get(name))


def fleet(own: Mapping[str, Json], peers: Iterable[Peer], now: float) -> tuple[Mapping[str, Json], ...]:
    """``own`` and the other nodes, each once; one that is silent keeps what it said last, with the time of then.

    ``now``: boot seconds to which countdowns go on from when they were heard.
    """
    found: dict[str, Mapping[str, Json]] = {}
    for peer in peers:
        if not peer.is_self:
            found.setdefault(peer.instance_id or f"host:{peer.host}", _entry(peer, now))
    return own, *found.values()


def own_entry(
    name: str,
    host: str,
    wall: float,
    jobs: Mapping[str, Json],
    *,
    truncated: bool,
    stats: Mapping[str, float] | None = None,
) -> Mapping[str, Json]:
    """This node's line of GET /fleet."""
    return {
        "node_name": name,
        "host": host,
        "self": True,
        "status": "self",
        "as_of": _iso(wall),
        "jobs": dict(jobs),
        "truncated": truncated,
        "node_stats": None if stats is None else dict(stats),
    }


def _entry(peer: Peer, now: float) -> Mapping[str, Json]:
    age = max(0.0, now - peer.summaries_at)
    return {
        "node_name": peer.node_name,
        "host": peer.host,
        "self": False,
        "status": peer.status.value,
        "as_of": None if peer.last_seen is None else _iso(peer.last_seen),
        "jobs": None if peer.summaries is None else {name: _aged(said, age) for name, said in peer.summaries.items()},
        "truncated": peer.truncated,
        "node_stats": None if peer.stats is None else dict(peer.stats.values),
    }


def _aged(said: Json, age: float) -> Json:
    """What a peer said of a job ``age`` seconds ago, counting down to now and no further."""
    if not isinstance(said, Mapping):
        return said
    due = said.get("scheduled_in")
    return {**said, "scheduled_in": round(max(0.0, due - age), 3)} if isinstance(due, int | float) else said


def _last(record: RunRecord) -> Json:
    return {
        "outcome": record.outcome.value,
        "finished_at": None if record.finished_at is None else _iso(record.finished_at),
        "duration": record.duration,
        "exit_code": record.exit_code,
    }


def _iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat()
