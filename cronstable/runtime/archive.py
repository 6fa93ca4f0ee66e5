"""Archived output: what jobs with ``archiveOutput`` wrote, kept in ``logs/<job>`` with its secrets taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from anyio.abc import TaskGroup

from cronstable.config import Config
from cronstable.config.envfile import parse_env_file
from cronstable.config.reading import LONGEST_ENV_FILE, read_up_to
from cronstable.core.clock import Seconds
from cronstable.core.job import Job, Json
from cronstable.core.records import WriteKind, stream
from cronstable.core.redaction import is_secret_variable, redact, sources
from cronstable.core.runs import LiveRun, RunRecord
from cronstable.plugin.protocols import Host
from cronstable.runtime.courier import Courier, Refusal
from cronstable.runtime.state import StateKeeper

LONGEST: Final = 384 * 1024
"""Bytes of one stream of one run; the end is kept, as it says how the run went."""
READ_WITHIN: Final[Seconds] = 10.0
LONGEST_SECRET: Final = 1 << 20


class Archive:
    """Implements the launcher's ``RunListener``. Nothing of a run is kept whose secrets could not be looked up."""

    def __init__(
        self, *, keeper: StateKeeper, host: Host, config: Callable[[], Config], environ: Mapping[str, str]
    ) -> None:
        self._keeper = keeper
        self._threads = host.threads
        self._config = config
        self._environ = environ
        self._courier = Courier("archived output", log=host.log, deadline=READ_WITHIN + 1)
        self._at_start: dict[str, frozenset[str] | None] = {}

    def bind(self, tasks: TaskGroup) -> None:
        """Say which task group the work is done in."""
        self._courier.bind(tasks)

    async def idle(self) -> None:
        """Return once nothing is on its way."""
        await self._courier.idle()

    def started(self, job: Job, run: LiveRun) -> None:
        """Learn the secrets that the run was given: at its end they may have been replaced by others."""
        if self._keeper.configured and job.options.raw.get("archiveOutput") and _redacts(job):
            self._at_start[run.key.run_id] = None
            self._courier.post(job.name, lambda: self._learn(job, run.key.run_id))

    def finished(self, job: Job, record: RunRecord) -> None:
        """Keep what was captured, some time soon."""
        captured = record.stdout is not None or record.stderr is not None
        if captured and self._keeper.configured and job.options.raw.get("archiveOutput"):
            self._courier.post(job.name, lambda: self._keep(job, record))
        else:
            self._at_start.pop(record.key.run_id, None)

    async def _learn(self, job: Job, run_id: str) -> None:
        self._at_start[run_id] = await self._secrets(job)

    async def _secrets(self, job: Job) -> frozenset[str]:
        config = self._config()
        return await self._threads.run(lambda: self._known(job, config), timeout=READ_WITHIN, lane="archive")

    def _known(self, job: Job, config: Config) -> frozenset[str]:
        return frozenset([*_of_config(config, job, self._environ), *_of_environment(job, self._environ)])

    async def _keep(self, job: Job, record: RunRecord) -> None:
        policy = self._keeper.policy
        streams = {"stdout": record.stdout, "stderr": record.stderr}
        texts = {name: text for name, text in streams.items() if text is not None}
        at_start = self._at_start.pop(record.key.run_id, frozenset())
        if _redacts(job):
            if at_start is None:
                raise Refusal("the secrets of a run could not be looked up when it started")
            known = at_start | await self._secrets(job)
            texts = await self._threads.run(
                lambda: {name: redact(text, known) for name, text in texts.items()}, timeout=READ_WITHIN, lane="archive"
            )
        data: dict[str, Json] = {"runId": record.key.run_id, "finishedAt": record.finished_at}
        for name, text in texts.items():
            data[name] = end_of(text)
        keep = policy.max_runs_per_job if policy is not None else None
        self._keeper.write(WriteKind.LOG, stream("logs", job.name), data, keep=keep)


def _redacts(job: Job) -> bool:
    return bool(job.options.raw.get("redactArchivedSecrets", True))


def end_of(text: str) -> str:
    """The end of ``text`` that fits, with a word about what does not."""
    # A record is ASCII: what is not ASCII takes up to twelve bytes in it.
    size = len(text) if text.isascii() else len(text) * 12
    if size <= LONGEST:
        return text
    kept = text[-(LONGEST * len(text) // size) :]
    return f"[.... {len(text) - len(kept)} characters discarded ...]\n{kept}"


def _of_config(config: Config, job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    """The values of all sources of secrets: of the sections, and of the reports of this job."""
    cluster = config.cluster.section if config.cluster is not None else {}
    state = config.state.section if config.state is not None else {}
    for source in sources([config.sections, cluster, state, job.options.raw]):
        if isinstance(value := source.get("value"), str):
            yield value
        elif isinstance(path := source.get("fromFile"), str):
            yield read_up_to(path, LONGEST_SECRET).decode("utf-8-sig", "replace").strip()
        elif isinstance(name := source.get("fromEnvVar"), str):
            yield environ.get(name, "")


def _of_environment(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    """The values of variables whose names look secret: of the daemon, of ``env_file`` and of ``environment``."""
    variables = list(environ.items())
    if job.options.env_file is not None:
        text = read_up_to(job.options.env_file, LONGEST_ENV_FILE).decode("utf-8-sig")
        variables += parse_env_file(text).items()
    variables += job.options.environment
    yield from (value for name, value in variables if is_secret_variable(name, value))
