"""What passes from one holder of the lease to the next: ids that are given back, and runs that go on (claims.md 7, 16).

The driver and the simulator ask the store and end processes; what is to be said, whom it blocks and when it is looked
at again is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.core.job import ConcurrencyPolicy, Job
from cronstable.core.lease_values import Acquire, Answered, Event, Request
from cronstable.core.store import Grant, Held, HeldTerm, Seen, Unreadable, Vacant
from cronstable.core.unfinished import Entry, Watch, blocking, cancelled, encode, observe, started
from cronstable.core.values import dataclass, replace

LOOK_EVERY: Final[Seconds] = 5.0
LOOK_OFTEN: Final[Seconds] = 1.0

UNSETTLED: Final = 16
"""So many acquisitions in a row that were not answered are kept in mind: the last of them are those that may land."""

MINDS: Final = frozenset({ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE})
"""Jobs of which somebody elsewhere has to mind a run that goes on."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Run ids that a released lease gives back, for the term that is won right after it was seen released.

    ``seen``: what the lease showed last; ``returned``: what the term ``fence`` got. ``unsettled``: the nonces of
    acquisitions that were not answered: one that landed all the same is adopted when the lease shows it.
    """

    seen: tuple[str, ...] = ()
    fence: int = -1
    returned: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()

    def note(self, request: Request, event: Event) -> Inheritance:
        """Take in how a request went."""
        if not isinstance(event, Answered):
            if isinstance(request, Acquire) and request.over is None:
                return replace(self, unsettled=(*self.unsettled, request.nonce)[-UNSETTLED:])
            return self
        match event.observation:
            case Vacant(returned=returned):
                return replace(self, seen=returned)
            case Held(grant) if isinstance(request, Acquire):
                return Inheritance((), grant.fence, self.seen if request.over is None else ())
            case Seen(record) if record.nonce in self.unsettled:
                return Inheritance((), record.fence, self.seen)
            case Unreadable() if self.unsettled:
                return self
            case _:
                return Inheritance((), self.fence, self.returned) if self.seen or self.unsettled else self

    def term(self, grant: Grant | None) -> HeldTerm | None:
        """The term of ``grant``, with what it inherited."""
        if grant is None:
            return None
        return HeldTerm(grant.fence, self.returned if self.fence == grant.fence else ())


class Handover:
    """The entries of one claim log, from both sides: what a leader finds there, and what a node that let go says.

    ``token``: of this process and this election; ``former``: those of the elections that this process had before.
    ``ttl``: how long an entry may stand still before its process counts as dead. All instants are of the boot clock.
    """

    def __init__(self, token: str, ttl: Seconds, former: Iterable[str] = ()) -> None:
        self._token = token
        self._ttl = ttl
        self._former = frozenset(former)
        self._watch: Watch = MappingProxyType({})
        self._began = 0.0
        self._looked: float | None = None
        self._asked: dict[str, float] = {}
        self._cancel: tuple[str, ...] = ()
        self._tended: float | None = None
        self._told = False

    def entry(
        self, nonce: str, runs: Mapping[str, str], cancel: tuple[str, ...] = (), begun: tuple[str, ...] = ()
    ) -> bytes:
        """What this process says, as it stands in the store; empty when it has nothing to say any more."""
        self._told = bool(runs or cancel or begun)
        return encode(Entry(self._token, nonce, MappingProxyType(dict(runs)), cancel, begun)) if self._told else b""

    def is_quiet(self, boot: float) -> bool:
        """Nobody who lives has anything to say of runs that go on."""
        return not (self._expects_news(boot) or self._told)

    def _expects_news(self, boot: float) -> bool:
        """Somebody who lives has something to say. What a dead process left behind changes no more, and may stay."""
        alive = any(boot < standing.since + self._ttl for standing in self._watch.values())
        return alive or bool(self._cancel)

    # -- the leader

    def begin(self, boot: float) -> None:
        """A new term: what was seen before it says nothing."""
        self._began = boot
        self._looked = None
        self._asked.clear()

    @property
    def known(self) -> bool:
        """Whether the entries were read in this term: before that, nobody knows whom they block."""
        return self._looked is not None

    @property
    def is_settled(self) -> bool:
        """Whether the entries were read a ttl after the term began.

        A holder before us that lives and reaches the store has learned by then that its term is over, and has said what
        it started in it: one that said nothing is dead, or cut off.
        """
        return self._looked is not None and self._looked >= self._began + self._ttl

    def is_look_due(self, boot: float, every: Seconds = LOOK_EVERY) -> bool:
        """Whether the entries are to be read now. ``every``: while nobody who lives has one."""
        if self._looked is None:
            return True
        # Once more when the time is over in which others had to speak.
        last_call = self._began + self._ttl
        if self._looked < last_call <= boot:
            return True
        return boot >= self._looked + (LOOK_OFTEN if self._expects_news(boot) else every)

    def looked(self, found: Iterable[bytes], asked: float, boot: float) -> tuple[str, ...] | None:
        """Take in the entries, asked for at ``asked``. The runs that are to be ended, None: that has been said."""
        self._observe(found, boot)
        self._looked = asked
        elsewhere = self._elsewhere(boot)
        wanted = tuple(sorted(run for job in self._asked for run in elsewhere.get(job, ())))
        # What was said of our own runs before this term is over with it: they are local to us again.
        if wanted == self._cancel and (wanted or not self._told):
            return None
        self._cancel = wanted
        return wanted

    def blocks(self, job: Job, boot: float) -> bool:
        """Whether a run elsewhere keeps ``job`` from starting, for good as far as this occurrence is concerned."""
        if job.name not in self._elsewhere(boot):
            return False
        if job.options.concurrency_policy is ConcurrencyPolicy.REPLACE:
            return not self.waits(job, boot)
        return job.options.concurrency_policy is ConcurrencyPolicy.FORBID

    @property
    def started(self) -> frozenset[str]:
        """Run ids that others say they started: nobody shall take them for lost."""
        return started(self._watch) if self._watch else frozenset()

    def waits(self, job: Job, boot: float) -> bool:
        """Whether a run elsewhere is being ended, so that ``job`` may take its place soon: from now on, if need be."""
        if job.options.concurrency_policy is not ConcurrencyPolicy.REPLACE or job.name not in self._elsewhere(boot):
            self._asked.pop(job.name, None)
            return False
        since = self._asked.setdefault(job.name, boot)
        return boot < since + job.options.kill_timeout + self._ttl

    def is_news(self, found: Iterable[bytes], boot: float) -> bool:
        """Whether the entries say what they did not say at the last look."""
        return dict(self._seen(found, boot)) != dict(self._watch)

    def _observe(self, found: Iterable[bytes], boot: float) -> None:
        self._watch = self._seen(found, boot)

    def _seen(self, found: Iterable[bytes], boot: float) -> Watch:
        seen = observe(self._watch, found, self._token, boot)
        # What this process said before its election was built anew is about runs that are local to it.
        return MappingProxyType({token: one for token, one in seen.items() if token not in self._former})

    def _elsewhere(self, boot: float) -> Mapping[str, tuple[str, ...]]:
        return blocking(self._watch, self._ttl, boot) if self._watch else {}

    # -- the node that let go, or lost it

    @property
    def refresh_every(self) -> Seconds:
        """How often what is said of runs of a past term is said again."""
        return min(LOOK_OFTEN, self._ttl / 3)

    def tends(self, running: Mapping[str, Job], begun: tuple[str, ...], boot: float) -> bool:
        """Whether a node without a term has something to say now, or to take back.

        ``begun``: what it started in a term that is over, and could not say in the log.
        """
        if self._tended is not None and boot < self._tended + self.refresh_every:
            return False
        if not self._told and not begun and not minded(running):
            return False
        self._tended = boot
        return True

    def to_end(self, found: Iterable[bytes], running: Mapping[str, Job], boot: float) -> list[tuple[Job, str]]:
        """Which of our runs a successor wants ended, by the entries that were found."""
        self._observe(found, boot)
        wanted = cancelled(self._watch)
        return [(job, run) for run, job in running.items() if run in wanted]


def minded(running: Mapping[str, Job], unspawned: Collection[str] = ()) -> dict[str, str]:
    """Run to job, of what somebody elsewhere has to mind. ``unspawned``: on their way, not to be taken for started."""
    return {
        run: job.name
        for run, job in running.items()
        if job.options.concurrency_policy in MINDS and run not in unspawned
    }
