"""What ``cronstable state gc`` does: the rule of ``core.retention`` carried out on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cronstable.core.clock import Seconds
from cronstable.core.records import decode
from cronstable.core.retention import Manifest, Retention, manifest_of
from cronstable.plugin.state_store import StateStore


async def look(store: StateStore, grace: Seconds, now: float) -> Retention:
    """What the manifests in the store say at ``now`` (wall seconds). Raises ``StoreUnavailable``."""
    manifests: list[Manifest] = []
    for name in await store.streams("manifests/"):
        for record in await store.read(name):
            row = decode(record.data)
            manifest = manifest_of(row) if row is not None else None
            if manifest is not None:
                manifests.append(manifest)
    return Retention.of(manifests, grace, now)


async def collect(store: StateStore, retention: Retention, *, dry_run: bool = False) -> AsyncIterator[str]:
    """Drop the streams that may go, and yield their names. Raises ``StoreUnavailable``; safe to begin again.

    The newest record is read right before its stream goes: a job that came back meanwhile has written one. ``dry_run``:
    nothing is dropped.
    """
    for name in await store.streams():
        if not retention.candidate(name):
            continue
        newest = await store.read(name, limit=1)
        if newest and retention.may_go(decode(newest[-1].data)):
            if not dry_run:
                await store.trim(name, 0)
            yield name
