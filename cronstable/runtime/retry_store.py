"""Retries that outlive their daemon: the ladders of this node, written down and taken out of the store again.

Every rule is in ``core.retry_records`` and every step that must not be doubled in ``core.retry_moves``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, assert_never

from cronstable.core.clock import Clock, Seconds
from cronstable.core.fingerprint import job_digest
from cronstable.core.job import Job
from cronstable.core.retry import Ladder
from cronstable.core.retry_moves import Taken, Written, let_go, take, take_alone
from cronstable.core.retry_records import Handoff, Pending, Place, Settled, Settling, in_microseconds
from cronstable.runtime.chores import Chores
from cronstable.runtime.retry_door import RetryDoor, retry_stream, voided

SOON: Final[Seconds] = 5.0
TRIES: Final = 6
"""For writing down that nothing is left to do, while somebody else decides about it."""


class Ladders(Protocol):
    """What is used of the retries."""

    def later(self, name: str) -> None: ...
    def gone(self, name: str) -> None: ...
    def poke(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Entry:
    """What this process waits for and has a record of. ``tries``: records of it that call the attempt launched."""

    mine: Pending
    landed: bool = False
    tries: tuple[Settled, ...] = ()
    asking: bool = False
    taken: bool = False
    put_back: bool = False


class RetryStore:
    """Implements ``RetryMemory``. Without a ``state`` section it lets everything through and writes nothing."""

    def __init__(self, *, door: RetryDoor, ladders: Ladders, chores: Chores, clock: Clock) -> None:
        self._door = door
        self._chores = chores
        self._ladders = ladders
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._made: dict[str, Settled] = {}
        self.boot_id: str | None = None

    # -- what the ladders say -----------------------------------------------------------------------------------------

    def armed(self, job: Job, ladder: Ladder) -> None:
        """Write down what is waited for, unless that stands already."""
        wait = ladder.waiting
        if wait is None or not self._door.keeper.configured:
            return
        before = self._entries.get(job.name)
        again = before if before is not None and _is_about(before.mine, wait.attempt, ladder.first.run_id) else None
        if again is not None and not again.taken:
            return
        now = self._clock.now()
        place = Place(
            wait.attempt,
            ladder.first.run_id,
            ladder.first.scheduled_at,
            job_digest(job),
            in_microseconds(now.wall + max(0.0, wait.due - now.boot)),
            in_microseconds(now.wall) if again is None else again.mine.place.armed_at,
        )
        voids = () if again is None else voided(again.mine, again.tries)
        if again is not None:
            self._made.pop(job.name, None)
        door = self._door
        mine = Pending(place, door.node(), door.token(), door.wall(), boot_id=self.boot_id, voids=voids)
        entry = self._entries[job.name] = _Entry(mine)
        self._chores.start(partial(self._arm, job.name, entry))

    def over(self, name: str, why: Settling | None) -> None:
        """Write down that nothing is waited for. An attempt that was taken and never made is put back at a stop."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        if why is not None:
            if not entry.taken:
                self._chores.start(partial(self._settle, name, entry, self._door.settled(why, entry.mine.place)))
        elif entry.taken:
            self._put_back(name, entry)
        else:
            entry.put_back = entry.asking

    def _put_back(self, name: str, entry: _Entry) -> None:
        voids = voided(entry.mine, entry.tries)
        self._door.write(name, replace(entry.mine, token=self._door.token(), voids=voids))

    def asking(self, name: str) -> bool:
        """Whether the store is being asked about an attempt that is due."""
        entry = self._entries.get(name)
        return entry is not None and entry.asking

    def may_start(self, name: str) -> bool:
        """Whether an attempt that is due is ours; else the store is asked, and the ladders hear of it."""
        entry = self._entries.get(name)
        if entry is None or entry.taken or not self._door.keeper.configured:
            return True
        if not entry.asking:
            entry.asking = True
            self._chores.start(partial(self._take, name, entry))
        return False

    def launched(self, name: str) -> None:
        """The attempt has a process; the record has said so since before."""
        entry = self._entries.get(name)
        if entry is not None and entry.taken:
            del self._entries[name]

    def hands_over(self, job: Job) -> bool:
        """Leave the attempt to the node that owns the job now; False where it could not find it."""
        entry = self._entries.get(job.name)
        if entry is None or entry.asking or not self._door.moves(job.name):
            return False
        del self._entries[job.name]
        door = self._door
        record = Handoff(entry.mine.place, door.node(), door.token(), door.wall(), voided(entry.mine, entry.tries))
        self._chores.start(partial(self._hand_over, job.name, entry, record))
        return True

    # -- what was found in the store ----------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a record of this process stands there."""
        return name in self._entries

    def made(self, name: str) -> Settled | None:
        """The last attempt of a job that was made without an answer of the store, as it should stand there."""
        return self._made.get(name)

    def adopt(self, name: str, record: Pending) -> None:
        """A record that stands in the store is this process's from now on."""
        self._entries[name] = _Entry(record, landed=True)

    # -- one job at a time --------------------------------------------------------------------------------------------

    async def _arm(self, name: str, entry: _Entry) -> None:
        async with self._door.turn(name):
            if self._door.keeper.lease(retry_stream(name)) is None:
                # Not open: it is written when it is, if the daemon lives that long.
                self._door.write(name, entry.mine)
            else:
                entry.landed = await self._door.append(name, entry.mine)

    async def _take(self, name: str, entry: _Entry) -> None:
        launched = self._door.settled(Settling.LAUNCHED, entry.mine.place)
        written: list[Written] = []
        async with self._door.turn(name):
            if self._entries.get(name) is not entry:
                return
            closed = self._door.keeper.fail_closed
            move = (
                take(entry.mine, launched, tries=entry.tries, landed=entry.landed, fail_closed=closed)
                if self._door.moves(name)
                else take_alone(launched, fail_closed=closed)
            )
            taken = await self._door.drive(name, move, written)
            entry.tries = (*entry.tries, launched)
            entry.asking = False
        if self._entries.get(name) is not entry:
            if entry.put_back and taken is Taken.GO:
                self._put_back(name, entry)
            return
        match taken:
            case Taken.GO:
                entry.taken = True
                if Written.YES not in written:
                    # It goes ahead without the store, which is to know as soon as it can.
                    self._made[name] = launched
                    self._door.write(name, launched)
                self._ladders.poke()
            case Taken.LATER:
                self._ladders.later(name)
            case Taken.GONE:
                del self._entries[name]
                self._ladders.gone(name)
            case _:
                assert_never(taken)

    async def _settle(self, name: str, entry: _Entry, record: Settled) -> None:
        async with self._door.turn(name):
            if not entry.landed or not self._door.moves(name):
                await self._door.append(name, record)
                return
            for _ in range(TRIES):
                written: list[Written] = []
                await self._door.drive(name, let_go(entry.mine, record, entry.tries), written)
                tail = None if written else await self._door.tail(name)
                if written or (tail is not None and tail.newest != entry.mine):
                    return
                # Somebody looks at it at this moment.
                await self._clock.sleep(SOON)

    async def _hand_over(self, name: str, entry: _Entry, record: Handoff) -> None:
        async with self._door.turn(name):
            await self._door.drive(name, let_go(entry.mine, record, entry.tries), [])


def _is_about(record: Pending, attempt: int, first_run_id: str) -> bool:
    return (record.place.attempt, record.place.first_run_id) == (attempt, first_run_id)
