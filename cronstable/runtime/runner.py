"""One run, from the request to its record."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from types import MappingProxyType

import anyio

from cronstable.core.clock import Clock, Instant, Seconds
from cronstable.core.job import Job
from cronstable.core.outcome import Produced, fail_reason, timeout_detail
from cronstable.core.runs import EXECUTION_TIMEOUT, LAUNCH_FAILED, LiveRun, Outcome, RunKey, RunRecord
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Threads
from cronstable.runtime.capture import LineBatch, LineSink, StreamCapture, format_prefix
from cronstable.runtime.prepare import prepare
from cronstable.runtime.spawn import Process, Spawner, SpawnFailed, Stream

OUTPUT_GRACE: Seconds = 1.0
"""After the command ended: how long output of processes that it left behind is still waited for."""
START_TIMEOUT: Seconds = 30.0
"""For the exec helper to get to the command."""
HURRIED_KILL: Seconds = 1.0
"""killTimeout of a run that is ended in a hurry."""
DEATH_WATCH: Seconds = 5.0
"""How long after SIGKILL a group may still be seen before that is worth a warning."""

LONGEST_NAP: Seconds = 60.0

NICE = MappingProxyType({"idle": 19, "below-normal": 10, "above-normal": -5, "high": -10})
"""``priority`` to nice value; ``normal`` is left as it is (reference 2)."""

_CONTINUE = getattr(signal, "SIGCONT", None)


class Cancellation:
    """A wish to end one run, made at any time: before the spawn, during the run, or too late."""

    def __init__(self) -> None:
        self._requested = False
        self._interrupt: Callable[[], None] | None = None
        self._hasten: Callable[[Seconds], None] = lambda grace: None
        self.reason = ""
        self.grace: Seconds | None = None

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return self._requested

    def request(self, reason: str, *, grace: Seconds | None = None) -> None:
        """End the run; the first reason stands.

        ``grace``: seconds from now, or from SIGTERM if that comes later, to SIGKILL, at most; None: all of killTimeout.
        One that is being ended already, for whatever reason, is left no more than that either: of several the one
        counts whose time is over first.
        """
        if grace is not None and (self.grace is None or grace < self.grace):
            self.grace = grace
        if not self._requested:
            self.reason = reason
            self._requested = True
            if self._interrupt is not None:
                self._interrupt()
        if grace is not None:
            self._hasten(grace)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is awaited inside is cut short by the request, at once if it was made before; used by one task."""
        with anyio.CancelScope() as scope:
            self.interrupts(scope.cancel)
            yield
        self._interrupt = None

    def interrupts(self, call: Callable[[], None]) -> None:
        """Call ``call`` at the request, at once if it was made before; only the last one that was given here."""
        self._interrupt = call
        if self._requested:
            call()

    def hastens(self, call: Callable[[Seconds], None]) -> None:
        """The run is being ended, with the ``grace`` granted so far: call ``call`` with each one from here on."""
        self._hasten = call


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run. ``variables``: those of this run alone, above all others (``core.occurrence.occurrence_env``).

    ``first_run_id``: for a retry, the run id of its attempt 0.
    """

    key: RunKey
    job: Job
    cancellation: Cancellation = field(default_factory=Cancellation)
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    first_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunTools:
    """The seams that every run shares. ``environ``: the daemon's own environment, the lowest layer of a job's."""

    spawner: Spawner
    clock: Clock
    threads: Threads
    sink: LineSink
    log: logging.Logger
    environ: Mapping[str, str]


async def run_job(
    request: RunRequest,
    tools: RunTools,
    *,
    on_started: Callable[[LiveRun], None] | None = None,
    permit: Callable[[], None] | None = None,
) -> RunRecord:
    """Run a job's command once and return how it went; whatever goes wrong with the command is in the record.

    ``on_started`` is called once the command runs. ``permit`` is called right before the spawn with nothing awaited in
    between (DESIGN 3, lease deadlines); what it raises ends the run unspawned and goes to the caller. When this
    coroutine is cancelled, the whole group is killed before it returns.
    """
    return await _Run(request, tools).execute(on_started or _ignore, permit)


def _ignore(_: LiveRun) -> None:
    """Nobody wants to know."""


class _End(Enum):
    """What ended the wait for a command."""

    EXIT = "exit"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class _Run:
    """The state of one run while it goes on."""

    def __init__(self, request: RunRequest, tools: RunTools) -> None:
        self._request = request
        self._tools = tools
        self._job = request.job
        options = request.job.options
        captured: list[Stream] = []
        if options.capture_stdout:
            captured.append("stdout")
        if options.capture_stderr:
            captured.append("stderr")
        self._captures = {stream: StreamCapture(options.save_limit, options.max_line_length) for stream in captured}
        self._pumping = 0
        self._drained: anyio.Event
        self._congested: list[anyio.CancelScope] = []
        self._output_over = False
        self._lines = 0
        self._started: Instant | None = None
        self._ended: Instant | None = None

    # -- the course of a run ------------------------------------------------------------------------------------------

    async def execute(self, on_started: Callable[[LiveRun], None], permit: Callable[[], None] | None) -> RunRecord:
        cancellation, tools = self._request.cancellation, self._tools
        try:
            spec = await prepare(self._job, self._request.variables, environ=tools.environ, threads=tools.threads)
            if cancellation.requested:
                return self._record(Outcome.CANCELLED, None, cancellation.reason)
            if permit is not None:
                permit()
            self._started = tools.clock.now()
            process = tools.spawner.spawn(spec)
        except SpawnFailed as error:
            return self._launch_failed(error)
        try:
            return await self._accompany(process, self._started, on_started)
        finally:
            await self._leave(process)

    async def _accompany(self, process: Process, started: Instant, on_started: Callable[[LiveRun], None]) -> RunRecord:
        try:
            if not process.direct:
                with anyio.fail_after(START_TIMEOUT):
                    await process.started()
        except SpawnFailed as error:
            return self._launch_failed(error)
        except TimeoutError:
            return self._launch_failed(SpawnFailed(f"the command did not start within {START_TIMEOUT:g} s"))
        on_started(LiveRun(self._request.key, process.pid, started.wall))
        self._renice(process)
        if not self._captures:
            end, code = await self._until_over(process)
            return self._judge(end, code)
        async with anyio.create_task_group() as tasks:
            self._pumping = len(self._captures)
            self._drained = anyio.Event()
            for stream in self._captures:
                tasks.start_soon(self._pump, process, stream)
            end, code = await self._until_over(process)
            await self._finish_output(process)
        return self._judge(end, code)

    async def _until_over(self, process: Process) -> tuple[_End, int | None]:
        """Wait for the command, ending it when it has to end; why the wait was over, and the exit code."""
        end = await self._await_end(process)
        if end is not _End.EXIT:
            await self._end_group(process)
        code = await process.wait()
        self._ended = self._tools.clock.now()
        return end, code

    async def _await_end(self, process: Process) -> _End:
        limit, cancellation = self._job.options.execution_timeout, self._request.cancellation
        if limit is None:
            return await self._await_exit(process, cancellation)
        in_time: bool | None = None
        with cancellation.scope():
            in_time = await self._within(limit, process.wait)
        return _End.CANCELLED if in_time is None else _End.EXIT if in_time else _End.TIMEOUT

    async def _await_exit(self, process: Process, cancellation: Cancellation) -> _End:
        """The same without a limit: what nearly every run waits in, hundreds at a time, so without a cancel scope."""
        end: asyncio.Future[_End] = asyncio.get_running_loop().create_future()

        def tell(what: _End) -> None:
            if not end.done():
                end.set_result(what)

        process.when_over(lambda: tell(_End.EXIT))
        cancellation.interrupts(lambda: tell(_End.CANCELLED))
        return await end

    async def _sleep_through(self, seconds: Seconds) -> None:
        """Until ``seconds`` have passed on the boot clock, which also counts suspend."""
        clock = self._tools.clock
        deadline = clock.now().boot + seconds
        while (left := deadline - clock.now().boot) > 0:
            # In short naps, because the loop's own clock may stand still while the machine is suspended.
            await clock.sleep(min(left, LONGEST_NAP))

    async def _within(self, seconds: Seconds, wait: Callable[[], Awaitable[object]]) -> bool:
        """Await ``wait()`` for at most ``seconds``; whether it came to its end."""
        done = False
        async with anyio.create_task_group() as tasks:

            async def limit() -> None:
                await self._sleep_through(seconds)
                tasks.cancel_scope.cancel()

            tasks.start_soon(limit)
            await wait()
            done = True
            tasks.cancel_scope.cancel()
        return done

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _renice(self, process: Process) -> None:
        nice = NICE.get(self._job.options.priority)
        if nice is None:
            return
        try:
            process.renice(nice)
        except OSError as error:
            self._tools.log.warning(
                "job %s: priority %s was not set: %s", self._job.name, self._job.options.priority, error.strerror
            )

    # -- output -------------------------------------------------------------------------------------------------------

    async def _pump(self, process: Process, stream: Stream) -> None:
        capture = self._captures[stream]
        prefix = format_prefix(self._job.options.stream_prefix, self._job.name, stream)
        while data := await process.read(stream):
            self._pass_on(stream, prefix, capture.feed(data))
            await self._until_sink_is_ready()
        self._pass_on(stream, prefix, capture.finish())
        if capture.overlong:
            self._tools.log.warning(
                "job %s: %d lines of %s were longer than maxLineLength (%d) and are left out",
                self._job.name,
                capture.overlong,
                stream,
                self._job.options.max_line_length,
            )
        self._pumping -= 1
        if self._pumping == 0:
            self._drained.set()

    def _pass_on(self, stream: Stream, prefix: str, texts: list[str]) -> None:
        if texts:
            at = self._tools.clock.now().wall
            self._tools.sink.write(LineBatch(self._request.key, stream, prefix, self._lines + 1, texts, at))
            self._lines += len(texts)

    async def _until_sink_is_ready(self) -> None:
        # Also gives the loop to others between two chunks, however fast this job writes.
        await anyio.lowlevel.checkpoint()
        if self._output_over:
            return
        with anyio.CancelScope() as scope:
            self._congested.append(scope)
            try:
                await self._tools.sink.ready()
            finally:
                self._congested.remove(scope)

    async def _finish_output(self, process: Process) -> None:
        """Wait a little for the streams to end; a process that was left behind must not keep the run (row 55)."""
        # Nearly always the pipes end together with the command, and their readers come next: no timer for that.
        await anyio.lowlevel.checkpoint()
        if self._pumping == 0:
            return
        if await self._within(OUTPUT_GRACE, self._drained.wait):
            return
        process.end_output()
        self._output_over = True
        for scope in self._congested:
            scope.cancel()
        await self._drained.wait()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _end_group(self, process: Process) -> None:
        """SIGTERM to the group, killTimeout for all of it to go, then SIGKILL to the group in any case."""
        process.signal_group(signal.SIGTERM)
        if _CONTINUE is not None:
            # A stopped process would take SIGTERM only once it goes on.
            process.signal_group(_CONTINUE)
        await self._group_gone_in_time(process)
        process.signal_group(signal.SIGKILL)
        if not await self._within(DEATH_WATCH, lambda: self._group_gone(process)):
            self._tools.log.warning(
                "job %s: processes of group %d are still there %g s after SIGKILL: stuck in the kernel, or not ours",
                self._job.name,
                process.pid,
                DEATH_WATCH,
            )

    async def _group_gone_in_time(self, process: Process) -> None:
        """Until the group is gone, or what it is granted is over, which a later request may cut short."""
        clock, cancellation, patience = self._tools.clock, self._request.cancellation, self._job.options.kill_timeout
        end = clock.now().boot + (patience if cancellation.grace is None else min(patience, cancellation.grace))
        nap = anyio.CancelScope()

        def hasten(grace: Seconds) -> None:
            nonlocal end
            end = min(end, clock.now().boot + grace)
            nap.cancel()

        async with anyio.create_task_group() as tasks:

            async def limit() -> None:
                nonlocal nap
                while (left := end - clock.now().boot) > 0:
                    with anyio.CancelScope() as nap:
                        await clock.sleep(min(left, LONGEST_NAP))
                tasks.cancel_scope.cancel()

            cancellation.hastens(hasten)
            tasks.start_soon(limit)
            await self._group_gone(process)
            tasks.cancel_scope.cancel()

    async def _group_gone(self, process: Process) -> None:
        await process.wait()
        pause = 0.01
        while process.group_alive():
            await self._tools.clock.sleep(pause)
            pause = min(2 * pause, 0.2)

    async def _leave(self, process: Process) -> None:
        """Whatever happened, let go of the process; one that still lives is killed with its group."""
        try:
            if self._ended is None:
                with anyio.move_on_after(HURRIED_KILL + DEATH_WATCH, shield=True):
                    process.signal_group(signal.SIGTERM)
                    await self._within(min(HURRIED_KILL, self._job.options.kill_timeout), process.wait)
                    process.signal_group(signal.SIGKILL)
                    await self._group_gone(process)
        finally:
            process.release()

    # -- the record ---------------------------------------------------------------------------------------------------

    def _judge(self, end: _End, code: int | None) -> RunRecord:
        options = self._job.options
        if end is _End.CANCELLED:
            return self._record(Outcome.CANCELLED, code, self._request.cancellation.reason)
        detail = None
        if end is _End.TIMEOUT and options.execution_timeout is not None:
            code, detail = EXECUTION_TIMEOUT, timeout_detail(options.execution_timeout)
        elif code is None:
            return self._record(Outcome.UNKNOWN, None, "another part of this process took the exit code")
        produced = Produced(**{stream: capture.produced for stream, capture in self._captures.items()})
        reason = fail_reason(options.fails_when, code, produced, detail)
        return self._record(Outcome.SUCCESS if reason is None else Outcome.FAILURE, code, reason)

    def _launch_failed(self, error: SpawnFailed) -> RunRecord:
        self._tools.log.error("job %s: launch failed: %s", self._job.name, error)
        reason = fail_reason(self._job.options.fails_when, LAUNCH_FAILED, Produced(), f"launch failed: {error}")
        return self._record(Outcome.FAILURE, LAUNCH_FAILED, reason)

    def _record(self, outcome: Outcome, exit_code: int | None, reason: str | None) -> RunRecord:
        started, ended = self._started, self._ended or self._tools.clock.now()
        captured = {stream: capture.text() for stream, capture in self._captures.items()}
        return RunRecord(
            key=self._request.key,
            outcome=outcome,
            exit_code=exit_code,
            started_at=None if started is None else started.wall,
            finished_at=ended.wall,
            duration=None if started is None else ended.boot - started.boot,
            fail_reason=reason,
            stdout=captured.get("stdout"),
            stderr=captured.get("stderr"),
        )
