"""Unfinished runs across a handover: what a node that let go still runs, and whom that blocks (claims.md 16)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.core.values import dataclass

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """What one process says. ``runs``: run id to job, still under way there; ``cancel``: run ids it wants ended.
    ``begun``: run ids that it started in a term that is over, and could not say in the log.

    ``nonce`` changes with every refresh, so that standing still shows.
    """

    token: str
    nonce: str
    runs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cancel: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()


def encode(entry: Entry) -> bytes:
    """The entry as it stands in the store."""
    document: dict[str, object] = {
        "v": VERSION,
        "t": entry.token,
        "n": entry.nonce,
        "r": dict(entry.runs),
        "c": list(entry.cancel),
    }
    if entry.begun:
        document["b"] = list(entry.begun)
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Entry | None:
    """Read an entry; None for what is none, which blocks nobody."""
    try:
        document = json.loads(data)
        token, nonce, runs, cancel = (document[key] for key in ("t", "n", "r", "c"))
        begun = document.get("b", [])
        texts = [token, nonce, *runs, *runs.values(), *cancel, *begun]
        if document["v"] != VERSION or not all(isinstance(text, str) for text in texts):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Entry(token, nonce, MappingProxyType(dict(runs)), tuple(cancel), tuple(begun))


@dataclass(frozen=True, slots=True)
class Standing:
    """An entry, and since which boot instant it has stood unchanged before our eyes."""

    entry: Entry
    since: float


Watch = Mapping[str, Standing]
"""By token: what the other processes say."""


def observe(watch: Watch, found: Iterable[bytes], own: str, boot: float) -> Watch:
    """What stands there now, and since when. ``own``: the token whose entry does not count."""
    seen: dict[str, Standing] = {}
    for entry in map(decode, found):
        if entry is None or entry.token == own:
            continue
        before = watch.get(entry.token)
        seen[entry.token] = before if before is not None and before.entry == entry else Standing(entry, boot)
    return MappingProxyType(seen)


def blocking(watch: Watch, ttl: Seconds, boot: float) -> Mapping[str, tuple[str, ...]]:
    """Job to the runs of it that still live elsewhere; an entry that stood still for one ttl is a dead process's."""
    found: dict[str, tuple[str, ...]] = {}
    for standing in watch.values():
        if boot < standing.since + ttl:
            for run_id, job in standing.entry.runs.items():
                found[job] = (*found.get(job, ()), run_id)
    return MappingProxyType(found)


def cancelled(watch: Watch) -> frozenset[str]:
    """Run ids that somebody wants ended."""
    return frozenset(run_id for standing in watch.values() for run_id in standing.entry.cancel)


def started(watch: Watch) -> frozenset[str]:
    """Run ids that somebody says were started, whether they still live or not."""
    return frozenset(run_id for standing in watch.values() for run_id in (*standing.entry.runs, *standing.entry.begun))
