"""What a job is, for whoever compares two of it: its keys without the defaults, and without a secret (DESIGN 6, S8).

Values of variables are masked, and all that may be a secret: rather too much than too little. Whether they are equal
can still be told by who holds a key that both sides have: a seal is a keyed digest of the masked values (HMAC, RFC
2104), and says nothing without the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import Final

from cronstable.core.fingerprint import REDACTED, REPORTER_DEFAULTS, RETRY_DEFAULTS
from cronstable.core.job import FailsWhen, Job, JobOptions, Json
from cronstable.core.redaction import SOURCES, is_secret_place, looks_secret, tells_secret
from cronstable.core.values import dataclass

KEY_OF_FIELD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enabled": "enabled",
        "shell": "shell",
        "capture_stdout": "captureStdout",
        "capture_stderr": "captureStderr",
        "save_limit": "saveLimit",
        "max_line_length": "maxLineLength",
        "stream_prefix": "streamPrefix",
        "concurrency_policy": "concurrencyPolicy",
        "cluster_policy": "clusterPolicy",
        "execution_timeout": "executionTimeout",
        "kill_timeout": "killTimeout",
        "env_file": "env_file",
        "working_directory": "workingDirectory",
        "user": "user",
        "group": "group",
        "priority": "priority",
        "utc": "utc",
        "timezone": "timezone",
    }
)
"""The keys of a configuration by the fields of ``JobOptions`` that hold them as they are."""
_FAILS_WHEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "produces_stdout": "producesStdout",
        "produces_stderr": "producesStderr",
        "nonzero_return": "nonzeroReturn",
        "always": "always",
    }
)
_HOOKS: Final = ("onFailure", "onPermanentFailure", "onSuccess", "onLate")
_USUAL: Final = JobOptions()
_FREE_TEXT: Final = re.compile(r"(body|payload|templates?)$|^extra$", re.IGNORECASE)
"""What is sent to others: many take their key in it, and variables have their values in it already."""
_TEMPLATE: Final = re.compile(r"\{[{%]")
_NAMES: Final = ("name", "key")
"""The keys of a pair that say what its other one is."""


@dataclass(frozen=True, slots=True)
class Definition:
    """``keys`` by their names in a configuration, what is the default left out.

    ``hidden``: the masked values, as bytes to be sealed, by the first key of their paths.
    """

    keys: Mapping[str, Json]
    hidden: Mapping[str, bytes] = field(repr=False)


def definitions(jobs: Iterable[Job]) -> Iterator[tuple[Job, Definition]]:
    """Each job with its definition. Options that jobs share are looked at once."""
    known: dict[int, tuple[JobOptions, Definition]] = {}
    for job in jobs:
        options = job.options
        # The options are kept next to what was made of them, or their id could come to mean another object.
        entry = known.get(id(options))
        if entry is None:
            entry = known[id(options)] = (options, _of_options(options))
        schedule: Json = job.schedule.text
        if job.schedule.day_match != "any":
            schedule = {"line": job.schedule.text, "dayMatch": job.schedule.day_match}
        command: Json = job.command if isinstance(job.command, str) else list(job.command)
        own: dict[str, Json] = {"command": command, "schedule": schedule}
        yield job, Definition({**own, **entry[1].keys}, entry[1].hidden)


def usual(path: tuple[str, ...]) -> Json:
    """The value of a key that a definition leaves out, None when it is nothing."""
    if len(path) == 2 and path[0] == "failsWhen":
        return next((getattr(FailsWhen(), field) for field, key in _FAILS_WHEN.items() if key == path[1]), None)
    found = next((getattr(_USUAL, field) for field, key in KEY_OF_FIELD.items() if (key,) == path), None)
    return _plain(found)


def sealing_key(secret: bytes, nonce: str) -> bytes:
    """The key of one answer's seals, from a secret that both sides have and what the answer says beside."""
    return hmac.digest(secret, b"cronstable definition " + nonce.encode(), "sha256")


def seal(key: bytes, job: str, name: str, hidden: bytes) -> str:
    """A digest of the masked values under the key ``name`` of ``job``: 32 hex digits, equal for nobody else's."""
    said = json.dumps([job, name]).encode("ascii")
    return hmac.digest(key, said + hashlib.sha256(hidden).digest(), "sha256").hex()[:32]


def _of_options(options: JobOptions) -> Definition:
    keys: dict[str, Json] = {}
    for name, key in KEY_OF_FIELD.items():
        value = getattr(options, name)
        if value != getattr(_USUAL, name):
            keys[key] = _plain(value)
    fails: dict[str, Json] = {
        key: getattr(options.fails_when, name)
        for name, key in _FAILS_WHEN.items()
        if getattr(options.fails_when, name) != getattr(_USUAL.fails_when, name)
    }
    if fails:
        keys["failsWhen"] = fails
    hidden: dict[str, bytes] = {}
    if options.environment:
        keys["environment"] = dict.fromkeys(sorted(name for name, _ in options.environment), REDACTED)
        hidden["environment"] = _canonical([[name, value] for name, value in sorted(options.environment)])
    for key, value in options.raw.items():
        said = _hook(value) if key in _HOOKS and isinstance(value, Mapping) else value
        if said in (None, {}, []):
            continue
        masked: list[tuple[str, Json]] = []
        keys[key] = _masked((key,), said, masked)
        if masked:
            hidden[key] = _canonical([[path, one] for path, one in sorted(masked, key=lambda pair: pair[0])])
    return Definition(MappingProxyType(keys), MappingProxyType(hidden))


def _hook(hook: Mapping[str, Json]) -> dict[str, Json]:
    """A hook without what is there by default."""
    found: dict[str, Json] = {}
    for key, value in hook.items():
        if key == "report" and isinstance(value, Mapping):
            said = {name: _without(block, REPORTER_DEFAULTS.get(name, {})) for name, block in value.items()}
            value = {name: block for name, block in said.items() if block}
        elif key == "retry":
            value = _without(value, RETRY_DEFAULTS)
        if value not in (None, {}, []):
            found[key] = value
    return found


def _without(block: Json, defaults: Mapping[str, Json]) -> Json:
    if not isinstance(block, Mapping):
        return block
    return {key: value for key, value in block.items() if value is not None and value != defaults.get(key)}


def _masked(path: tuple[str, ...], value: Json, masked: list[tuple[str, Json]], *, below: bool = False) -> Json:
    """``value`` with every secret replaced; what was replaced goes to ``masked`` with its path.

    A secret is every leaf with a name on its path that sounds like one, and what tells one by its form; so are bodies
    and templates, and the other half of a pair whose name sounds like a secret. ``below``: a secret by what is above.
    Where a secret comes from (a file, a variable) is none, and neither is true or false.
    """
    below = below or _FREE_TEXT.search(path[-1]) is not None
    if isinstance(value, Mapping):
        if value and value.keys() <= SOURCES:
            return {k: _leaf((*path, k), v, masked, hide=k == "value") for k, v in value.items()}
        names = [name for key in _NAMES if isinstance(name := value.get(key), str)]
        below = below or any(map(looks_secret, names))
        return {k: _masked((*path, k), v, masked, below=below) for k, v in value.items()}
    if isinstance(value, list):
        return [_masked((*path, str(i)), one, masked, below=below) for i, one in enumerate(value)]
    return _leaf(path, value, masked, hide=below or is_secret_place(path))


def _leaf(path: tuple[str, ...], value: Json, masked: list[tuple[str, Json]], *, hide: bool) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        hide = hide or _TEMPLATE.search(value) is not None or tells_secret(value)
    if not hide and not isinstance(value, Mapping | list):
        return _plain(value)
    masked.append((".".join(path), value))
    return REDACTED


def _plain(value: object) -> Json:
    """A value as JSON has it, with one spelling for each number."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a definition holds no {type(value).__name__}")


def _canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
