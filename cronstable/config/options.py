"""The merged keys of a job as ``JobOptions``, with what a JSON Schema cannot check. Equal options are one object."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from types import MappingProxyType
from typing import Final

from cronstable.config import secrets
from cronstable.config.envfile import EnvFileError, parse_env_file
from cronstable.config.reading import LONGEST_ENV_FILE, read_up_to
from cronstable.config.reporters import ReporterChecks
from cronstable.config.rules import Rule
from cronstable.config.zones import local_zone, named_zone
from cronstable.core.finding import Problem
from cronstable.core.job import ClusterPolicy, ConcurrencyPolicy, FailsWhen, JobOptions, Json

_PLAIN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enabled": "enabled",
        "shell": "shell",
        "captureStdout": "capture_stdout",
        "captureStderr": "capture_stderr",
        "saveLimit": "save_limit",
        "maxLineLength": "max_line_length",
        "streamPrefix": "stream_prefix",
        "executionTimeout": "execution_timeout",
        "killTimeout": "kill_timeout",
        "env_file": "env_file",
        "workingDirectory": "working_directory",
        "user": "user",
        "group": "group",
        "priority": "priority",
        "utc": "utc",
        "timezone": "timezone",
    }
)
_CONVERTED: Final = frozenset({"concurrencyPolicy", "clusterPolicy", "failsWhen", "environment"})
_FAILS_WHEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "producesStdout": "produces_stdout",
        "producesStderr": "produces_stderr",
        "nonzeroReturn": "nonzero_return",
        "always": "always",
    }
)
_THRESHOLDS: Final = ("maxTimeSinceSuccessSeconds", "lateAfterSeconds", "maxRuntimeSeconds", "minRuntimeSeconds")


def digest(keys: Mapping[str, Json]) -> bytes:
    """Stands for the keys of a job and their values. Not their text itself: that can be long, and there are many."""
    return hashlib.blake2b(repr(keys).encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Options with the zone of the schedule. ``problems`` have paths relative to the job."""

    options: JobOptions
    zone: tzinfo
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class OptionsMaker:
    """Makes options and remembers what it looked up: zones, users, files.

    ``watched`` collects the files that options refer to; ``env_names`` the variables of each env_file by its path.
    ``reporters``: whom to ask about reports.
    """

    environ: Mapping[str, str]
    job_rule: Rule
    watched: dict[str, None]
    reporters: ReporterChecks | None = None
    env_names: dict[str, frozenset[str]] = field(default_factory=dict)
    _made: dict[bytes, Prepared] = field(default_factory=dict)
    _raws: dict[bytes, tuple[Mapping[str, Json], tuple[Problem, ...]]] = field(default_factory=dict)
    _zones: dict[str, tzinfo | None] = field(default_factory=dict)
    _env_problems: dict[str, str | None] = field(default_factory=dict)
    _local: tzinfo | None = None

    def known(self, key: bytes) -> Prepared | None:
        """What was prepared under ``key`` before."""
        return self._made.get(key)

    def prepare(self, merged: Mapping[str, Json], key: bytes) -> Prepared:
        """Options for the merged keys of a job without its name, command and schedule.

        ``key`` stands for them (a ``digest``): jobs that say the same share one object.
        """
        made = self._made[key] = self._prepare(merged)
        return made

    def _prepare(self, merged: Mapping[str, Json]) -> Prepared:
        fields: dict[str, object] = {_PLAIN[key]: value for key, value in merged.items() if key in _PLAIN}
        if "concurrencyPolicy" in merged:
            fields["concurrency_policy"] = ConcurrencyPolicy(str(merged["concurrencyPolicy"]))
        if "clusterPolicy" in merged:
            fields["cluster_policy"] = ClusterPolicy(str(merged["clusterPolicy"]))
        fails_when = merged.get("failsWhen")
        if isinstance(fails_when, dict):
            fields["fails_when"] = FailsWhen(**{_FAILS_WHEN[key]: bool(value) for key, value in fails_when.items()})
        environment = merged.get("environment")
        if isinstance(environment, list):
            fields["environment"] = tuple(
                (sys.intern(str(e["key"])), str(e["value"])) for e in environment if isinstance(e, dict)
            )
        directory = fields.get("working_directory")
        if isinstance(directory, str):
            fields["working_directory"] = self._home(directory)
        raw, problems = self._raw({k: v for k, v in merged.items() if k not in _PLAIN and k not in _CONVERTED})
        fields["raw"] = raw
        options = JobOptions(**fields)  # type: ignore[arg-type]  # the schema has checked each of them
        zone, unknown = self._zone(options)
        return Prepared(options, zone, (*unknown, *self._check(options), *problems))

    def _raw(self, keys: dict[str, Json]) -> tuple[Mapping[str, Json], tuple[Problem, ...]]:
        """The keys without a field of their own, shared, and what is wrong with them."""
        key = digest(keys)
        known = self._raws.get(key)
        if known is None:
            known = self._raws[key] = (MappingProxyType(keys), tuple(self._check_raw(keys)))
        return known

    def _check_raw(self, keys: Mapping[str, Json]) -> Iterator[Problem]:
        for hook in ("onFailure", "onPermanentFailure", "onSuccess", "onLate", "monitor"):
            if hook in keys:
                yield from self._secrets(hook, keys[hook])
                yield from self._reports(hook, keys[hook])
        if keys.get("onLate") and not _has_threshold(keys.get("sla")):
            hint = f"add `sla` with one of {', '.join(_THRESHOLDS)}"
            yield Problem(("onLate",), "nothing can be late without a threshold", hint=hint)

    def _reports(self, hook: str, keys: Json) -> Iterator[Problem]:
        if self.reporters is not None and isinstance(keys, dict):
            yield from self.reporters.problems((hook, "report"), keys.get("report"))

    def _home(self, directory: str) -> str:
        if directory != "~" and not directory.startswith("~/"):
            return directory
        return self.environ.get("HOME", "~") + directory[1:]

    def _zone(self, options: JobOptions) -> tuple[tzinfo, list[Problem]]:
        name = options.timezone
        if name is not None:
            if name not in self._zones:
                self._zones[name] = named_zone(name)
            zone = self._zones[name]
            if zone is not None:
                return zone, []
            hint = "write a name of the IANA database such as Europe/Berlin, or UTC"
            return UTC, [Problem(("timezone",), f"unknown timezone `{name}`", hint=hint)]
        if options.utc:
            return UTC, []
        self._local = self._local or local_zone(self.environ)
        return self._local, []

    def _check(self, options: JobOptions) -> list[Problem]:
        problems: list[Problem] = []
        if options.env_file is not None:
            message = self._env_file(options.env_file)
            if message:
                problems.append(Problem(("env_file",), message))
        if options.user is not None or options.group is not None:
            problems += _accounts(options)
        exclusive = options.concurrency_policy in (ConcurrencyPolicy.FORBID, ConcurrencyPolicy.REPLACE)
        if options.raw.get("concurrencyScope") == "cluster" and not exclusive:
            problems.append(
                Problem(
                    ("concurrencyScope",),
                    f"`cluster` means nothing while concurrencyPolicy is `{options.concurrency_policy}`",
                    hint="set concurrencyPolicy to Forbid or Replace",
                )
            )
        for i, (name, value) in enumerate(options.environment):
            # Names were checked before their variables were expanded.
            if not name or "=" in name or "\0" in name or "\0" in value:
                problems.append(Problem(("environment", i), "no process can be given this name or this value"))
        return problems

    def _secrets(self, key: str, value: Json) -> list[Problem]:
        rule = self.job_rule.child(key)
        if rule is None:
            return []
        self.watched.update(dict.fromkeys(secrets.files(value, rule)))
        found = (secrets.check(path, source, self.environ) for path, source in secrets.secrets(value, rule, (key,)))
        return [problem for problem in found if problem is not None]

    def _env_file(self, path: str) -> str | None:
        if path not in self._env_problems:
            self.watched[path] = None
            self._env_problems[path] = self._read_env_file(path)
        return self._env_problems[path]

    def _read_env_file(self, path: str) -> str | None:
        try:
            text = read_up_to(path, LONGEST_ENV_FILE).decode("utf-8")
            self.env_names[path] = frozenset(parse_env_file(text))
        except EnvFileError as error:
            return f"env_file {path}, {error}"
        except UnicodeDecodeError:
            return f"env_file {path} is not UTF-8"
        except OSError as error:
            return f"env_file {path} cannot be read: {error.strerror or 'input/output error'}"
        except ValueError:
            return "the path of env_file has a NUL character in it"
        return None


def _has_threshold(sla: Json) -> bool:
    return isinstance(sla, dict) and any(sla.get(name) for name in _THRESHOLDS)


def _accounts(options: JobOptions) -> list[Problem]:
    """Users and groups that this host does not have. Whether we may switch to them shows at the start of a run."""
    problems = []
    for kind, name in (("user", options.user), ("group", options.group)):
        if isinstance(name, int):
            if name < 0:
                problems.append(Problem((kind,), f"the {kind} id {name} is negative"))
            continue
        if name is not None and not account_exists(kind, name):
            hint = f"write the number without quotes to name a {kind} id" if name.isascii() and name.isdigit() else None
            problems.append(Problem((kind,), f"unknown {kind} `{name}`", hint=hint))
    return problems


def account_exists(kind: str, name: str) -> bool:
    """Does this host know the ``user`` or ``group``? Never on a platform that has no such thing."""
    # Here and not above: these modules exist on POSIX only, and few configurations need them.
    try:
        if kind == "user":
            from pwd import getpwnam

            getpwnam(name)
        else:
            from grp import getgrnam

            getgrnam(name)
    except (KeyError, ImportError, ValueError):
        return False
    return True
