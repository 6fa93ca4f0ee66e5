"""The backend ``etcd``: the host's lease driver over our store, and the certificates that go with it."""

from __future__ import annotations

from dataclasses import replace

import anyio

from cronstable.api import Claims, ClusterView, ElectionContext, Host, PluginError, Seconds, Started
from cronstable.leadership import LeaseBackend, LeaseTiming
from cronstable_etcd import CAPABILITIES
from cronstable_etcd.gateway import Credentials, Gateway
from cronstable_etcd.lease import EtcdLeaseStore
from cronstable_etcd.settings import EtcdSettings
from cronstable_etcd.tls import Tls

POSTS_PER_ROUND = 5
"""A renewal is two requests; the rest is for members that do not answer and for a new token (reference 3.5)."""


def make(context: ElectionContext, host: Host) -> EtcdElection:
    """The factory of the descriptor. Touches neither files nor the network."""
    settings = context.settings
    if not isinstance(settings, EtcdSettings):
        raise PluginError(f"cronstable-etcd: cluster.etcd was not parsed by this plugin: {type(settings).__name__}")
    return EtcdElection(context, host, settings)


def timing_of(ttl: Seconds, connect_timeout: Seconds) -> tuple[LeaseTiming, Seconds]:
    """Cadence and deadlines, and the seconds that one request may take.

    A call may use the whole round, since it is several requests. A watch ends early enough for the look that follows
    it to count while the last one still does.
    """
    base = LeaseTiming.for_ttl(ttl, connect_timeout)
    post = min(connect_timeout, base.round_deadline / POSTS_PER_ROUND)
    return replace(base, op_timeout=base.round_deadline, watch=base.renew_every), post


class EtcdElection:
    """``Election``, ``RebootLedger``, ``Observable``, ``Claimant``: ``LeaseBackend``, whose certificates may rotate."""

    def __init__(self, context: ElectionContext, host: Host, settings: EtcdSettings) -> None:
        self._settings = settings
        self._node_name = context.node_name
        timing, post_timeout = timing_of(settings.ttl, context.connect_timeout)
        self._tls = Tls(settings.tls, host)
        credentials = None
        if settings.username is not None and settings.password is not None:
            credentials = Credentials(settings.username, settings.password)
        gateway = Gateway(host, settings.endpoints, post_timeout=post_timeout, tls=self._tls, credentials=credentials)
        self._store = EtcdLeaseStore(host, gateway, settings.election, ttl=settings.ttl, watch=timing.watch)
        self._lease = LeaseBackend(
            self._store,
            context,
            host,
            timing=timing,
            capabilities=CAPABILITIES,
            describe=self._describe,
        )

    def view(self) -> ClusterView:
        """See ``Election.view``. The lease block has the entries of reference 3.5: the lease id names the term."""
        view = self._lease.view()
        if view.lease is None:
            return view
        lease_id = str(self._store.lease_id) if view.is_leader else None
        expiry = view.lease.expiry if view.is_leader else None
        fields = (("electionName", self._settings.election), ("leaseId", lease_id))
        shown = replace(view.lease, identity=self._node_name, expiry=expiry, fence=None, fields=fields)
        return replace(view, lease=shown)

    async def wait_change(self) -> None:
        """See ``LeaseBackend.wait_change``."""
        await self._lease.wait_change()

    def reboot_ran(self, job: str) -> bool | None:
        """See ``RebootLedger.reboot_ran``."""
        return self._lease.reboot_ran(job)

    async def mark_reboot_ran(self, job: str) -> bool:
        """See ``RebootLedger.mark_reboot_ran``."""
        return await self._lease.mark_reboot_ran(job)

    def hurry(self) -> None:
        """See ``Hasty.hurry``."""
        self._lease.hurry()

    async def rehearse(self) -> None:
        """See ``Rehearsable.rehearse``: the certificates."""
        await self._tls.load()

    @property
    def claims(self) -> Claims | None:
        """See ``Claimant.claims``."""
        return self._lease.claims

    async def run(self, host: Host, *, task_status: Started) -> None:
        """See ``Election.run``. Raises ``PluginError`` before it starts with certificates that do not load."""
        await self._tls.load()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tls.keep)
            await self._lease.run(host, task_status=task_status)
            tasks.cancel_scope.cancel()

    def _describe(self, identity: str) -> str:
        settings = self._settings
        where = ", ".join(settings.endpoints)
        return f"at {where} (election={settings.election}, identity={identity}, ttl={settings.ttl:g})"
