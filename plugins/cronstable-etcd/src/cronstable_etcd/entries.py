"""Unfinished runs: a key per process on a lease of its own, since letting go revokes the term's (claims.md 16)."""

from __future__ import annotations

from collections.abc import Sequence

from cronstable.api import Host, Seconds
from cronstable_etcd import wire
from cronstable_etcd.client import Client
from cronstable_etcd.record import Keys


class EntryShelf:
    """The entries of one election, and the one of this process among them. Raises ``StoreUnavailable``.

    ``ttl``: seconds that an entry outlives its last refresh; who reads it has given up on it by then.
    """

    def __init__(self, host: Host, client: Client, keys: Keys, ttl: Seconds) -> None:
        self._host = host
        self._client = client
        self._keys = keys
        self._ttl = ttl
        self._name = b""
        self._lease = 0

    async def put(self, data: bytes) -> None:
        """Replace this process's entry and keep it for another ttl; nothing to say removes it."""
        if not data:
            await self._remove()
            return
        if self._lease and await self._client.keep_alive(self._lease, self._ttl) <= 0:
            self._lease = 0
        if not self._lease:
            self._lease, _ = await self._client.new_lease(self._ttl)
        self._name = self._name or self._host.ids.token(6).encode("ascii")
        await self._client.transact((), (wire.put(self._keys.runs + self._name, data, self._lease),))

    async def _remove(self) -> None:
        if self._name:
            await self._client.transact((), (wire.delete(self._keys.runs + self._name),))
            self._name = b""
        lease, self._lease = self._lease, 0
        if lease:
            await self._client.end_lease(lease)

    async def all(self) -> Sequence[bytes]:
        """What all processes say."""
        runs = self._keys.runs
        answer = await self._client.transact((), (wire.scan(runs, wire.after(runs)),))
        return [entry.value for entry in answer.found[0]]
