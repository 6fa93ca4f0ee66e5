"""The daemon form of the command: load, then serve until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import anyio

from cronstable.cli.loading import loader, plugins_with_warnings, print_findings
from cronstable.config import ClusterConfig, Config, LoadResult
from cronstable.config.model import StateConfig
from cronstable.core.clock import Seconds
from cronstable.core.finding import Severity
from cronstable.plugin.descriptors import NotifierBackend, ServiceProvider
from cronstable.plugin.manager import Plugins, Provided, load_factory
from cronstable.plugin.protocols import Election, ElectionContext, Host, Notifier, Service
from cronstable.plugin.state_store import StateStore
from cronstable.runtime.capture import LineBatch
from cronstable.runtime.console import Console, ConsoleHandler, SecondsFormatter, hold_standard_descriptors
from cronstable.runtime.daemon import Daemon, Parts
from cronstable.runtime.execute import make_execute
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.host import Seams
from cronstable.runtime.http import HttpxClient
from cronstable.runtime.jsonlog import JsonFormatter, json_lines
from cronstable.runtime.otel import RunSpans, spans_of
from cronstable.runtime.processes import HostProcesses
from cronstable.runtime.reaper import Reaper
from cronstable.runtime.spawn import PosixSpawner, clean_signal_state
from cronstable.runtime.start import keep_descriptors_from_children
from cronstable.runtime.system import SystemClock, SystemIds, SystemRng
from cronstable.runtime.threads import ThreadLanes

_LOGGINGS_OWN_FILE = logging._srcfile


@dataclass(frozen=True, slots=True)
class Wishes:
    """The command line of the daemon. ``form``: of findings; ``grace``: seconds that a stop waits for runs, or None."""

    path: str
    level: str
    form: str
    log_format: str = "text"
    grace: Seconds | None = None


def serve(wishes: Wishes) -> int:
    """Serve a configuration in the foreground; the exit code."""
    hold_standard_descriptors()
    keep_descriptors_from_children()
    clean_signal_state()
    errors, output = Console(2), Console(1)
    log = _logging(errors, wishes)
    spans = spans_of(os.environ, log)
    try:
        return _serve(wishes, log, output, spans)
    finally:
        if spans is not None:
            spans.close()
        output.close()
        errors.close()


def _serve(wishes: Wishes, log: logging.Logger, output: Console, spans: RunSpans | None) -> int:
    plugins = plugins_with_warnings(log.warning)
    load = loader(wishes.path, plugins)
    first = load()
    if first.config is None:
        print_findings(first, wishes.form)
        return 1
    for finding in first.findings:
        if finding.severity is Severity.ADVISORY:
            log.warning("%s:%d: %s", finding.file, finding.line, finding.message)
    configure = _Configured(wishes.level)
    spawner = PosixSpawner()
    configure(first.config.logging)
    clock = SystemClock()
    parts = Parts(
        seams=Seams(
            clock=clock,
            rng=SystemRng(),
            ids=SystemIds(),
            fs=SystemFiles(),
            http=HttpxClient(),
            threads=ThreadLanes(),
            processes=HostProcesses(spawner, clock, os.environ),
        ),
        plugins=plugins,
        make_election=_Maker(plugins).election,
        make_service=_Maker(plugins).service,
        make_notifier=_Maker(plugins).notifier,
        make_store=_Maker(plugins).store,
        make_execute=make_execute(
            output, spawner, dict(os.environ), json_lines if wishes.log_format == "json" else LineBatch.logged
        ),
        load=load,
        hostname=socket.gethostname(),
        log=log,
        configure_logging=configure,
        reaper=Reaper(spawner.owned, clock),
        tracer=spans,
        shutdown_grace=wishes.grace,
        environ=dict(os.environ),
        pid=os.getpid(),
    )
    _settle_memory()
    return anyio.run(_run, first, first.config, parts)


def _settle_memory() -> None:
    """What was loaded stays for good: keep the collector from walking over it again and again.

    A burst of runs makes some thousand short-lived objects; with the default thresholds each burst pays for several
    walks over the whole heap, which shows as a tenth of the CPU per run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _run(first: LoadResult, config: Config, parts: Parts) -> int:
    return await Daemon(first, config, parts).run()


def _logging(errors: Console, wishes: Wishes) -> logging.Logger:
    handler = ConsoleHandler(errors)
    handler.setFormatter(JsonFormatter() if wishes.log_format == "json" else SecondsFormatter())
    logging.basicConfig(level=wishes.level, handlers=[handler], force=True)
    # Neither of our formats shows these, and each costs every record something (logging HOWTO, 'Optimization').
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    for client in ("httpx", "httpcore"):
        # They log whole addresses, and the address of a check-in or a webhook is a secret.
        logging.getLogger(client).setLevel(logging.WARNING)
    return logging.getLogger("cronstable")


class _Configured:
    """Applies the ``logging`` section when it changed."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._seen: Mapping[str, object] | None = None

    def __call__(self, section: Mapping[str, object] | None) -> None:
        if section is None or section == self._seen:
            return
        self._seen = section
        # Here and not above: it brings a network server and pickle along, and few have such a section.
        from logging.config import dictConfig

        # A format of the user's own may name file and line.
        logging._srcfile = _LOGGINGS_OWN_FILE
        try:
            dictConfig(dict(section))
        except (ValueError, TypeError, AttributeError, ImportError) as error:
            logging.getLogger("cronstable").error("the logging section cannot be applied: %s", error)


class _Maker:
    """Calls factories: the one place where a plugin's own code is imported by name."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    def election(self, config: ClusterConfig, context: ElectionContext, host: Host) -> Election:
        provided = self._plugins.election_backends[config.backend.name]
        made = load_factory(provided.descriptor.factory, provided)(context, host)
        if not isinstance(made, Election):
            raise TypeError(f"{provided.descriptor.factory} did not return an Election")
        return made

    def store(self, config: StateConfig, host: Host) -> StateStore:
        provided = self._plugins.state_stores[config.backend.name]
        return cast(StateStore, load_factory(provided.descriptor.factory, provided)(config.settings, host))

    def service(self, provided: Provided[ServiceProvider], settings: object, host: Host) -> Service:
        return cast(Service, load_factory(provided.descriptor.factory, provided)(settings, host))

    def notifier(self, provided: Provided[NotifierBackend], settings: object, host: Host) -> Notifier:
        return cast(Notifier, load_factory(provided.descriptor.factory, provided)(settings, host))
