"""What is kept of a retry, so that it survives its daemon and can move to another one (reference 4.2).

One stream a job; its newest record decides. Only ``Pending`` and ``Handoff`` leave something to do. Instants are wall
seconds here and ISO 8601 in the store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from cronstable.core.clock import EpochSeconds, Seconds
from cronstable.core.job import Json
from cronstable.core.retry import SHORTEST_DEFERRAL, RetryPolicy
from cronstable.core.values import dataclass

OVERDUE: Final[Seconds] = 30.0
"""How long after its time an attempt of another node may be taken over, unless that node cannot start it any more."""


class Settling(StrEnum):
    """Why nothing is left to do. The values are public: they stand in the store."""

    LAUNCHED = "launched"
    SUCCEEDED = "succeeded"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"
    OWNER_MOVED = "owner-moved"
    SUPERSEDED_BY_RUN = "superseded-by-run"
    JOB_REMOVED = "job-removed"
    CONFIG_CHANGED = "config-changed"
    DISABLED = "disabled"
    STARTING_DEADLINE = "starting-deadline"
    REBOOTED = "rebooted"


@dataclass(frozen=True, slots=True)
class Place:
    """Where on which ladder: ``attempt`` (1 is the first retry) of the occurrence that ``first_run_id`` began.

    ``scheduled_at``: T, None for a manual or @reboot run. ``job_digest``: of the definition that failed.
    ``not_before``: when the attempt is due. ``armed_at``: when the attempt before it had failed; what began later than
    that makes this one obsolete, wherever the record has been since.
    """

    attempt: int
    first_run_id: str
    scheduled_at: EpochSeconds | None
    job_digest: str
    not_before: float
    armed_at: float


@dataclass(frozen=True, slots=True)
class Pending:
    """``host`` waits for an attempt. ``token``: of this very record, and of no other.

    ``claimed_from``: whose it was before. ``boot_id``: of the operating system there, None where there is none.
    ``voids``: tokens of records that called this very attempt launched before something kept it from starting.
    """

    place: Place
    host: str
    token: str
    at: float
    claimed_from: str | None = None
    boot_id: str | None = None
    voids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to do. ``token``: as in ``Pending``.

    ``attempt``, ``first_run_id``: what this is about, None where it is about all there was.
    """

    reason: Settling
    host: str
    token: str
    at: float
    attempt: int | None = None
    first_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """``from_host`` lets go of an attempt that another node is to make. ``voids``: as in ``Pending``."""

    place: Place
    from_host: str
    token: str
    at: float
    voids: tuple[str, ...] = ()


RetryRecord: TypeAlias = Pending | Settled | Handoff


# -- in the store -----------------------------------------------------------------------------------------------------


def encode(record: RetryRecord) -> dict[str, Json]:
    """The record as it stands in the store."""
    match record:
        case Pending(place, host, token, at, claimed_from, boot_id, voids):
            found: dict[str, Json] = {"kind": "pending", **_of_place(place), "host": host, "token": token}
            found |= {"at": _iso(at), "armedAt": _iso(place.armed_at)}
            optional: dict[str, Json] = {"claimedFrom": claimed_from, "bootId": boot_id, "voids": _list(voids)}
            return found | {key: value for key, value in optional.items() if value is not None}
        case Handoff(place, from_host, token, at, voids):
            found = {"kind": "handoff", **_of_place(place), "fromHost": from_host, "token": token}
            found |= {"at": _iso(at), "armedAt": _iso(place.armed_at)}
            return found | {"voids": _list(voids)} if voids else found
        case Settled(reason, host, token, at, attempt, first):
            found = {"kind": "settled", "reason": reason.value, "host": host, "token": token, "at": _iso(at)}
            optional = {"attempt": attempt, "firstRunId": first}
            return found | {key: value for key, value in optional.items() if value is not None}
        case _:
            assert_never(record)


def decode(data: Mapping[str, Json]) -> RetryRecord | None:
    """Read a record; None for what is none, which leaves nothing to do and is nobody's."""
    try:
        match data.get("kind"):
            case "pending":
                return Pending(
                    _place(data),
                    _text(data, "host"),
                    _text(data, "token"),
                    _instant(data["at"]),
                    _optional(data, "claimedFrom"),
                    _optional(data, "bootId"),
                    _texts(data, "voids"),
                )
            case "handoff":
                host, token, at = _text(data, "fromHost"), _text(data, "token"), _instant(data["at"])
                return Handoff(_place(data), host, token, at, _texts(data, "voids"))
            case "settled":
                attempt = data.get("attempt")
                return Settled(
                    Settling(_text(data, "reason")),
                    _text(data, "host"),
                    _text(data, "token"),
                    _instant(data["at"]),
                    attempt if isinstance(attempt, int) else None,
                    _optional(data, "firstRunId"),
                )
            case _:
                return None
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _of_place(place: Place) -> dict[str, Json]:
    return {
        "attempt": place.attempt,
        "firstRunId": place.first_run_id,
        "scheduledAt": None if place.scheduled_at is None else _iso(place.scheduled_at),
        "jobDigest": place.job_digest,
        "notBefore": _iso(place.not_before),
    }


def _place(data: Mapping[str, Json]) -> Place:
    attempt, scheduled = data["attempt"], data.get("scheduledAt")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        raise ValueError("attempt")
    return Place(
        attempt,
        _text(data, "firstRunId"),
        None if scheduled is None else round(_instant(scheduled)),
        _text(data, "jobDigest"),
        _instant(data["notBefore"]),
        _instant(data["armedAt"]),
    )


def _text(data: Mapping[str, Json], key: str) -> str:
    value = data[key]
    if not isinstance(value, str):
        raise ValueError(key)
    return value


def _texts(data: Mapping[str, Json], key: str) -> tuple[str, ...]:
    found = data.get(key)
    return tuple(text for text in found if isinstance(text, str)) if isinstance(found, list) else ()


def _list(texts: Sequence[str]) -> Json:
    return list(texts) or None


def _optional(data: Mapping[str, Json], key: str) -> str | None:
    return None if data.get(key) is None else _text(data, key)


def _iso(wall: float) -> str:
    """To the microsecond, so that reading gives back what was written (``in_microseconds`` rounds the same way)."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _instant(text: Json) -> float:
    if not isinstance(text, str):
        raise ValueError("an instant is text")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("an instant has a zone")
    return moment.timestamp()


def in_microseconds(wall: float) -> float:
    """``wall`` as it comes back from the store: records are compared with what was read."""
    return datetime.fromtimestamp(wall, UTC).timestamp()


# -- what is to be done about it --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What this node knows of the job that a record is about.

    ``digest``: None when there is no such job; ``deadline``: ``startingDeadlineSeconds``. ``last_start``: when its
    newest run began (wall seconds), ``last_scheduled``: the newest T that was started, as far as is known here.
    """

    digest: str | None
    enabled: bool
    reboot: bool
    policy: RetryPolicy
    deadline: Seconds | None = None
    last_start: float | None = None
    last_scheduled: EpochSeconds | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Not ours to decide now. ``until``: wall seconds when it may become so, None when time alone changes nothing."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """Write down that nothing is left to do."""

    reason: Settling


@dataclass(frozen=True, slots=True)
class Rearm:
    """It is this host's own, from before: wait so long, then ask the gate as always."""

    pending: Pending
    delay: Seconds


@dataclass(frozen=True, slots=True)
class Claim:
    """Try to make it ours. ``place``: with its old instants; ``claimed_from``: whose it was."""

    place: Place
    claimed_from: str


def at_boot(
    newest: RetryRecord | None, facts: Facts, *, host: str, boot_id: str | None, now: float
) -> Rearm | Settle | Leave:
    """What a daemon that just started does about the newest record of a job (reference 4.2). ``now``: wall seconds."""
    match newest:
        case Pending() if newest.host == host:
            moved = None not in (newest.boot_id, boot_id) and newest.boot_id != boot_id
            # A manual run shares the ladder and ends nothing; what began it anew has a later T.
            reason = obsolete(newest.place, replace(facts, last_start=None), now)
            if facts.reboot and moved:
                reason = Settling.REBOOTED
            # After a clock that was ahead, no wait is longer than the policy has any.
            delay = min(newest.place.not_before - now, max(facts.policy.longest, SHORTEST_DEFERRAL))
            return Rearm(newest, max(0.0, delay)) if reason is None else Settle(reason)
        case _:
            # A handoff is for whoever owns the job now, and another host's wait is its own: the scan looks at both.
            return Leave()


def in_scan(
    newest: RetryRecord | None, facts: Facts, *, unsure: Pending | None, grace: Seconds, now: float
) -> Claim | Settle | Leave:
    """What a node that may start the job does about the newest record, when it has no ladder of its own.

    ``unsure``: a record of this process of which it did not learn whether it was written. ``grace``: how long after
    its time another node's attempt is taken over; 0 where that node cannot start it any more. ``now``: wall seconds.
    """
    match newest:
        case None | Settled():
            return Leave()
        case Handoff(place, owner):
            ready = now
        case Pending(place, owner):
            ready = now if newest == unsure else place.not_before + grace
        case _:
            assert_never(newest)
    if now < ready:
        return Leave(ready)
    match obsolete(place, facts, now):
        case None:
            return Claim(place, owner)
        case Settling.JOB_REMOVED | Settling.CONFIG_CHANGED | Settling.DISABLED:
            # While a new configuration is rolled out, whose is the right one is not for this node to say.
            return Leave()
        case reason:
            return Settle(reason)


def obsolete(place: Place, facts: Facts, now: float) -> Settling | None:
    """Why the attempt is not to be made at all, None when it is."""
    if facts.digest is None:
        return Settling.JOB_REMOVED
    if not facts.enabled:
        return Settling.DISABLED
    if facts.digest != place.job_digest:
        return Settling.CONFIG_CHANGED
    if not facts.policy.allows(place.attempt):
        return Settling.EXHAUSTED
    if facts.deadline is not None and now > place.not_before + facts.deadline:
        return Settling.STARTING_DEADLINE
    later = facts.last_start is not None and facts.last_start > place.armed_at
    newer = facts.last_scheduled is not None and facts.last_scheduled > (place.scheduled_at or math.inf)
    return Settling.SUPERSEDED_BY_RUN if later or newer else None


def spent(tail: Sequence[RetryRecord], place: Place, tries: Sequence[Settled] = ()) -> bool:
    """Whether the attempt was launched, says any record that is not of ``tries`` and that no later one takes back.

    Not only the newest: a record of its arming that lands late, after a hung write, must not bring it back.
    """
    what = (Settling.LAUNCHED, place.attempt, place.first_run_id)
    void = {token for record in tail if isinstance(record, Pending | Handoff) for token in record.voids}
    return any(
        (record.reason, record.attempt, record.first_run_id) == what
        and record not in tries
        and record.token not in void
        for record in tail
        if isinstance(record, Settled)
    )


def still_mine(tail: Sequence[RetryRecord], mine: Pending, tries: Sequence[Settled]) -> bool:
    """Whether nobody but this process wrote after ``mine``. ``tries``: what it may have written itself since.

    ``tail``: the last records, oldest first. A write without an answer may land late; it says nothing about whose the
    attempt is, while any record of another process after ours does.
    """
    if mine not in tail:
        return False
    last = max(index for index, record in enumerate(tail) if record == mine)
    return all(record in tries for record in tail[last + 1 :])
