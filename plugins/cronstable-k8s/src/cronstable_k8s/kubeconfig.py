"""A kubeconfig as a value: which apiserver, whom to trust, as whom to ask. Pure: text in, value out."""

from __future__ import annotations

import base64
import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from cronstable.api import PluginError

UNSUPPORTED_USER = ("username", "password", "as", "as-uid", "as-groups", "as-user-extra")
UNSUPPORTED_CLUSTER = ("proxy-url", "tls-server-name")


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate, key or CA: in the kubeconfig itself or in a file that may rotate."""

    data: str | None = None
    path: str | None = None

    def __bool__(self) -> bool:
        return self.data is not None or self.path is not None


@dataclass(frozen=True, slots=True)
class Target:
    """An apiserver and our credentials for it. ``needs_library``: what only the official client can do with it.

    ``token`` is never shown. ``namespace``: of the context, None when it names none.
    """

    server: str
    ca: Material = Material()
    cert: Material = Material()
    key: Material = Material()
    token: Material = Material()
    insecure: bool = False
    namespace: str | None = None
    needs_library: str | None = None

    def __repr__(self) -> str:
        return f"Target({redacted(self.server)})"


def redacted(url: str) -> str:
    """``url`` without the user and password that it may hold."""
    userinfo, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, slashes, _ = userinfo.partition("//")
    return f"{scheme}//***@{rest}" if slashes else f"***@{rest}"


def parse(text: str, path: str) -> Target:
    """The current context of the kubeconfig at ``path``. Raises ``PluginError`` that names the place, no secret."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        raise PluginError(f"{path}: not YAML" + ("" if line is None else f", line {line + 1}")) from None
    except RecursionError:
        raise PluginError(f"{path}: not a kubeconfig: it is nested too deeply") from None
    except ValueError:
        # PyYAML makes dates and numbers of what looks like some, and lets out what it hears when they are none.
        raise PluginError(f"{path}: not a kubeconfig: it has a date or a number that is none") from None
    if not isinstance(document, Mapping):
        raise PluginError(f"{path}: not a kubeconfig: it is no mapping")
    current = _text(document, "current-context")
    if current is None:
        raise PluginError(f"{path}: current-context is not set; `kubectl config use-context NAME` sets it")
    context = _named(document, "contexts", "context", current, path)
    cluster = _named(document, "clusters", "cluster", _text(context, "cluster") or "", path)
    user_name = _text(context, "user")
    user = _named(document, "users", "user", user_name, path) if user_name is not None else {}
    return _target(cluster, user, _text(context, "namespace"), path)


def _target(cluster: Mapping[str, object], user: Mapping[str, object], namespace: str | None, path: str) -> Target:
    server = _text(cluster, "server")
    wrong = "it is missing" if server is None else wrong_with(server, ("https", "http"))
    if server is None or wrong is not None:
        raise PluginError(f"{path}: server {redacted(server or '')!r} is not usable: {wrong}")
    token = Material(_text(user, "token"), _beside(path, _text(user, "tokenFile")))
    if token.path is not None:
        token = Material(path=token.path)
    target = Target(
        server=server.rstrip("/"),
        ca=_material(cluster, "certificate-authority", path),
        cert=_material(user, "client-certificate", path),
        key=_material(user, "client-key", path),
        token=token,
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        namespace=namespace,
        needs_library=_beyond_us(cluster, user),
    )
    if bool(target.cert) != bool(target.key):
        raise PluginError(f"{path}: client-certificate and client-key go together: one of them is missing")
    if server.startswith("http://") and (target.token or target.cert):
        raise PluginError(f"{path}: {server} is not https://, and our credentials would cross the network in the clear")
    return target


def _beyond_us(cluster: Mapping[str, object], user: Mapping[str, object]) -> str | None:
    """What asks for Kubernetes' own client: a program that makes credentials, and rarities."""
    for key in ("exec", "auth-provider"):
        if user.get(key) and not (_text(user, "token") or _text(user, "tokenFile")):
            return f"users[].user.{key}"
    for key in UNSUPPORTED_USER:
        if user.get(key):
            return f"users[].user.{key}"
    return next((f"clusters[].cluster.{key}" for key in UNSUPPORTED_CLUSTER if cluster.get(key)), None)


def wrong_with(url: str, schemes: tuple[str, ...]) -> str | None:
    """What keeps ``url`` from being an apiserver's address."""
    # First of all: what else there is to say would quote from it.
    if "@" in url:
        return "user and password do not belong into the URL"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its port is not a number from 1 to 65535"
    if parts.scheme not in schemes:
        return "it must begin with " + " or ".join(f"{scheme}://" for scheme in schemes)
    if not parts.hostname or any(c.isspace() for c in url):
        return "it names no host"
    if port == 0:
        return "its port is not a number from 1 to 65535"
    if parts.query or parts.fragment:
        return "nothing may follow its path"
    return None


def _named(document: Mapping[str, object], group: str, key: str, name: str, path: str) -> Mapping[str, object]:
    entries = document.get(group)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            found = entry.get(key)
            return found if isinstance(found, Mapping) else {}
    raise PluginError(f"{path}: {group} has no entry named {name!r}")


def _material(section: Mapping[str, object], key: str, path: str) -> Material:
    data = _text(section, f"{key}-data")
    if data is None:
        return Material(path=_beside(path, _text(section, key)))
    try:
        return Material(base64.b64decode(data, validate=True).decode("ascii"))
    except ValueError:
        raise PluginError(f"{path}: {key}-data is not PEM in base64") from None


def _beside(path: str, other: str | None) -> str | None:
    """Paths in a kubeconfig are relative to it."""
    return None if other is None else os.path.join(os.path.dirname(os.path.abspath(path)), other)


def _text(section: Mapping[str, object], key: str) -> str | None:
    value = section.get(key)
    return value if isinstance(value, str) and value else None
