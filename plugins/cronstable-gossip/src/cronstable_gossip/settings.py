"""The gossip keys of ``cluster``: addresses, the peer list, and what JSON Schema cannot say (reference 3.1 to 3.4)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cronstable.api import Json, Problem, Seconds, Severity

_WILDCARDS: Final[Mapping[str, tuple[str, ...]]] = {
    "0.0.0.0": ("127.0.0.1",),
    "::": ("::1",),
    "*": ("127.0.0.1", "::1"),
    "": ("127.0.0.1", "::1"),
}
"""A listen host that means every interface, and the loopback addresses of its family."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
REQUIRED: Final = ("listen", "tls", "peers")
_TLS_PATHS: Final = ("ca", "cert", "key")
_OBSERVABILITY: Final = ("cluster", "observability")


class BadAddress(ValueError):
    """The text is not ``host:port``; the message says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The section as the election uses it. ``peers``: every other member, once."""

    listen: Address
    tls: TlsFiles
    peers: tuple[Address, ...]
    interval: Seconds = 30.0
    drift_after: int = 3


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """``cluster.observability`` beside another backend. ``node_name`` None: that of the node."""

    exchange: Settings
    node_name: str | None
    connect_timeout: Seconds
    share_node_stats: bool


def parse_address(text: str, *, listen: bool = False) -> Address:
    """``host:port``; an IPv6 address stands in brackets (reference 3.2). ``listen``: the host may be a wildcard."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            raise BadAddress(f"`{text}` is not [address]:port")
        port = rest[1:]
    else:
        host, colon, port = text.rpartition(":")
        if ":" in host:
            raise BadAddress(f"`{text}`: an IPv6 address stands in brackets, as in [2001:db8::1]:8443")
        if not colon:
            raise BadAddress(f"`{text}` has no port; write host:port")
    if not host and not listen:
        raise BadAddress(f"`{text}` has no host; write host:port")
    if any(c.isspace() or not c.isprintable() or c in "/@?#" for c in host):
        raise BadAddress(f"the host of `{text}` is not a name or an address")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise BadAddress(f"the port of `{text}` is not a number from 1 to 65535")
    return Address(host, int(port))


def normalise(listen: Address, peers: Sequence[Address], node_name: str) -> tuple[Address, ...]:
    """The other members: duplicates dropped, and this node where that is certain (reference 3.3).

    Names are never resolved and never matched in part: to drop a real member would shrink the cluster, and two halves
    could then both have a majority.
    """
    return tuple(peer for peer in dict.fromkeys(peers) if not _is_me(peer, listen, node_name))


def suspicious(listen: Address, peers: Sequence[Address], node_name: str) -> Iterator[Address]:
    """Members of a cluster of at most two that look like this node but cannot be proven to be it."""
    if len(peers) + 1 > 2 or listen.host not in _WILDCARDS:
        return
    label = node_name.partition(".")[0]
    for peer in peers:
        named = peer.host.partition(".")[0] == label and not _numeric(peer.host)
        if peer.port == listen.port and (named or peer.host in _LOOPBACK or peer.host.startswith("127.")):
            yield peer


def _is_me(peer: Address, listen: Address, node_name: str) -> bool:
    if peer == listen:
        return True
    family = _WILDCARDS.get(listen.host)
    return family is not None and peer.port == listen.port and (peer.host == node_name or peer.host in family)


def _numeric(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def node_name(section: Mapping[str, Json]) -> str:
    """The configured name, the host name when it is blank."""
    name = section.get("nodeName")
    return name.strip() if isinstance(name, str) and name.strip() else socket.gethostname()


def read(section: Mapping[str, Json], name: str) -> Settings:
    """Settings of a section that ``problems`` has nothing against; ``name`` is this node's. Raises ``ValueError``."""
    tls, peers = section["tls"], section["peers"]
    if not isinstance(tls, dict) or not isinstance(peers, list):
        raise BadAddress("`tls` must be a mapping and `peers` a list")
    listen = parse_address(str(section["listen"]), listen=True)
    others = [parse_address(str(peer.get("host"))) for peer in peers if isinstance(peer, dict)]
    interval, drift = section.get("interval", 30), section.get("driftAfter", 3)
    return Settings(
        listen=listen,
        tls=TlsFiles(*(str(tls[key]) for key in _TLS_PATHS)),
        peers=normalise(listen, others, name),
        interval=float(interval) if isinstance(interval, int | float) else 30.0,
        drift_after=drift if isinstance(drift, int) else 3,
    )


def shares_node_stats(observability: object) -> bool:
    """Whether peers are told how loaded this node is: when the block is there and does not say otherwise."""
    return isinstance(observability, Mapping) and observability.get("shareNodeStats") is not False


def parse_mesh(section: Mapping[str, Json]) -> MeshSettings | None:
    """``cluster.observability`` as a mesh of its own; None with gossip, whose exchange carries it."""
    if any(key not in section for key in REQUIRED):
        return None
    name, timeout = section.get("nodeName"), section.get("connectTimeout", 10)
    own = name.strip() if isinstance(name, str) and name.strip() else None
    try:
        exchange = read(section, own or "")
    except (ValueError, KeyError):
        # Said by ``mesh_problems``, with its place.
        return None
    seconds = float(timeout) if isinstance(timeout, int | float) else 10.0
    return MeshSettings(exchange, own, seconds, shares_node_stats(section))


# -- findings ---------------------------------------------------------------------------------------------------------


def problems(section: Mapping[str, Json]) -> Iterator[Problem]:
    """What is wrong, and what is worth saying, with a section of ``backend: gossip``; paths from the root."""
    missing = [key for key in REQUIRED if key not in section]
    for key in missing:
        yield Problem(("cluster",), f"`backend: gossip` needs `{key}`", hint=_HINTS[key])
    found = [*_tls(section.get("tls"), missing), *_addresses(section), *_beside_gossip(section.get("observability"))]
    yield from found
    if missing or found:
        return
    name = node_name(section)
    settings = read(section, name)
    yield from _members(settings, name, elects=section.get("electLeader") is True)


_HINTS: Final = {
    "listen": 'the address that peers ask at, such as "0.0.0.0:8443"',
    "tls": "the paths of `ca`, `cert` and `key`; `cronstable certs` makes some for trying out",
    "peers": "every other member, as `- host: NAME:PORT`; an empty list for a cluster of one",
}


def mesh_problems(cluster: Mapping[str, Json]) -> Iterator[Problem]:
    """What is wrong with ``observability`` beside a backend that is not gossip; paths from the root."""
    section = cluster.get("observability")
    if not isinstance(section, dict):
        return
    missing = [key for key in REQUIRED if key not in section]
    for key in missing:
        hint = f"{_HINTS[key]}; only with `backend: gossip` the nodes ask each other anyway"
        yield Problem(_OBSERVABILITY, f"`observability` needs `{key}`", hint=hint)
    for problem in (*_tls(section.get("tls"), missing), *_addresses(section)):
        yield replace(problem, path=(*_OBSERVABILITY, *problem.path[1:]))


def _beside_gossip(section: Json) -> Iterator[Problem]:
    """Under gossip the exchange is there already, and has its keys in ``cluster`` itself (reference 3.6)."""
    for key in section if isinstance(section, dict) else ():
        if key != "shareNodeStats":
            yield Problem(
                (*_OBSERVABILITY, key),
                f"`{key}` does not belong here with `backend: gossip`",
                allowed=("shareNodeStats",),
                hint=f"the exchange of the election is used, which `cluster.{key}` is for",
            )


def _tls(tls: Json, missing: Sequence[str]) -> Iterator[Problem]:
    if "tls" in missing or not isinstance(tls, dict):
        return
    for key in _TLS_PATHS:
        path = tls.get(key)
        if path is None:
            yield Problem(("cluster", "tls"), f"`tls` needs `{key}`", hint="a path; without it nobody is authenticated")
        elif not isinstance(path, str) or not path.strip():
            yield Problem(("cluster", "tls", key), "the path is blank", hint="is the variable behind it set?")


def _addresses(section: Mapping[str, Json]) -> Iterator[Problem]:
    listen = section.get("listen")
    if isinstance(listen, str):
        yield from _address(("cluster", "listen"), listen, listen=True)
    peers = section.get("peers")
    for i, peer in enumerate(peers if isinstance(peers, list) else ()):
        host = peer.get("host") if isinstance(peer, dict) else None
        if isinstance(host, str):
            yield from _address(("cluster", "peers", i, "host"), host, listen=False)
        else:
            yield Problem(("cluster", "peers", i), "a peer needs `host`", hint="as in `- host: cron-b:8443`")


def _address(path: tuple[str | int, ...], text: str, *, listen: bool) -> Iterator[Problem]:
    try:
        parse_address(text, listen=listen)
    except BadAddress as error:
        yield Problem(path, str(error))


def _members(settings: Settings, name: str, *, elects: bool) -> Iterator[Problem]:
    size = len(settings.peers) + 1
    if elects and size == 2:
        yield Problem(
            ("cluster", "peers"),
            "electing among two is strictly worse than a single replica: when either node is away, nobody leads",
            hint="add a third member, or set `electLeader: false`",
        )
    elif elects and size % 2 == 0:
        yield Problem(
            ("cluster", "peers"),
            f"{size} members bear no more failures than {size - 1}",
            severity=Severity.ADVISORY,
            hint="an odd number of members is the better one",
        )
    for peer in suspicious(settings.listen, settings.peers, name):
        yield Problem(
            ("cluster", "peers"),
            f"`{peer}` looks like this node itself, but that cannot be proven, so it counts as a member",
            severity=Severity.ADVISORY,
            hint="`peers` lists the other members only",
        )
