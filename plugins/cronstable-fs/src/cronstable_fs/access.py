"""Calls on a directory off the loop: with a deadline, waiting for locks, and healing what heals by itself."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from cronstable.api import Host, Seconds, StoreUnavailable
from cronstable_fs import disk
from cronstable_fs.layout import Place
from cronstable_fs.section import BUSY, Attempt, LockLostError, Section, TooLateError

LOCK_PAUSE: Final = 0.02
"""Seconds between two tries for a lock that another node holds; a healthy section is over in a few milliseconds."""

R = TypeVar("R")
_Failure: TypeAlias = OSError | LockLostError | TooLateError


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error on its way out of a thread, carried as a value so that ETIMEDOUT is not taken for our own deadline."""

    error: _Failure


class Access:
    """What stores over a directory share. Every method raises ``StoreUnavailable`` and nothing else.

    ``root``: the directory that is never put back once it was there. ``directories``: those below it, made when they
    are missing. ``made``: they were made by somebody else. ``op_timeout``: seconds that one call may take.
    ``acquisitions``, ``waited``: locks that were taken, and the seconds between the tries for those held elsewhere.
    """

    def __init__(
        self,
        host: Host,
        root: str,
        directories: tuple[str, ...],
        *,
        op_timeout: Seconds,
        lane: str,
        platform: str,
        made: bool = False,
    ) -> None:
        self.platform = platform
        self._host = host
        self._root = root
        self._directories = directories
        self._op_timeout = op_timeout
        self._lane = lane
        self._made = made
        self.acquisitions = 0
        self.waited: Seconds = 0.0

    async def locked(self, what: str, place: Place, body: Callable[[Section], R]) -> R:
        """Run ``body`` in a locked section, waiting for the lock and healing what heals by itself, until the deadline.

        A body may run more than once: it must recognise its own write.
        """
        deadline = self._host.clock.now().boot + self._op_timeout
        written = refused = False
        healings = disk.STALE_RETRIES
        while True:
            attempt = Attempt(self._host.clock, deadline)
            section = Section(self._host.fs, place, attempt, self._host.ids.token(), self.platform)
            try:
                result = await self._off_loop(partial(section.run, body), deadline)
            except TimeoutError:
                attempt.abandoned = True
                if refused and not (written or attempt.written):
                    # The mount answers: it said that the lock is held, and only the last try came too late.
                    raise self._not_free(what, place.file, written) from None
                raise self._hung(what, place.file, written or attempt.written) from None
            finally:
                # Also when we are cancelled: a thread that wakes up late must find that nobody waits for it.
                attempt.abandoned = True
            written = written or attempt.written
            if not isinstance(result, _Failed):
                self.acquisitions += result is not BUSY
            elif isinstance(result.error, LockLostError):
                self.acquisitions += 1
            if result is BUSY:
                refused = True
                await self._wait_for_lock(what, place.file, deadline, written)
            elif not isinstance(result, _Failed):
                return result
            else:
                healings -= 1
                await self._heal(what, place.file, result.error, healings, written)

    async def unlocked(self, what: str, where: str, call: Callable[[], R]) -> R:
        """Run ``call``, which reads or only tidies up, once."""
        return await self.attempted(what, where, lambda attempt: call())

    async def attempted(self, what: str, where: str, call: Callable[[Attempt], R]) -> R:
        """Run ``call`` once; it says with ``Attempt.commit`` that its next step is the one that counts."""
        deadline = self._host.clock.now().boot + self._op_timeout
        attempt = Attempt(self._host.clock, deadline)
        try:
            result = await self._off_loop(lambda: call(attempt), deadline)
        except TimeoutError:
            attempt.abandoned = True
            raise self._hung(what, where, attempt.written) from None
        finally:
            attempt.abandoned = True
        if not isinstance(result, _Failed):
            return result
        raise self._unavailable(what, where, _text(result.error), attempt.written)

    def make_directories(self) -> None:
        """Make all of them, the root too. Blocking; raises ``OSError``."""
        for directory in self._directories:
            self._make(directory)
        self._made = True

    def _make(self, directory: str) -> None:
        """Several hosts may begin at once.

        One that is told "exists" may still remember that there was nothing, and one on its way down may remember a
        directory from before another host made it anew.
        """
        for last in (False,) * (disk.STALE_RETRIES - 1) + (True,):
            try:
                self._host.fs.makedirs(directory, 0o700)
                return
            except FileExistsError:
                if last:
                    self._host.fs.listdir(directory)
            except OSError as error:
                if error.errno != errno.ESTALE or last:
                    raise

    def restore_directories(self) -> None:
        """Put back what somebody removed, but never the root: that is gone when the share is not mounted.

        Created anew on the local disk it would be a store of its own on every host. Blocking; raises ``OSError``.
        """
        self._host.fs.listdir(self._root)
        self.make_directories()

    async def _heal(self, what: str, where: str, error: _Failure, healings: int, written: bool) -> None:
        """Return when another attempt may succeed, else raise ``StoreUnavailable``."""
        if isinstance(error, LockLostError):
            if error.written or healings < 0:
                raise self._unavailable(what, where, "the file server forgot our lock while we were writing", written)
        elif isinstance(error, TooLateError):
            raise self._hung(what, where, written)
        elif error.errno == errno.ENOENT and healings >= 0:
            await self.unlocked(what, where, self.restore_directories)
        elif error.errno != errno.ESTALE or healings < 0:
            raise self._unavailable(what, where, disk.describe(error), written)

    async def _off_loop(self, call: Callable[[], R], deadline: float) -> R | _Failed:
        """``TimeoutError`` leaves here only when the thread gave no answer in time; ETIMEDOUT comes as ``_Failed``."""

        def guarded() -> R | _Failed:
            try:
                if not self._made:
                    self.make_directories()
                return call()
            except (OSError, LockLostError, TooLateError) as error:
                return _Failed(error)

        left = deadline - self._host.clock.now().boot
        if left <= 0:
            raise TimeoutError
        return await self._host.threads.run(guarded, timeout=left, lane=self._lane)

    async def _wait_for_lock(self, what: str, where: str, deadline: float, written: bool) -> None:
        clock = self._host.clock
        pause = LOCK_PAUSE * (1 + self._host.rng.random())
        if clock.now().boot + pause >= deadline:
            raise self._not_free(what, where, written)
        since = clock.now().boot
        try:
            await clock.sleep(pause)
        finally:
            self.waited += clock.now().boot - since

    def _not_free(self, what: str, where: str, written: bool) -> StoreUnavailable:
        detail = f"the lock was not free for {self._op_timeout:g} s: a node is frozen inside it, or its mount hangs"
        return self._unavailable(what, where, detail, written)

    def _unavailable(self, what: str, where: str, detail: str, ambiguous: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{what}: {detail} ({where})", ambiguous=ambiguous)

    def _hung(self, what: str, where: str, ambiguous: bool) -> StoreUnavailable:
        return self._unavailable(what, where, f"no answer from the mount within {self._op_timeout:g} s", ambiguous)


def _text(error: Exception) -> str:
    return disk.describe(error) if isinstance(error, OSError) else type(error).__name__
