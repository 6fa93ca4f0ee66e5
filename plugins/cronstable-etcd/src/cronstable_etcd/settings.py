"""The sections ``cluster.etcd`` (reference 3.5, etcd table) and ``state.etcd`` as values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from cronstable.api import InvalidSettings, Json, Problem, Seconds, SecretSource, Section, Severity

MIN_TTL: Final = 3.0
"""Seconds. A holder acts until ttl - 1 s and renews every max(1 s, ttl / 3): less leaves no room for a renewal."""

COMFORTABLE_TTL: Final = 9.0
"""Seconds. Below it one request gets less than a second: (ttl - ttl / 3 - 1) / 5."""

DEFAULT_TTL: Final = 15.0
DEFAULT_ENDPOINTS: Final = ("http://127.0.0.1:2379",)
DEFAULT_ELECTION: Final = "cronstable/leader"
DEFAULT_PREFIX: Final = "cronstable/state"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths, each may be missing. ``cert`` and ``key`` come together."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __bool__(self) -> bool:
        return any((self.ca, self.cert, self.key))


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """``endpoints``: URLs without a path. ``ttl`` in seconds. ``username`` and ``password`` come together."""

    endpoints: tuple[str, ...] = DEFAULT_ENDPOINTS
    election: str = DEFAULT_ELECTION
    ttl: Seconds = DEFAULT_TTL
    username: str | None = None
    password: SecretSource | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """``prefix``: what all keys begin with, without a slash at its end. The rest as in ``EtcdSettings``."""

    endpoints: tuple[str, ...] = DEFAULT_ENDPOINTS
    prefix: str = DEFAULT_PREFIX
    username: str | None = None
    password: SecretSource | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)


def parse_state(section: Section) -> StateSettings:
    """Check what JSON Schema cannot say of ``state.etcd``. Raises ``InvalidSettings`` with every mistake at once."""
    problems: list[Problem] = []
    endpoints, username, password, tls = _connection(problems, section)
    prefix = section.get("prefix", DEFAULT_PREFIX)
    if not isinstance(prefix, str) or not prefix.strip().strip("/") or "\0" in prefix:
        hint = f"leave the key out for {DEFAULT_PREFIX}"
        problems.append(Problem(("prefix",), "prefix must be a key: not blank, no NUL character", hint=hint))
        prefix = DEFAULT_PREFIX
    if problems:
        raise InvalidSettings(problems)
    return StateSettings(endpoints, prefix.rstrip("/"), username, password, tls)


def parse(section: Section) -> EtcdSettings:
    """Check what JSON Schema cannot say. Raises ``InvalidSettings`` with every mistake at once."""
    problems: list[Problem] = []
    endpoints, username, password, tls = _connection(problems, section)
    election = section.get("electionName", DEFAULT_ELECTION)
    if not isinstance(election, str) or not election.strip() or "\0" in election:
        hint = "leave the key out for cronstable/leader"
        problems.append(
            Problem(("electionName",), "electionName must be a key: not blank, no NUL character", hint=hint)
        )
        election = DEFAULT_ELECTION
    ttl = _ttl(problems, section.get("ttl", DEFAULT_TTL))
    if problems:
        raise InvalidSettings(problems)
    return EtcdSettings(endpoints, election, ttl, username, password, tls)


def advisories(section: Section) -> Iterator[Problem]:
    """What is usable and yet worth a word."""
    ttl = section.get("ttl")
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and MIN_TTL <= ttl < COMFORTABLE_TTL:
        budget = (ttl - max(1.0, ttl / 3) - 1) / 5
        yield Problem(
            ("ttl",),
            f"ttl {ttl:g} gives each request to etcd {budget:.2f} s",
            severity=Severity.ADVISORY,
            hint=f"fine for an etcd nearby; from {COMFORTABLE_TTL:g} on a request has a second",
        )


def redacted(url: str) -> str:
    """``url`` without the user and password that it may hold."""
    userinfo, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, slashes, _ = userinfo.partition("//")
    return f"{scheme}//***@{rest}" if slashes else f"***@{rest}"


def _connection(
    problems: list[Problem], section: Section
) -> tuple[tuple[str, ...], str | None, SecretSource | None, TlsFiles]:
    """What the election and the state store have in common."""
    endpoints = _endpoints(problems, section.get("endpoints", list(DEFAULT_ENDPOINTS)))
    username, password = _credentials(problems, section)
    tls = _tls(problems, section.get("tls"))
    problems += _protection(endpoints, username is not None or password is not None, tls)
    return endpoints, username, password, tls


def _endpoints(problems: list[Problem], value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        problems.append(
            Problem(("endpoints",), "endpoints must name at least one URL", hint="for example http://127.0.0.1:2379")
        )
        return DEFAULT_ENDPOINTS
    urls: list[str] = []
    for i, text in enumerate(value):
        url = text.strip() if isinstance(text, str) else ""
        wrong = _wrong_with(url)
        if wrong is not None:
            hint = "write http://HOST:PORT or https://HOST:PORT"
            problems.append(Problem(("endpoints", i), f"{redacted(url)!r} is not usable: {wrong}", hint=hint))
        elif url.rstrip("/") not in urls:
            urls.append(url.rstrip("/"))
    return tuple(urls)


def _wrong_with(url: str) -> str | None:
    # First of all: what else there is to say would quote from it.
    if "@" in url:
        return "user and password do not belong into the URL; use the keys username and password"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its port is not a number from 1 to 65535"
    if parts.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if not parts.hostname or any(c.isspace() for c in url):
        return "it names no host"
    if port == 0:
        return "its port is not a number from 1 to 65535"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "nothing may follow the port"
    return None


def _ttl(problems: list[Problem], value: Json) -> Seconds:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN passes every comparison that asks "is it too small?", and infinity would never expire.
    if number and math.isfinite(value) and value >= MIN_TTL:  # type: ignore[arg-type, operator]
        return float(value)  # type: ignore[arg-type]
    allowed = (f"a number of seconds >= {MIN_TTL:g}",)
    problems.append(Problem(("ttl",), f"ttl {value!r} is not usable", allowed=allowed, hint="use 15"))
    return DEFAULT_TTL


def _credentials(problems: list[Problem], section: Section) -> tuple[str | None, SecretSource | None]:
    username, password = section.get("username"), SecretSource.of(section.get("password"))
    if username is not None and (not isinstance(username, str) or not username.strip()):
        problems.append(Problem(("username",), "username must not be blank", hint="leave it out for an open etcd"))
        return None, password
    if username is not None and password is None:
        hint = "give password one of value, fromFile, fromEnvVar"
        problems.append(Problem(("username",), "username has no password", hint=hint))
    if username is None and password is not None:
        problems.append(Problem(("password",), "password has no username", hint="name the etcd user in username"))
    return username if isinstance(username, str) else None, password


def _tls(problems: list[Problem], value: Json) -> TlsFiles:
    if not isinstance(value, dict):
        return TlsFiles()
    paths: dict[str, str | None] = {}
    for key in ("ca", "cert", "key"):
        path = value.get(key)
        if path is not None and (not isinstance(path, str) or not path.strip()):
            problems.append(Problem(("tls", key), f"tls.{key} must not be blank", hint="leave the key out"))
            path = None
        paths[key] = path if isinstance(path, str) else None
    files = TlsFiles(**paths)
    for one, other in (("cert", "key"), ("key", "cert")):
        if paths[one] is not None and value.get(other) is None:
            problems.append(Problem(("tls", one), f"tls.{one} needs tls.{other}", hint="give both or neither"))
    return files


def _protection(endpoints: Sequence[str], auth: bool, tls: TlsFiles) -> Iterator[Problem]:
    plain = [url for url in endpoints if url.startswith("http://")]
    if auth and plain:
        message = f"a password would cross the network in the clear to {', '.join(plain)}"
        yield Problem(("endpoints",), message, hint="with username and password every endpoint must be https://")
    if tls and endpoints and len(plain) == len(endpoints):
        yield Problem(("tls",), "tls has no effect: no endpoint is https://", hint="use https:// or leave tls out")
