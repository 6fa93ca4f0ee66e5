"""Which distribution provides what, for the things that are not installed: the only place that names them.

The host knows no plugin beyond its own. This table exists so that ``backend: etcd`` without its plugin says what to
install, and so that keys of one backend, written under another, are recognised for what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ELECTION_BACKEND: Final = "election backend"
STATE_STORE: Final = "state store"
NOTIFIER: Final = "notifier"

_GOSSIP: Final = "cronstable-gossip"
_WEBHOOK: Final = "cronstable-notify-webhook"
_FS: Final = "cronstable-fs"

PROVIDERS: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        (ELECTION_BACKEND, "gossip"): _GOSSIP,
        (ELECTION_BACKEND, "kubernetes"): "cronstable-k8s",
        (ELECTION_BACKEND, "etcd"): "cronstable-etcd",
        (ELECTION_BACKEND, "filesystem"): _FS,
        (STATE_STORE, "etcd"): "cronstable-etcd",
        (STATE_STORE, "filesystem"): _FS,
        (NOTIFIER, "webhook"): _WEBHOOK,
    }
)
"""(kind, name) to the distribution that provides it."""

GOSSIP_KEYS: Final = ("listen", "tls", "peers", "interval", "driftAfter")
"""Keys of ``cluster`` that mean something to the gossip backend only (reference 3.4)."""

STATE_KEYS: Final = ("path", "topology", "deploymentId")
"""Keys of ``state`` that mean something to the filesystem store only (reference 4)."""

PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{f"state.{key}": _FS for key in STATE_KEYS},
        **{f"cluster.{key}": _GOSSIP for key in (*GOSSIP_KEYS, "observability")},
        **{
            f"{place}.report.webhook": _WEBHOOK
            for place in (
                "jobs[].onFailure",
                "jobs[].onPermanentFailure",
                "jobs[].onSuccess",
                "jobs[].onLate",
                "notify",
            )
        },
    }
)
"""Dotted key path to the distribution that owns it."""


def provider(kind: str, name: str) -> str | None:
    """The distribution known to provide ``name``, None when there is none. ``kind`` is a constant of this module."""
    return PROVIDERS.get((kind, name))


def path_provider(path: str) -> str | None:
    """The distribution known to own the dotted key ``path``."""
    return PATHS.get(path)


def install_line(distribution: str) -> str:
    """What to type. Host and plugin in one command, so that pip resolves them together (DESIGN 5)."""
    return f"pip install cronstable {distribution}"
