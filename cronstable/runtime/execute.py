"""From a launch to the runner: the job's variables, and where the lines of its output go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from cronstable.core.clock import Clock, Seconds
from cronstable.core.occurrence import occurrence_env
from cronstable.core.runs import LiveRun, RunRecord, Trigger
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.console import Console
from cronstable.runtime.host import DaemonHost
from cronstable.runtime.launcher import Execute
from cronstable.runtime.output import OutputHub
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import Spawner

PATIENCE: Seconds = 1.0
"""How long a job is held back while nobody reads the daemon's stdout, before its lines are dropped instead."""
NAP: Seconds = 0.02

DEPLOYMENT = "default"


class Lines:
    """Implements the runner's ``LineSink``: the daemon's stdout, and whoever reads along."""

    def __init__(
        self, console: Console, hub: OutputHub, clock: Clock, render: Callable[[LineBatch], str] = LineBatch.logged
    ) -> None:
        self._console = console
        self._render = render
        self._hub = hub
        self._clock = clock
        self._patience_is_over = False

    def write(self, batch: LineBatch) -> None:
        """Pass a batch on."""
        self._console.write(self._render(batch).encode("utf-8", "backslashreplace"))
        self._hub.extend(batch.key.run_id, batch)

    async def ready(self) -> None:
        """Hold a flooding job back while stdout is congested, but never for long.

        Patience is one for all jobs and batches until somebody reads again: spent anew on each batch, it would let a
        reader that never reads slow a long output down to a crawl.
        """
        deadline = self._clock.now().boot + PATIENCE
        while self._console.congested and not self._patience_is_over:
            await self._clock.sleep(NAP)
            self._patience_is_over = self._clock.now().boot >= deadline
        if not self._console.congested:
            self._patience_is_over = False


def make_execute(
    console: Console,
    spawner: Spawner,
    environ: Mapping[str, str],
    render: Callable[[LineBatch], str] = LineBatch.logged,
) -> Callable[[DaemonHost, OutputHub, Callable[[], str]], Execute]:
    """How the daemon carries out runs, given its stdout, its spawner, its own environment and the form of its log.

    The node's name is asked for at each run: a reload may change it.
    """

    def build(host: DaemonHost, hub: OutputHub, node: Callable[[], str]) -> Execute:
        tools = RunTools(
            spawner=spawner,
            clock=host.clock,
            threads=host.threads,
            sink=Lines(console, hub, host.clock, render),
            log=host.log,
            environ=environ,
        )

        def execute(
            request: RunRequest, on_started: Callable[[LiveRun], None], permit: Callable[[], None]
        ) -> Awaitable[RunRecord]:
            catchup = request.key.trigger is Trigger.CATCHUP
            own = occurrence_env(request.key, node(), DEPLOYMENT, catchup, first_run_id=request.first_run_id)
            complete = RunRequest(
                request.key, request.job, request.cancellation, {**request.variables, **own}, request.first_run_id
            )
            return run_job(complete, tools, on_started=on_started, permit=permit)

        return execute

    return build
