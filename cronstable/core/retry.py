"""Retries: how long to wait before which attempt, and who is still to be tried again (reference 2, 2.3 and 4.3).

A ladder is the sequence of attempts that one job has under way. A job has at most one, and a ladder waits for at most
one attempt at a time: that is what keeps two ends of runs, or a reload in between, from trying again twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from typing import Final, TypeAlias, assert_never

from cronstable.core.clock import Seconds
from cronstable.core.job import Json
from cronstable.core.quorum import hrw_owner
from cronstable.core.runs import RunKey, Trigger
from cronstable.core.values import dataclass
from cronstable.core.view import SPREAD, ClusterView

SHORTEST_DEFERRAL: Seconds = 1.0
"""An attempt that may not start yet is asked about again after its own delay, and not sooner than this."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``onFailure.retry``. ``maximum``: attempts after the first one, -1 for ever; delays in seconds.

    ``jitter``: by which part of itself a delay may be shorter, so that jobs which failed together do not come back
    together; without it delays are exact.
    """

    maximum: int = 0
    initial: Seconds = 1.0
    longest: Seconds = 300.0
    multiplier: float = 2.0
    jitter: float = 0.0

    def allows(self, attempt: int) -> bool:
        """Is ``attempt`` (1 is the first retry) within the budget?"""
        return self.maximum < 0 or attempt <= self.maximum

    def delay(self, attempt: int, run_id: str = "") -> Seconds:
        """The pause before ``attempt``, counted from 1; ``run_id``, that of attempt 0, chooses among the pauses."""
        try:
            grown = self.initial * self.multiplier ** (attempt - 1)
        except OverflowError:
            grown = self.longest
        return min(grown, self.longest) * (1 - self.jitter * _fraction(f"{run_id}/{attempt}"))

    @property
    def attempts(self) -> int | None:
        """How many attempts there are at most, None for no limit."""
        return None if self.maximum < 0 else self.maximum


def _fraction(seed: str) -> float:
    """Between 0 and 1, the same for the same seed."""
    return int.from_bytes(sha256(seed.encode()).digest()[:8]) / 2**64


ONCE: Final = RetryPolicy()
"""The policy of a job that has none: no attempt but the first."""


def retry_policy(keys: Mapping[str, Json]) -> RetryPolicy:
    """The policy in the remaining keys of a job (``JobOptions.raw``); without one, no attempt but the first."""
    hook = keys.get("onFailure")
    retry = hook.get("retry") if isinstance(hook, dict) else None
    if not isinstance(retry, dict):
        return ONCE

    def number(key: str, default: float) -> float:
        value = retry.get(key, default)
        return value if isinstance(value, int | float) else default

    return RetryPolicy(
        int(number("maximumRetries", 0)),
        float(number("initialDelay", 1)),
        float(number("maximumDelay", 300)),
        float(number("backoffMultiplier", 2)),
        float(number("jitter", 0)),
    )


# -- the ladder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """The next attempt. ``due``: boot seconds; ``delay``: the pause that its place on the ladder asks for."""

    attempt: int
    due: float
    delay: Seconds


@dataclass(frozen=True, slots=True)
class Ladder:
    """What is under way for one job.

    ``first``: attempt 0, whose occurrence all attempts belong to. ``attempt``: the one that was started last.
    ``members``: the runs that live and whose end counts. ``waiting``: the attempt that is to come.
    ``deferrals``: how often the attempt of the moment was not let through so far.
    """

    policy: RetryPolicy
    first: RunKey
    attempt: int = 0
    members: frozenset[str] = frozenset()
    waiting: Wait | None = None
    deferrals: int = 0


class Answer(Enum):
    """What is said to an attempt that is due."""

    GO = "go"
    NOT_NOW = "not now"
    MOVED = "moved"
    """Another node owns the job now, positively."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run was let in; it is about to be spawned."""

    key: RunKey
    policy: RetryPolicy


@dataclass(frozen=True, slots=True)
class Failed:
    """A run ended as a failure."""

    key: RunKey


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A run ended well."""

    key: RunKey


@dataclass(frozen=True, slots=True)
class Dropped:
    """A run was cancelled, replaced, or ended in a way that nobody knows: it is never tried again."""

    key: RunKey


@dataclass(frozen=True, slots=True)
class Due:
    """The time of the waiting attempt has come, and this was the answer."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Refused:
    """An attempt was let go and then could not start (overlap), or was stopped right before its spawn."""

    key: RunKey | None
    answer: Answer


@dataclass(frozen=True, slots=True)
class Resumed:
    """A ladder from before, or of another node, goes on here: ``attempt`` is due in ``delay`` seconds.

    ``first``: attempt 0. A ladder that is under way here is newer, and stays.
    """

    first: RunKey
    policy: RetryPolicy
    attempt: int
    delay: Seconds


@dataclass(frozen=True, slots=True)
class Spent:
    """An attempt was let go, and its number turned out to be used up: claimed before, by whoever led then."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The matter is over: the job was removed, disabled or changed, an operator cancelled it, the daemon stops."""


RetryEvent: TypeAlias = Admitted | Failed | Succeeded | Dropped | Due | Refused | Resumed | Spent | Settled


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Wait for the next attempt."""

    wait: Wait


@dataclass(frozen=True, slots=True)
class Defer:
    """Wait again for an attempt that was due; ``again``: not for the first time."""

    wait: Wait
    again: bool


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Start ``attempt`` now."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Let another node have it; ``attempt`` does not come."""

    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The failure is final."""


Action: TypeAlias = Nothing | Arm | Defer | Relaunch | Abandon | GiveUp


def step(ladder: Ladder | None, event: RetryEvent, now: float) -> tuple[Ladder | None, Action]:
    """The ladder of one job after ``event`` at the boot instant ``now``, and what follows from it."""
    match event:
        case Admitted(key, policy):
            return _admit(ladder, key, policy), Nothing()
        case Failed(key):
            return _fail(ladder, key, now)
        case Succeeded(key):
            return (ladder, Nothing()) if ladder is None or key.run_id not in ladder.members else (None, Nothing())
        case Dropped(key):
            return _drop(ladder, key), Nothing()
        case Due(answer):
            return _due(ladder, answer, now)
        case Refused(key, answer):
            return _refuse(ladder, key, answer, now)
        case Resumed():
            return (_resume(event, now) if ladder is None else ladder), Nothing()
        case Spent():
            over = ladder is not None and ladder.waiting is None and not ladder.members
            return _next(ladder, now) if ladder is not None and over else (ladder, Nothing())
        case Settled():
            return None, Nothing()
        case _:
            assert_never(event)


def _admit(ladder: Ladder | None, key: RunKey, policy: RetryPolicy) -> Ladder | None:
    match key.trigger:
        case Trigger.CATCHUP:
            return ladder
        case Trigger.MANUAL | Trigger.RETRY if ladder is not None:
            return replace(ladder, members=ladder.members | {key.run_id})
        case _:
            return Ladder(policy, key, key.attempt, frozenset({key.run_id}))


def _fail(ladder: Ladder | None, key: RunKey, now: float) -> tuple[Ladder | None, Action]:
    if ladder is None or key.run_id not in ladder.members:
        return ladder, GiveUp()
    left = replace(ladder, members=ladder.members - {key.run_id})
    return (left, Nothing()) if left.waiting is not None else _next(left, now)


def _next(ladder: Ladder, now: float) -> tuple[Ladder | None, Action]:
    attempt = ladder.attempt + 1
    if not ladder.policy.allows(attempt):
        return None, GiveUp()
    delay = ladder.policy.delay(attempt, ladder.first.run_id)
    wait = Wait(attempt, now + delay, delay)
    return replace(ladder, waiting=wait, deferrals=0), Arm(wait)


def _resume(event: Resumed, now: float) -> Ladder:
    wait = Wait(event.attempt, now + event.delay, event.policy.delay(event.attempt, event.first.run_id))
    return Ladder(event.policy, event.first, event.attempt - 1, waiting=wait)


def _drop(ladder: Ladder | None, key: RunKey) -> Ladder | None:
    if ladder is None or key.run_id not in ladder.members:
        return ladder
    left = replace(ladder, members=ladder.members - {key.run_id})
    return left if left.members or left.waiting is not None else None


def _due(ladder: Ladder | None, answer: Answer, now: float) -> tuple[Ladder | None, Action]:
    if ladder is None or ladder.waiting is None:
        return ladder, Nothing()
    wait = ladder.waiting
    match answer:
        case Answer.GO:
            return replace(ladder, attempt=wait.attempt, waiting=None), Relaunch(wait.attempt)
        case Answer.NOT_NOW:
            return _defer(ladder, wait, now)
        case Answer.MOVED:
            return None, Abandon(wait.attempt)
        case _:
            assert_never(answer)


def _refuse(ladder: Ladder | None, key: RunKey | None, answer: Answer, now: float) -> tuple[Ladder | None, Action]:
    if ladder is None or ladder.waiting is not None or (key is not None and key.run_id not in ladder.members):
        return ladder if key is None else _drop(ladder, key), Nothing()
    left = ladder if key is None else replace(ladder, members=ladder.members - {key.run_id})
    if answer is Answer.MOVED:
        return None, Abandon(left.attempt)
    return _defer(left, Wait(left.attempt, now, left.policy.delay(left.attempt, left.first.run_id)), now)


def _defer(ladder: Ladder, wait: Wait, now: float) -> tuple[Ladder, Action]:
    later = replace(wait, due=now + max(wait.delay, SHORTEST_DEFERRAL))
    return replace(ladder, waiting=later, deferrals=ladder.deferrals + 1), Defer(later, again=ladder.deferrals > 0)


def moved(job: str, view: ClusterView | None) -> bool:
    """Does another node own ``job``, positively? Doubt of any kind is no (reference 4.3)."""
    if view is None or view.conflict or not view.quorate or not view.settled:
        return False
    if view.distribution == SPREAD:
        owner = hrw_owner(job, view.available_owners)
        return owner is not None and owner != view.node_name
    return not view.available
