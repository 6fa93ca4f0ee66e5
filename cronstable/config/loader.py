"""From a path to a configuration, or to everything that is wrong with it (reference 1).

Synchronous, and without the event loop, the command line or the network: the daemon calls it off its loop.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cronstable.config import cluster as clusters
from cronstable.config import secrets
from cronstable.config import state as states
from cronstable.config.crontab import Crontab
from cronstable.config.document import Map
from cronstable.config.explain import UNKNOWN_KEY
from cronstable.config.files import Reader, Source, includes
from cronstable.config.fill import fill_defaults
from cronstable.config.interpolate import Interpolator
from cronstable.config.jobset import FileDefaults, JobSet, MergedJobs
from cronstable.config.merge import Layer, deep_merge
from cronstable.config.model import ClusterConfig, Config, Findings, LoadResult, StateConfig
from cronstable.config.options import OptionsMaker, digest
from cronstable.config.reporters import ReporterChecks
from cronstable.config.rules import NULLS
from cronstable.config.schema import compose, dotted_path
from cronstable.config.validate import Checked, Validator
from cronstable.core.finding import Finding, KeyPath, Problem, Severity
from cronstable.core.fingerprint import job_set_id
from cronstable.core.job import Job, Json
from cronstable.plugin.descriptors import ElectionBackend, Section, StateStoreBackend
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.manager import KEY, Plugins

_NOT_SECTIONS = frozenset({"jobs", "defaults", "include"})
_NEED_STATE: Mapping[str, Json] = {"onMissed": "skip", "archiveOutput": False}
"""Job keys that ask for nothing without a ``state`` section, and the values with which they ask for nothing anyway."""


def load(path: str, *, plugins: Plugins, environ: Mapping[str, str], hostname: str) -> LoadResult:
    """Read the file or directory ``path`` with all it includes.

    ``environ`` is for ``${VAR}`` and secrets; ``hostname`` is the node's name when the configuration gives none.
    Never raises for anything a user can write.
    """
    findings = Findings()
    reader = Reader(findings)
    composed = compose(plugins)
    if composed.conflicts:
        for message in composed.conflicts:
            findings.add(Finding(path, 0, 0, (), message))
        return LoadResult(None, findings.sorted(), ())
    validator = Validator(composed)
    options = OptionsMaker(environ, validator.job_rule, reader.watched, ReporterChecks(plugins))
    loading = _Loading(
        plugins, environ, hostname, findings, reader, validator, options, JobSet(options, composed, findings)
    )
    for entry in reader.entries(path):
        source = reader.read(entry)
        if source is not None:
            loading.file(source, ())
    return loading.result()


@dataclass(slots=True)
class _Verdicts:
    """What was made of the sections with a ``backend``, before the schema sees them; None for no such section."""

    cluster: clusters.ClusterCheck | None = None
    state: states.StateCheck | None = None

    def usable(self) -> dict[str, dict[str, Json]]:
        """The keys that the schema shall see, by section."""
        found = {"cluster": self.cluster, "state": self.state}
        return {key: check.usable for key, check in found.items() if check is not None}

    def problems(self) -> list[Problem]:
        """What is wrong so far."""
        return [problem for check in (self.cluster, self.state) if check is not None for problem in check.problems]


@dataclass(slots=True)
class _Loading:
    """One load on its way."""

    plugins: Plugins
    environ: Mapping[str, str]
    hostname: str
    findings: Findings
    reader: Reader
    validator: Validator
    options: OptionsMaker
    job_set: JobSet
    cluster: ClusterConfig | None = None
    state: StateConfig | None = None
    sections: dict[str, Section] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    _section_places: dict[str, tuple[str, int]] = field(default_factory=dict)
    _done: dict[int, FileDefaults] = field(default_factory=dict)

    def result(self) -> LoadResult:
        """What all files give together."""
        if "state" not in self._section_places:
            self._cluster_scope()
            self._without_state()
        found = self.findings.sorted()
        watched = tuple(self.reader.watched)
        if any(finding.severity is Severity.ERROR for finding in found):
            return LoadResult(None, found, watched)
        # Everything is placed and said: the documents would only stand beside the jobs made of them.
        self.reader.forget()
        jobs = tuple(self.job_set.jobs)
        config = Config(
            jobs=jobs,
            cluster=self.cluster,
            sections=self.sections,
            settings=self.settings,
            logging=self.sections.pop("logging", None),
            job_set_id=job_set_id(jobs, self._variables),
            watched=watched,
            state=self.state,
        )
        return LoadResult(config, found, watched)

    def _cluster_scope(self) -> None:
        """``concurrencyScope: cluster`` is kept in the state store, so there has to be one (reference 2)."""
        jobs = [job for job in self.job_set.jobs if job.options.raw.get("concurrencyScope") == "cluster"]
        if jobs:
            message = f"`concurrencyScope: cluster` needs a `state` section; it is asked for by {_names(jobs)}"
            self._at_job(jobs[0], message, "add `state`, or leave the scope at `node`")

    def _without_state(self) -> None:
        """What a job asks for that has no effect, since nothing outlives the daemon."""
        for key, nothing in _NEED_STATE.items():
            jobs = [job for job in self.job_set.jobs if job.options.raw.get(key, nothing) != nothing]
            if jobs:
                message = f"`{key}` has no effect without a `state` section; it is asked for by {_names(jobs)}"
                self._at_job(jobs[0], message, f"add `state`, or take `{key}` out", Severity.ADVISORY)

    def _at_job(self, job: Job, message: str, hint: str, severity: Severity = Severity.ERROR) -> None:
        file, _, line = job.source.rpartition(":")
        self.findings.add(Finding(file, int(line), 1, (), message, severity, hint=hint))

    def _variables(self, job: Job) -> frozenset[str]:
        """The names of the variables in a job's env_file."""
        return self.options.env_names.get(job.options.env_file or "", frozenset())

    def file(self, source: Source, above: tuple[str, ...]) -> FileDefaults:
        """Check a file and what it includes, included files first. Returns what its includers inherit as defaults.

        That is nothing when the file has jobs: its defaults are for those. A file of defaults alone is there to share.
        """
        done = self._done.get(id(source))
        if done is not None:
            return done
        document, root = source.document, source.document.root
        if source.crontab is not None:
            crontab = Crontab(source.path, self.environ, self.options, self.findings)
            self.job_set.add_jobs(crontab.read(source.crontab))
        if root is None:
            return self._done.setdefault(id(source), FileDefaults())
        verdicts = self._verdicts(root)
        checked = self.validator.check(document, verdicts.usable())
        self._note_all(source, [*verdicts.problems(), *map(self._with_reason, checked.problems)])
        self._interpolate(source, checked)
        defaults = self._defaults(source, checked, above)
        inherited = self._done[id(source)] = FileDefaults() if root.get("jobs") else defaults
        self.job_set.add_file(document, checked, defaults)
        self._sections(source, checked, verdicts)
        self._plugin_checks(source, checked, defaults)
        return inherited

    def _with_reason(self, problem: Problem) -> Problem:
        """An unknown key can be one of a plugin that is broken, disabled or not installed."""
        if problem.hint is not None or not problem.message.startswith(UNKNOWN_KEY):
            return problem
        dotted = dotted_path(problem.path)
        return replace(problem, hint=self.plugins.why_missing(KEY, dotted))

    def _verdicts(self, root: Map) -> _Verdicts:
        """Which backend and store are chosen, and which keys of their sections are not for the schema to judge."""
        verdicts = _Verdicts()
        section, chosen = self._chosen(root, "cluster", clusters.DEFAULT_BACKEND)
        if section is not None:
            verdicts.cluster = clusters.check(section, chosen, self.plugins)
        section, chosen = self._chosen(root, "state", states.DEFAULT_BACKEND)
        if section is not None:
            verdicts.state = states.check(section, chosen, self.plugins)
        return verdicts

    def _chosen(self, root: Map, key: str, default: str) -> tuple[Map | None, str]:
        """A section and its ``backend``; no section when there is nothing to look up."""
        section = root.get(key)
        if isinstance(section, str) and section in NULLS:
            section = Map()
        if not isinstance(section, Map):
            return None, default
        chosen = section.get("backend", default)
        if not isinstance(chosen, str):
            return None, default
        # An unset variable is reported when the file is interpolated.
        return section, Interpolator(self.environ, "").text(chosen, ())

    def _interpolate(self, source: Source, checked: Checked) -> None:
        root = source.document.root
        assert root is not None
        interpolator = Interpolator(self.environ, os.path.dirname(source.path))
        if checked.special_rest:
            for key in root:
                if key != "jobs":
                    interpolator.section(key, root)
        jobs = root.get("jobs")
        for i in checked.special:
            assert isinstance(jobs, list)
            job = jobs[i]
            assert isinstance(job, Map)
            interpolator.job(job, ("jobs", i))
        self._note_all(source, interpolator.problems)

    def _defaults(self, source: Source, checked: Checked, above: tuple[str, ...]) -> FileDefaults:
        """Read the included files, and put this file's defaults over theirs."""
        root = source.document.root
        assert root is not None
        merged: Mapping[str, Json] = {}
        layers: tuple[Layer, ...] = ()
        chain = (*above, os.path.realpath(source.path))
        for i, path in includes(root):
            target = os.path.join(os.path.dirname(source.path), path)
            inherited = self._include(source, i, target, chain)
            merged = deep_merge(merged, inherited.merged)
            layers = (*inherited.layers, *layers)
        own = root.get("defaults")
        if isinstance(own, dict) and ("defaults",) not in checked.bad_rest:
            bad = {path[1] for path in checked.bad_rest if path[:1] == ("defaults",)}
            merged = deep_merge(merged, {key: value for key, value in own.items() if key not in bad})
            layers = (Layer(source.document, ("defaults",)), *layers)
        return FileDefaults(merged, layers, digest(merged) if merged else b"")

    def _include(self, source: Source, i: int, target: str, chain: tuple[str, ...]) -> FileDefaults:
        path: KeyPath = ("include", i)
        if os.path.realpath(target) in chain:
            names = [os.path.basename(name) for name in (*chain[chain.index(os.path.realpath(target)) :], target)]
            self._note(source, Problem(path, f"the files include each other: {' -> '.join(names)}"))
            return FileDefaults()
        if not os.path.isfile(target):
            self.reader.watched[target] = None
            what = "is a directory; name the files in it" if os.path.isdir(target) else "does not exist"
            self._note(source, Problem(path, f"the included file {target} {what}"))
            return FileDefaults()
        included = self.reader.read(target)
        return self.file(included, chain) if included is not None else FileDefaults()

    def _sections(self, source: Source, checked: Checked, verdicts: _Verdicts) -> None:
        root = source.document.root
        assert root is not None
        schemas = self.validator.schema["properties"]
        for key, value in root.items():
            if key in _NOT_SECTIONS or key not in schemas:
                continue
            line, _, _ = source.document.place((key,))
            first = self._section_places.setdefault(key, (source.path, line))
            if first != (source.path, line):
                message = f"`{key}` is configured in {first[0]}:{first[1]} already; it can be given once"
                self._note(source, Problem((key,), message))
                continue
            cluster = verdicts.cluster
            if key == "cluster" and isinstance(value, dict) and cluster is not None and cluster.backend is not None:
                self._note_all(source, list(clusters.lease_rules(value, cluster.backend)))
            if not isinstance(value, dict) or any(path[:1] == (key,) for path in checked.bad_rest):
                continue
            rule = self.validator.rule.props[key]
            self.reader.watched.update(dict.fromkeys(secrets.files(value, rule)))
            broken = [secrets.check(p, s, self.environ) for p, s in secrets.secrets(value, rule, (key,))]
            problems = [problem for problem in broken if problem is not None]
            self._note_all(source, problems)
            if key == "cluster":
                if cluster is not None and cluster.backend is not None:
                    self._cluster(source, {k: value.get(k, v) for k, v in cluster.usable.items()}, cluster.backend)
            elif key == "state":
                state = verdicts.state
                if state is not None and state.backend is not None and not state.problems:
                    self._state(source, {k: value.get(k, v) for k, v in state.usable.items()}, state.backend)
            elif not problems:
                self._section(source, key, value)

    def _section(self, source: Source, key: str, value: Mapping[str, Json]) -> None:
        schema = self.validator.schema["properties"][key]
        section = fill_defaults(schema, value)
        self.sections[key] = section
        if key == "notify":
            self._note_all(source, list(ReporterChecks(self.plugins).problems((key, "report"), section.get("report"))))
        self._serve(source, key, section)

    def _cluster(self, source: Source, section: dict[str, Json], backend: ElectionBackend) -> None:
        schema = self.validator.schema["properties"]["cluster"]
        try:
            self.cluster = clusters.make(section, backend, schema, self.hostname, self._below("cluster"))
        except InvalidSettings as error:
            owner = self.plugins.election_backends[backend.name].plugin.distribution
            for problem in clusters.settings_problems(error, backend):
                self._note(source, problem, owner)
            return
        for key, value in self.cluster.beside.items():
            if isinstance(value, Mapping):
                self._serve(source, f"cluster.{key}", value)

    def _below(self, section: str) -> frozenset[str]:
        """The keys of ``section`` that are sections of services."""
        found = (s.descriptor.section.partition(".") for s in self.plugins.services.values())
        return frozenset(key for above, _, key in found if above == section and key)

    def _serve(self, source: Source, section: str, value: Mapping[str, Json]) -> None:
        """Settings of the service whose section this is, if there is one."""
        service = next((s for s in self.plugins.services.values() if s.descriptor.section == section), None)
        if service is None:
            return
        try:
            parse = service.descriptor.parse
            settings = parse(value) if parse is not None else value
        except InvalidSettings as error:
            for problem in error.problems:
                path = (*section.split("."), *problem.path)
                shown = Problem(path, problem.message, problem.severity, problem.allowed, problem.hint)
                self._note(source, shown, service.plugin.distribution)
            return
        if settings is not None:
            self.settings[section] = settings

    def _state(self, source: Source, section: dict[str, Json], backend: StateStoreBackend) -> None:
        try:
            self.state = states.make(section, backend, self.validator.schema["properties"]["state"])
        except InvalidSettings as error:
            owner = self.plugins.state_stores[backend.name].plugin.distribution
            for problem in states.settings_problems(error, backend):
                self._note(source, problem, owner)

    def _plugin_checks(self, source: Source, checked: Checked, defaults: FileDefaults) -> None:
        """Rules of plugins across keys, for a file that the schema has nothing against."""
        root = source.document.root
        assert root is not None
        if checked.problems:
            return
        config: dict[str, Json] = {key: value for key, value in root.items() if key not in ("jobs", "include")}
        for key in config.keys() & self.sections.keys():
            config[key] = dict(self.sections[key])
        jobs = root.get("jobs")
        config["jobs"] = MergedJobs(jobs if isinstance(jobs, list) else [], defaults.merged)  # type: ignore[assignment]
        for plugin, problem in self.plugins.check_config(config):
            self._note(source, problem, plugin.distribution)

    def _note_all(self, source: Source, problems: list[Problem]) -> None:
        for problem in problems:
            self._note(source, problem)

    def _note(self, source: Source, problem: Problem, owner: str | None = None) -> None:
        line, column, _ = source.document.place(problem.path)
        self.findings.add(
            Finding(
                source.document.file,
                line,
                column,
                problem.path,
                problem.message,
                problem.severity,
                problem.allowed,
                problem.hint,
                owner or self.validator.composed.owner(problem.path),
            )
        )


def _names(jobs: Sequence[Job]) -> str:
    return ", ".join(f"`{job.name}`" for job in jobs[:10]) + (" and more" if len(jobs) > 10 else "")
