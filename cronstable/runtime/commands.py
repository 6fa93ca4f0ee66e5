"""Commands from outside: start, cancel, pause, resume, stop. Each is logged with who asked."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cronstable.core.decision import Decision, Reason, Verdict
from cronstable.core.job import Job
from cronstable.core.runs import Trigger
from cronstable.plugin.protocols import (
    Actor,
    CancelRun,
    Command,
    CommandOutcome,
    Done,
    NoSuchJob,
    Pause,
    Refused,
    Resume,
    Shutdown,
    StartRun,
)
from cronstable.runtime.launcher import Launcher
from cronstable.runtime.scheduler import Scheduler

_MANUAL = Decision(Verdict.RUN, Reason.MANUAL)


class Commands:
    """Carries out commands on the running daemon."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        launcher: Launcher,
        log: logging.Logger,
        shutdown: Callable[[], None],
        set_pause: Callable[[str, Pause | None], None] | None = None,
        cancel_retry: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._scheduler = scheduler
        self._launcher = launcher
        self._log = log
        self._shutdown = shutdown
        self._set_pause = set_pause or scheduler.set_pause
        self._cancel_retry = cancel_retry

    async def do(self, command: Command, by: Actor) -> CommandOutcome:
        """Carry out ``command`` for ``by``."""
        outcome = self._shut_down() if isinstance(command, Shutdown) else self._on_job(command)
        self._log.info("%s by %s (%s): %s", command, by.label, by.channel, outcome)
        return outcome

    def _shut_down(self) -> CommandOutcome:
        self._shutdown()
        return Done()

    def _on_job(self, command: StartRun | CancelRun | Pause | Resume) -> CommandOutcome:
        job = self._scheduler.jobs.get(command.job)
        if job is None:
            return NoSuchJob(command.job)
        # What ended and is only told later is over for whoever asks now.
        self._launcher.ends.settle(job.name)
        match command:
            case StartRun():
                return self._start(job)
            case CancelRun():
                return self._cancel(job.name)
            case Pause():
                self._set_pause(job.name, command)
                return Done()
            case Resume():
                self._set_pause(job.name, None)
                return Done()

    def _start(self, job: Job) -> CommandOutcome:
        """A manual start: never gated by the cluster, but by the job's own rules (reference 11)."""
        if not job.options.enabled:
            return Refused("the job is disabled")
        if self._launcher.stopping:
            return Refused("the daemon is stopping")
        started = self._launcher.start(
            job, _MANUAL, scheduled_at=None, trigger=Trigger.MANUAL, recheck=self._recheck_manual
        )
        if isinstance(started, Decision):
            if started.reason is Reason.QUEUE_FULL:
                return Refused("the job is running, and one run of it waits already")
            return Refused("the job is already running and its concurrencyPolicy is Forbid")
        return Done(started)

    def _cancel(self, name: str) -> CommandOutcome:
        """End what lives and what waits to be tried again."""
        waited, count = self._cancel_retry(name), self._launcher.cancel(name)
        return Done(count) if count or waited else Refused("the job is not running")

    def _recheck_manual(self) -> Decision:
        return Decision(Verdict.SKIP, Reason.STOPPING) if self._launcher.stopping else _MANUAL
