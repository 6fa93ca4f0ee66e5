"""The section ``web`` as values: what to listen on, who may do what. Secrets are resolved here and nowhere else."""

from __future__ import annotations

import errno
import hmac
import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from cronstable.api import InvalidSettings, Json, KeyPath, Problem, Section

VIEW: Final = "view"
CONTROL: Final = "control"
ALL_SCOPES: Final = frozenset({VIEW, CONTROL})
ANONYMOUS: Final = "anonymous"
_LONGEST_FILE: Final = 1 << 20
"""Bytes of a file that holds a secret: a device such as /dev/zero never ends."""

DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}

_TOKEN_CHARS = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LISTEN_FORMS = ("http://HOST:PORT", "https://HOST:PORT", "unix:///PATH")


@dataclass(frozen=True, slots=True)
class Tcp:
    """A TCP listener; port 0 lets the system choose."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Unix:
    """A unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret comes from; ``path`` is its place in the section, for messages. Its value is not in ``repr``."""

    path: KeyPath
    value: str | None = field(default=None, repr=False)
    from_file: str | None = None
    from_env_var: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. ``scopes`` are complete: control implies view. ``secret``: its bytes, not in ``repr``."""

    label: str
    scopes: frozenset[str]
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of the PEM files of the https listeners; ``client_ca`` set: clients need a certificate of that CA."""

    cert: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """How often this node's load is looked at, in seconds, and how many looks are kept."""

    enabled: bool = True
    interval: float = 5.0
    points: int = 720


@dataclass(frozen=True, slots=True)
class Metrics:
    """Who may scrape, and the upper bounds of the buckets of run durations, in seconds."""

    enabled: bool = True
    public: bool = False
    buckets: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The parsed section. ``origins``: normalised, ``*`` for any. A rotated secret is a new section to the host."""

    listen: tuple[Tcp | Unix, ...]
    headers: tuple[tuple[str, str], ...] = ()
    origins: frozenset[str] = frozenset()
    tokens: tuple[Token, ...] = ()
    anonymous: frozenset[str] = frozenset()
    socket_mode: int | None = None
    tls: Tls | None = None
    ui: bool = True
    metrics: Metrics = Metrics()
    node_history: NodeHistory = NodeHistory()


def parse(section: Section) -> WebSettings:
    """Settings from a validated and interpolated section whose secrets are still references (reference 7.1).

    Reads the secrets' files and environment variables. Raises ``InvalidSettings`` with everything that is wrong.
    """
    problems: list[Problem] = []
    listen = _listen(section, problems)
    tokens = _tokens(section, problems)
    anonymous = frozenset(_texts(section.get("anonymousScopes")))
    if anonymous and not (section.get("authToken") or section.get("authTokens")):
        problems.append(
            Problem(
                path=("anonymousScopes",),
                message="anonymousScopes needs at least one token",
                hint="set authToken or authTokens, or leave anonymousScopes out: without tokens everybody may do all",
            )
        )
    headers = _headers(section, problems)
    settings = WebSettings(
        listen=listen,
        headers=headers,
        origins=_origins(section, headers, problems),
        tokens=tokens,
        anonymous=anonymous,
        socket_mode=_socket_mode(section, problems),
        tls=_tls(section, listen, problems),
        ui=section.get("ui") is not False,
        metrics=_metrics(section),
        node_history=_node_history(section),
    )
    _check_buckets(section, problems)
    if problems:
        raise InvalidSettings(problems)
    return settings


def read_text_file(path: str) -> str:
    """A file's text as UTF-8, a byte order mark stripped. Raises ``OSError`` or ``UnicodeDecodeError``."""
    with open(path, "rb") as file:
        data = file.read(_LONGEST_FILE + 1)
    if len(data) > _LONGEST_FILE:
        raise OSError(errno.EFBIG, f"it has more than {_LONGEST_FILE} bytes", path)
    return data.decode("utf-8-sig")


def resolve_secret(
    secret: Secret,
    environ: Mapping[str, str] = os.environ,
    read: Callable[[str], str] = read_text_file,
) -> str | Problem:
    """The secret's text, or what is wrong with its source (reference 1: value, fromFile, fromEnvVar, in that order).

    A source that is configured and empty is a problem, never "no secret". Messages do not contain the secret.
    """
    if secret.value is not None:
        text, at, key = secret.value.strip(), "its value", "value"
    elif secret.from_file is not None:
        at, key = f"file {secret.from_file}", "fromFile"
        try:
            text = read(secret.from_file).strip()
        except UnicodeDecodeError:
            return Problem(path=(*secret.path, key), message=f"the {at} is not UTF-8 text")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return Problem(path=(*secret.path, key), message=f"the {at} cannot be read: {reason}")
    elif secret.from_env_var is not None:
        at, key = f"environment variable {secret.from_env_var}", "fromEnvVar"
        if secret.from_env_var not in environ:
            return Problem(path=(*secret.path, key), message=f"the {at} is not set")
        text = environ[secret.from_env_var].strip()
    else:
        return Problem(
            path=secret.path, message="the secret has no source", allowed=("value", "fromFile", "fromEnvVar")
        )
    if not text:
        return Problem(
            path=(*secret.path, key), message=f"the secret is empty: {at}", hint="an empty token would let anybody in"
        )
    return text


def normal_origin(text: str) -> str | None:
    """``scheme://host:port`` in lower case with its port written out, None when it is not an origin."""
    try:
        url = urlsplit(text.strip().lower())
        port = url.port or DEFAULT_PORTS.get(url.scheme)
    except ValueError:
        return None
    if not url.hostname or port is None or url.path not in ("", "/") or url.query or url.fragment:
        return None
    return f"{url.scheme}://{url.hostname}:{port}"


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _listen(section: Section, problems: list[Problem]) -> tuple[Tcp | Unix, ...]:
    listen: list[Tcp | Unix] = []
    for index, text in enumerate(_texts(section.get("listen"))):
        found = _one_listen(text)
        if isinstance(found, str):
            problems.append(Problem(path=("listen", index), message=found, allowed=_LISTEN_FORMS))
        elif found in listen:
            problems.append(Problem(path=("listen", index), message=f"{found} is listed twice"))
        else:
            listen.append(found)
    return tuple(listen)


def _one_listen(text: str) -> Tcp | Unix | str:
    """A listener, or what is wrong with ``text``. Messages never repeat a user name or password."""
    shown = re.sub(r"//[^/]*@", "//***@", text)
    try:
        url = urlsplit(text.strip())
        port = url.port
    except ValueError as error:
        return f"{shown!r} is not an address: {error}"
    if url.scheme == "unix":
        if url.netloc or not url.path.startswith("/") or url.path == "/":
            return f"{shown!r} needs an absolute path, with three slashes before it"
        return Unix(url.path)
    if url.scheme not in DEFAULT_PORTS:
        return f"{shown!r} has no known scheme"
    if url.username is not None or url.password is not None:
        return f"{shown!r} must not contain a user name or password; use authToken"
    return _tcp(url, port, shown)


def _tcp(url: SplitResult, port: int | None, shown: str) -> Tcp | str:
    if not url.hostname or port is None:
        missing = "a port" if url.hostname else "a host" if port is not None else "a host and a port"
        return f"{shown!r} needs {missing}"
    if url.path not in ("", "/") or url.query or url.fragment:
        return f"{shown!r} must end after the port"
    return Tcp(url.hostname, port, tls=url.scheme == "https")


def _tokens(section: Section, problems: list[Problem]) -> tuple[Token, ...]:
    tokens: list[Token] = []
    single, many = section.get("authToken"), section.get("authTokens")
    if isinstance(single, dict):
        _add_token(tokens, "authToken", ALL_SCOPES, _secret(single, ("authToken",)), problems)
    for index, item in enumerate(many if isinstance(many, list) else ()):
        if not isinstance(item, dict):
            continue
        label = _text(item.get("label")) or f"authTokens[{index}]"
        if label == ANONYMOUS or any(label == token.label for token in tokens):
            why = "is reserved" if label == ANONYMOUS else "is used twice"
            problems.append(Problem(path=("authTokens", index, "label"), message=f"the label {label!r} {why}"))
        scopes = frozenset(_texts(item.get("scopes")))
        scopes = ALL_SCOPES if CONTROL in scopes else scopes
        _add_token(tokens, label, scopes, _secret(item, ("authTokens", index)), problems)
    return tuple(tokens)


def _add_token(
    tokens: list[Token], label: str, scopes: frozenset[str], source: Secret, problems: list[Problem]
) -> None:
    found = resolve_secret(source)
    if isinstance(found, Problem):
        problems.append(found)
        return
    secret = found.encode("utf-8", "surrogateescape")
    if any(hmac.compare_digest(secret, other.secret) for other in tokens):
        problems.append(Problem(path=source.path, message=f"token {label!r} is the same as one before it"))
    tokens.append(Token(label, scopes, secret))


def _secret(item: Mapping[str, Json], path: KeyPath) -> Secret:
    return Secret(path, _text(item.get("value")), _text(item.get("fromFile")), _text(item.get("fromEnvVar")))


def _headers(section: Section, problems: list[Problem]) -> tuple[tuple[str, str], ...]:
    """The extra headers, without the ones that belong to the endpoint or the connection."""
    raw = section.get("headers")
    headers: list[tuple[str, str]] = []
    for name, value in raw.items() if isinstance(raw, dict) else ():
        text = value if isinstance(value, str) else str(value)
        if not _TOKEN_CHARS.fullmatch(name):
            problems.append(Problem(path=("headers", name), message=f"{name!r} cannot be the name of a header"))
        elif any((ord(char) < 32 and char != "\t") or ord(char) == 127 for char in text):
            problems.append(Problem(path=("headers", name), message="a header's value is one line of text"))
        elif name.lower() in ("content-length", "transfer-encoding", "connection"):
            problems.append(Problem(path=("headers", name), message=f"{name} belongs to the server"))
        elif name.lower() != "content-type":
            headers.append((name, text))
    return tuple(headers)


def _origins(section: Section, headers: tuple[tuple[str, str], ...], problems: list[Problem]) -> frozenset[str]:
    origins: set[str] = set()
    for index, text in enumerate(_texts(section.get("allowedOrigins"))):
        origin = "*" if text.strip() == "*" else normal_origin(text)
        if origin is None:
            problems.append(
                Problem(
                    path=("allowedOrigins", index),
                    message=f"{text!r} is not an origin",
                    allowed=("https://HOST[:PORT]", "http://HOST[:PORT]", "*"),
                )
            )
        else:
            origins.add(origin)
    for name, value in headers:
        if name.lower() == "access-control-allow-origin":
            origin = "*" if value.strip() == "*" else normal_origin(value)
            origins.update({origin} if origin else ())
    return frozenset(origins)


def _socket_mode(section: Section, problems: list[Problem]) -> int | None:
    text = section.get("socketMode")
    if text is None:
        return None
    digits = str(text).removeprefix("0o")
    if not re.fullmatch(r"0?[0-7]{3}", digits):
        problems.append(
            Problem(path=("socketMode",), message=f"{text!r} is not a file mode", allowed=("three octal digits: 0660",))
        )
        return None
    return int(digits, 8)


def _tls(section: Section, listen: tuple[Tcp | Unix, ...], problems: list[Problem]) -> Tls | None:
    raw = section.get("tls")
    wanted = any(isinstance(item, Tcp) and item.tls for item in listen)
    if not isinstance(raw, dict):
        if wanted:
            problems.append(Problem(path=("listen",), message="an https listener needs tls.cert and tls.key"))
        return None
    before = len(problems)
    for key in ("cert", "key", "clientCa"):
        value = raw.get(key)
        if isinstance(value, str) and not value.strip():
            problems.append(Problem(path=("tls", key), message=f"tls.{key} is blank"))
        elif value is None and key != "clientCa":
            problems.append(Problem(path=("tls",), message=f"tls.{key} is missing: cert and key go together"))
    if not wanted:
        problems.append(
            Problem(path=("tls",), message="tls is set but nothing listens on https", hint="use an https:// address")
        )
    if len(problems) > before:
        return None
    return Tls(str(raw["cert"]), str(raw["key"]), _text(raw.get("clientCa")))


def _node_history(section: Section) -> NodeHistory:
    value = section.get("nodeHistory", True)
    if not isinstance(value, dict):
        return NodeHistory(enabled=value is not False)
    interval, points, usual = value.get("interval"), value.get("points"), NodeHistory()
    return NodeHistory(
        enabled=value.get("enabled", True) is True,
        interval=float(interval) if isinstance(interval, int | float) else usual.interval,
        points=points if isinstance(points, int) else usual.points,
    )


def _metrics(section: Section) -> Metrics:
    value = section.get("metrics", True)
    if not isinstance(value, dict):
        return Metrics(enabled=value is not False)
    buckets = value.get("durationBuckets")
    bounds = tuple(float(b) for b in buckets if isinstance(b, int | float)) if isinstance(buckets, list) else ()
    return Metrics(
        enabled=value.get("enabled", True) is True,
        public=value.get("public", False) is True,
        buckets=bounds or Metrics().buckets,
    )


def _check_buckets(section: Section, problems: list[Problem]) -> None:
    metrics = section.get("metrics")
    buckets = metrics.get("durationBuckets") if isinstance(metrics, dict) else None
    if not isinstance(buckets, list):
        return
    numbers = [float(b) for b in buckets if isinstance(b, int | float)]
    rising = all(low < high for low, high in itertools.pairwise(numbers))
    if not rising or not all(math.isfinite(number) and number > 0 for number in numbers):
        problems.append(
            Problem(
                path=("metrics", "durationBuckets"), message="the buckets are finite, above 0 and in increasing order"
            )
        )
