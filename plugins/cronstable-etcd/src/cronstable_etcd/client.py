"""The calls that stores make, over a gateway: transactions and leases, with every failure as ``StoreUnavailable``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cronstable.api import Host, Json, Seconds, StoreUnavailable
from cronstable_etcd import wire
from cronstable_etcd.gateway import DENIED, NOT_FOUND, Denied, Gateway, Refused, Reply
from cronstable_etcd.wire import Answer, Comparison, Operation


class Client:
    """One gateway as stores use it."""

    def __init__(self, host: Host, gateway: Gateway) -> None:
        self._host = host
        self._gateway = gateway

    @property
    def gateway(self) -> Gateway:
        """What the calls go through."""
        return self._gateway

    async def transact(
        self, compare: Sequence[Comparison], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> Answer:
        """See ``wire.Transact``."""
        reply = await self._ask("/v3/kv/txn", wire.transaction(compare, success, failure))
        try:
            answer = wire.answer(reply.body, reply.at)
        except wire.Malformed as error:
            raise StoreUnavailable(
                f"etcd answered a transaction with something else: {error}", ambiguous=True
            ) from None
        if not compare and not answer.succeeded:
            raise StoreUnavailable("etcd answered a transaction without conditions as if it had some", ambiguous=True)
        ranges = sum("request_range" in operation for operation in (success if answer.succeeded else failure))
        if len(answer.found) < ranges:
            raise StoreUnavailable("etcd answered a transaction in part", ambiguous=True)
        return answer

    async def new_lease(self, ttl: Seconds) -> tuple[int, Seconds]:
        """An etcd lease and for how long it was granted: never longer than asked for, whatever the answer says."""
        body = (await self._ask("/v3/lease/grant", {"TTL": str(math.ceil(ttl))})).body
        lease, granted = _numbers(body, "ID", "TTL")
        if lease == 0 or granted <= 0:
            raise StoreUnavailable("etcd granted no lease")
        return lease, min(float(granted), ttl)

    async def keep_alive(self, lease: int, ttl: Seconds) -> Seconds:
        """Seconds that ``lease`` lives from now on, at most ``ttl``; 0 when it is over, which etcd says by silence."""
        try:
            body = await self._gateway.call("/v3/lease/keepalive", {"ID": str(lease)})
        except Refused as error:
            if error.code == NOT_FOUND:
                return 0.0
            raise StoreUnavailable(f"keepalive: {error}") from None
        (granted,) = _numbers(body, "TTL")
        return max(0.0, min(float(granted), ttl))

    async def end_lease(self, lease: int) -> bool:
        """Revoke, best effort: a lease that is left ends by itself. True when it is over, and with it its keys."""
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})
        except (Refused, StoreUnavailable) as error:
            if isinstance(error, Refused) and error.code == NOT_FOUND:
                return True
            self._host.log.debug("an etcd lease runs out by itself: %s", error)
            return False
        return True

    async def _ask(self, path: str, body: Mapping[str, Json]) -> Reply:
        try:
            return await self._gateway.ask(path, body)
        except Refused as error:
            sort = Denied if error.code in DENIED else StoreUnavailable
            raise sort(f"{path.removeprefix('/v3/')}: {error}") from None


def _numbers(body: Mapping[str, Json], *keys: str) -> tuple[int, ...]:
    try:
        return tuple(wire.number(body.get(key)) for key in keys)
    except wire.Malformed as error:
        raise StoreUnavailable(f"etcd answered about a lease with something else: {error}") from None
